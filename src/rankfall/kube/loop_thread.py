"""Runs the asynchronous client for synchronous callers in one thread.

An interrupted caller cancels its call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, Final, TypeVar

from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, Unreachable

_T = TypeVar("_T")
_TICK_S: Final = 0.1
_LAST_S: Final = 15.0
# Seconds for one query with all its requests.
_LOOK_S: Final = 15.0


class Abandoned(KubeError):
    """The caller canceled; sent requests may have taken effect."""


class EventLoopThread:
    """One client in one thread, started on first use."""

    def __init__(self, connect: Callable[[], Kube]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kube: Kube | None = None
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Callable[[Kube], Awaitable[_T]], *, meanwhile: Callable[[], bool] | None = None) -> _T:
        """Runs ``work`` with the client and waits for it.

        ``meanwhile`` runs regularly in the caller's thread; true cancels the work.

        Raises:
            Abandoned: ``meanwhile`` returned true.
            KubeError: Any error of ``work``.
        """
        future: Future[_T] = asyncio.run_coroutine_threadsafe(self._run(work), self._started())
        try:
            while meanwhile is not None and not wait([future], timeout=_TICK_S).done:
                if meanwhile():
                    future.cancel()
                    raise Abandoned("stopped, because another request arrived")
            return future.result()
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def look(self, work: Callable[[Kube], Coroutine[Any, Any, _T]]) -> _T:
        """Runs read-only ``work`` with a time-out of 15 s for all requests.

        Raises:
            Unreachable: The time-out expired.
            KubeError: Any error of ``work``.
        """
        return self.call(lambda kube: _in_time(work(kube)))

    def start(self, work: Callable[[Kube], Awaitable[None]]) -> None:
        """Runs ``work`` in the background until its end or ``close``."""
        self.call(lambda kube: self._begin(kube, work))

    def close(self) -> None:
        """Closes client and thread; repeatable."""
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

    async def _begin(self, kube: Kube, work: Callable[[Kube], Awaitable[None]]) -> None:
        async def beside() -> None:
            await work(kube)

        task = asyncio.get_running_loop().create_task(beside())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _shut(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A canceled call may still be undoing its changes.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, late = await asyncio.wait(left, timeout=_LAST_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        kube, self._kube = self._kube, None
        if kube is not None:
            await kube.__aexit__(None, None, None)


async def _in_time(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        async with asyncio.timeout(_LOOK_S):
            return await work
    except TimeoutError:
        raise Unreachable(f"no answer within {_LOOK_S:g} s", hint="wait; Rankfall tries again") from None
