"""Asynchronous work in a thread of its own that any other thread may end, also before it has begun."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Endable:
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
