"""Helpers of collectors that run in background threads: cancellation and problem reports.

CancellableWork can be ended from any thread, also before it starts. ProblemReporter reports a lasting
problem once and a recurring one once a minute; a problem that hits a thousand pods at once has one name.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final


class CancellableWork:
    """One piece of work: ``run`` is awaited in its thread, ``end`` is called from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        # Ends the work; there while it goes on.
        self._cancel: Callable[[], object] | None = None

    def end(self) -> None:
        """Cancel the work, or keep it from beginning; returns at once. May be called again."""
        with self._lock:
            self._over = True
            if self._cancel is not None:
                self._cancel()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until it is done or ended; what it raises is raised."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        with self._lock:
            if self._over:
                task.cancel()
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        finally:
            # The loop may be closed from here on.
            with self._lock:
                self._cancel = None


# A difficulty that was over and comes again is told again after this, seconds.
AGAIN_S: Final = 60.0
# A disk that takes nothing is told again so often while it lasts, seconds: until then no line is shown either.
FULL_AGAIN_S: Final = 15.0
# Names remembered; the oldest is forgotten first.
_MAX: Final = 256


class ProblemReporter:
    """What was told.

    Args:
        tell: takes the words.
        clock: monotonic, seconds.
    """

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        # By name: when it was told, and whether it lasts.
        self._reported: dict[str, tuple[float, bool]] = {}
        # Since when the disk takes nothing, and when that was told last.
        self._full: tuple[float, float] | None = None

    def say(self, name: str, text: str) -> None:
        """It is so: told unless that is known."""
        now = self._clock()
        reported, lasts = self._reported.get(name, (None, False))
        if reported is not None and (lasts or now - reported < AGAIN_S):
            return
        self._reported.pop(name, None)
        self._reported[name] = (now, True)
        while len(self._reported) > _MAX:
            del self._reported[next(iter(self._reported))]
        self._tell(text)

    def full(self, error: OSError) -> None:
        """What came could not be stored."""
        now = self._clock()
        since, reported_at = self._full or (now, now)
        if self._full is None:
            self._tell(f"what comes from the cluster cannot be stored: {error_text(error)}; it is tried again")
        elif now - reported_at >= FULL_AGAIN_S:
            reported_at = now
            self._tell(
                f"nothing can be stored for {now - since:.0f} s now, so no line is shown: {error_text(error)}; free space: "
                "what the cluster still has is fetched again then"
            )
        self._full = (since, reported_at)

    def stored(self) -> None:
        """What comes is stored again."""
        if self._full is not None:
            since, self._full = self._full[0], None
            self._tell(f"storing goes on after {self._clock() - since:.0f} s: what the cluster still has is fetched")

    def over(self, name: str) -> None:
        """It is no longer so."""
        before = self._reported.get(name)
        if before is not None:
            self._reported[name] = (before[0], False)


def error_text(error: BaseException) -> str:
    """An error as a person may read it; one that nobody foresaw with its type."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else f"{type(error).__name__}: {error}"[:500]
