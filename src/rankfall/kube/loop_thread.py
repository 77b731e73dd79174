"""Runs the asynchronous client for synchronous callers: one event loop in its own thread, one open client.

A caller that is interrupted (Ctrl-C) cancels its call. Calls after ``close`` start a new thread.
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
# For one look with all of its requests, seconds: who watches looks again soon.
_LOOK_S: Final = 15.0


class Abandoned(KubeError):  # noqa: N818 - reads as the answer that it is
    """Whoever asked does not want it any more; what was sent until then may be done."""


class EventLoopThread:
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
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, work: Callable[[Kube], Awaitable[_T]], *, meanwhile: Callable[[], bool] | None = None) -> _T:
        """Run ``work`` with the client and wait for it.

        Args:
            work: gets the client.
            meanwhile: called in this thread every now and then; true = the work is cancelled.

        Raises:
            Abandoned: ``meanwhile`` said so.
            KubeError: what the client raises, and whatever ``work`` raises.
        """
        future: Future[_T] = asyncio.run_coroutine_threadsafe(self._run(work), self._started())
        try:
            while meanwhile is not None and not wait([future], timeout=_TICK_S).done:
                if meanwhile():
                    future.cancel()
                    raise Abandoned("given up, because something else is wished")
            return future.result()
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def look(self, work: Callable[[Kube], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``work`` with the client as one look, which only asks: it has 15 s with all of its requests.

        Raises:
            Unreachable: that was not enough.
            KubeError: what the client raises, and whatever ``work`` raises.
        """
        return self.call(lambda kube: _in_time(work(kube)))

    def start(self, work: Callable[[Kube], Awaitable[None]]) -> None:
        """Run ``work`` with the client beside all calls, until it ends or the portal is closed."""
        self.call(lambda kube: self._begin(kube, work))

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
        # A call that was cancelled may still be undoing what it had done.
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
        raise Unreachable(f"no answer within {_LOOK_S:g} s", hint="it is asked again") from None
