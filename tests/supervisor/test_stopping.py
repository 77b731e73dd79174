"""A stop of an attempt: nobody is told to end whose last lines nobody could read."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.supervisor.stopping import FORCE_AFTER_S, LOGS_OPEN_TIMEOUT_S, Stopping


class Backend:
    """Takes every word."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.ended: list[int] = []

    def stop(self, plan: Any, slots: set[int], *, grace: float, reason: str) -> set[int]:
        self.told += sorted(slots)
        return slots

    def end(self, plan: Any, slots: set[int], *, grace: float) -> None:
        self.ended += sorted(slots)


@pytest.mark.parametrize("vain", [False, True])
def test_slots_are_told_when_their_logs_are_open_or_after_a_while(vain: bool) -> None:  # noqa: FBT001 - a case of the test
    backend, followed = Backend(), []
    made: Any = backend
    plan: Any = None
    stopping = Stopping(made, plan, grace=2.0, reason="r", now=100.0, followed=lambda: bool(followed))
    stopping.step({0, 1}, now=100.0)
    stopping.step({0, 1}, now=100.0 + LOGS_OPEN_TIMEOUT_S - 0.1)
    assert backend.told == []
    if not vain:
        followed.append(1)
    now = 100.0 + LOGS_OPEN_TIMEOUT_S + (0.1 if vain else -0.1)
    stopping.step({0, 1}, now=now)
    assert backend.told == [0, 1]
    # The grace time begins with the word.
    stopping.step({0, 1}, now=now + 2.0 + FORCE_AFTER_S)
    assert backend.ended == []
    followed.clear()
    stopping.step({0}, now=now + 2.1 + FORCE_AFTER_S)
    assert (backend.told, backend.ended) == ([0, 1], [0])
