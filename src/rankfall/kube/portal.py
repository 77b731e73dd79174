"""A way into the asynchronous client for code that is not: one event loop in a thread of its own, with one open client.

Refuses to be called after it was closed. A caller that is interrupted (Ctrl-C) cancels what it asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from rankfall.kube.client import Kube

_T = TypeVar("_T")


class Portal:
    """One client in one thread, started when it is first needed.

    Args:
        connect: makes the client; called in the thread.
    """

    def __init__(self, connect: Callable[[], Kube]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kube: Kube | None = None
        self._lock = threading.Lock()

    def call(self, work: Callable[[Kube], Awaitable[_T]]) -> _T:
        """Run ``work`` with the client and wait for it.

        Raises:
            KubeError: what the client raises, and whatever ``work`` raises.
        """
        future: Future[_T] = asyncio.run_coroutine_threadsafe(self._run(work), self._started())
        try:
            return future.result()
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def close(self) -> None:
        """Close the client and end the thread; may be called again, and a later call starts anew."""
        with self._lock:
            thread, loop, self._thread, self._loop = self._thread, self._loop, None, None
        if thread is not None and loop is not None:
            asyncio.run_coroutine_threadsafe(self._shut(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="rankfall-kube", daemon=True)
                self._thread.start()
            return self._loop

    async def _run(self, work: Callable[[Kube], Awaitable[Any]]) -> Any:
        if self._kube is None:
            self._kube = await self._connect().__aenter__()
        return await work(self._kube)

    async def _shut(self) -> None:
        kube, self._kube = self._kube, None
        if kube is not None:
            await kube.__aexit__(None, None, None)
