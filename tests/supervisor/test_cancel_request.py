"""A cancel that is asked for in a signal handler."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from rankfall.model import decoding
from rankfall.supervisor.requests import read_cancel, request_cancel


@pytest.fixture
def asks_when_signalled(tmp_path) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: request_cancel(tmp_path, reason="SIGTERM"))
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("asks_when_signalled")
def test_i18_a_signal_handler_asks_for_the_end_while_its_thread_makes_a_decoder(tmp_path):
    """SIGTERM in the moment in which the view decoded its first event: the run was never stopped."""
    with decoding._MAKING:
        signal.raise_signal(signal.SIGUSR1)
    found = read_cancel(tmp_path)
    assert found is not None
    assert found.reason == "SIGTERM"
