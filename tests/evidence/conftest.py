"""Readers of foreign bytes: every test here runs under a limit on memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.memory_limit import limited


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with limited():
        yield
