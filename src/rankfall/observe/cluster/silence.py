"""How long the open log of a container may be silent before its connection is doubted: one whose other side is gone looks the same.

A log that has spoken for a while is known by its longest silence so far; one that has not is given the longest time there is. A doubt that was
in vain doubles the time, so that a job that pauses costs a request or two and not one every few seconds. It only says when: it holds no clock
and opens nothing.
"""

from __future__ import annotations

from typing import Final

# The longest time, seconds.
SILENCE_S: Final = 240.0
# The shortest; and how many times the longest silence so far are waited for.
QUIET_S: Final = 20.0
TIMES: Final = 3.0
# From so much talk on a log is known, seconds between its first and its newest line.
KNOWN_S: Final = 60.0


class Silence:
    """What is known of one container's habit of speaking."""

    __slots__ = ("_first", "_longest", "_newest", "_vain")

    def __init__(self) -> None:
        self._first: float | None = None
        self._newest = 0.0
        self._longest = 0.0
        self._vain = 0

    def heard(self, now: float) -> None:
        """New lines came at this moment, seconds of any clock that does not go back."""
        if self._first is None:
            self._first = self._newest = now
        self._longest = max(self._longest, now - self._newest)
        self._newest = now
        self._vain = 0

    def doubted(self) -> None:
        """The log was opened anew because of its silence."""
        self._vain += 1

    def limit(self) -> float:
        """How long a silence is not doubted, seconds."""
        if self._first is None or self._newest - self._first < KNOWN_S:
            return SILENCE_S
        return min(SILENCE_S, max(QUIET_S, TIMES * self._longest) * 2.0 ** min(self._vain, 8))
