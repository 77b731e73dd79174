"""Difficulties of a feed, told in words and seldom: one that lasts is told once, one that comes and goes once in a while.

What meets a thousand pods at once (a full disk, a missing right) is one difficulty, so each has a name beside its words.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A difficulty that was over and comes again is told again after this, seconds.
AGAIN_S: Final = 60.0
# A disk that takes nothing is told again so often while it lasts, seconds: until then no line is shown either.
FULL_AGAIN_S: Final = 15.0
# Names remembered; the oldest is forgotten first.
_MAX: Final = 256


class Troubles:
    """What was told.

    Args:
        tell: takes the words.
        clock: monotonic, seconds.
    """

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        # By name: when it was told, and whether it lasts.
        self._told: dict[str, tuple[float, bool]] = {}
        # Since when the disk takes nothing, and when that was told last.
        self._full: tuple[float, float] | None = None

    def say(self, name: str, text: str) -> None:
        """It is so: told unless that is known."""
        now = self._clock()
        told, lasts = self._told.get(name, (None, False))
        if told is not None and (lasts or now - told < AGAIN_S):
            return
        self._told.pop(name, None)
        self._told[name] = (now, True)
        while len(self._told) > _MAX:
            del self._told[next(iter(self._told))]
        self._tell(text)

    def full(self, error: OSError) -> None:
        """What came could not be stored."""
        now = self._clock()
        since, told = self._full or (now, now)
        if self._full is None:
            self._tell(f"what comes from the cluster cannot be stored: {in_words(error)}; it is tried again")
        elif now - told >= FULL_AGAIN_S:
            told = now
            self._tell(
                f"nothing can be stored for {now - since:.0f} s now, so no line is shown: {in_words(error)}; free space: "
                "what the cluster still has is fetched again then"
            )
        self._full = (since, told)

    def stored(self) -> None:
        """What comes is stored again."""
        if self._full is not None:
            since, self._full = self._full[0], None
            self._tell(f"storing goes on after {self._clock() - since:.0f} s: what the cluster still has is fetched")

    def over(self, name: str) -> None:
        """It is no longer so."""
        told = self._told.get(name)
        if told is not None:
            self._told[name] = (told[0], False)


def in_words(error: BaseException) -> str:
    """An error as a person may read it; one that nobody foresaw with its type."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else f"{type(error).__name__}: {error}"[:500]
