"""Cancellation, problem reports and notifications of collectors in background threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol


class Stir(Protocol):
    """Reports stored data; ``lines``: only more lines of a known stream."""

    def __call__(self, *, lines: bool = False) -> None:
        """Is called in the collector's thread."""
        ...


def undisturbed(*, lines: bool = False) -> None:
    """Reports nothing."""


class CancellableWork:
    """One task: its thread awaits ``run``, any thread may call ``end``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._cancel: Callable[[], object] | None = None

    def end(self) -> None:
        """Cancels the work, even before its start. Idempotent; does not wait."""
        with self._lock:
            self._over = True
            if self._cancel is not None:
                self._cancel()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work; passes on its exceptions."""
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


# Seconds before a problem is reported again.
AGAIN_S: Final = 60.0
# The same for a full disk.
FULL_AGAIN_S: Final = 15.0
_MAX: Final = 256


class ProblemReporter:
    """Reports a lasting problem once and a recurring one once a minute."""

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        # By name: time of the report, and True if it lasts.
        self._reported: dict[str, tuple[float, bool]] = {}
        # Begin, and time of the last report.
        self._full: tuple[float, float] | None = None

    def say(self, name: str, text: str) -> None:
        """Reports a problem unless it is reported already."""
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
        """Reports that new data could not be stored."""
        now = self._clock()
        since, reported_at = self._full or (now, now)
        if self._full is None:
            self._tell(f"cannot store data from the cluster: {error_text(error)}; trying again")
        elif now - reported_at >= FULL_AGAIN_S:
            reported_at = now
            self._tell(
                f"nothing could be stored for {now - since:.0f} s, so new lines do not appear: {error_text(error)}; free space: "
                "then Rankfall fetches what the cluster still has"
            )
        self._full = (since, reported_at)

    def stored(self) -> None:
        """Reports that storing works again."""
        if self._full is not None:
            since, self._full = self._full[0], None
            self._tell(
                f"storing continues after {self._clock() - since:.0f} s: Rankfall fetches what the cluster still has"
            )

    def over(self, name: str) -> None:
        """Marks the problem ``name`` as ended."""
        before = self._reported.get(name)
        if before is not None:
            self._reported[name] = (before[0], False)


def error_text(error: BaseException) -> str:
    """Returns an error as text; an unexpected one with its type."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    message = getattr(error, "message", None)
    return message if isinstance(message, str) else f"{type(error).__name__}: {error}"[:500]
