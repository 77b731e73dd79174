"""Time-outs, back-off and cancellation of a watch.

One task waits for the caller's stop event during the whole life of a watch, instead of one more for every
chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

import msgspec

_DOUBLINGS: Final = 16


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a watch, in seconds.

    Attributes:
        idle: longest silence before the connection is taken for dead. Servers send a bookmark about once a minute, where anything happened at all;
            a needless new connection costs one request.
        shortest: least life of one connection that we ask the server for.
        longest: most. What is asked for is drawn between the two, so that watches that began together do not end together.
        first: longest pause before the first new try; doubled each time.
        cap: longest pause that we choose ourselves.
        patience: longest ``Retry-After`` that is honoured.
        head: longest wait for the head of an answer.
        denied: how long a 401 or 403 is doubted after a connection that was granted. An API server that starts answers before it has read its
            roles (seen with 1.34, up to some seconds).
        doubting: a denial is doubted as long although nothing was granted before: of who may start together with the server.
    """

    idle: float = 150.0
    shortest: float = 300.0
    longest: float = 600.0
    first: float = 0.5
    cap: float = 30.0
    patience: float = 300.0
    head: float = 60.0
    denied: float = 20.0
    doubting: bool = False

    def life(self, rng: random.Random) -> int:
        """Whole seconds that the server should keep one connection."""
        return round(rng.uniform(self.shortest, self.longest))

    def pause(self, tries: int, *, retry_after: float | None, rng: random.Random) -> float:
        """Seconds before the next try.

        The first one is drawn from nothing to ``first``: most connections end for good reasons, all of a server at the same moment. Later ones
        are at least half of their bound. What the server asks for is never undercut.

        Args:
            tries: that failed in a row.
            retry_after: what the server asked for.
            rng: of the chance.
        """
        bound = min(self.cap, self.first * 2.0 ** min(tries, _DOUBLINGS))
        ours = bound * (rng.uniform(0.5, 1.0) if tries else rng.random())
        return ours if retry_after is None else min(retry_after, self.patience) + ours


class Waits:
    """Bounds each wait by a time-out and by the caller's wish to stop.

    Args:
        stop: set by the caller when it has seen enough; None = never.
    """

    def __init__(self, stop: asyncio.Event | None) -> None:
        self._stop = stop
        self._task: asyncio.Task[None] | None = None
        self._scope: asyncio.Timeout | None = None

    @property
    def stopped(self) -> bool:
        """Whether the caller wants to stop."""
        return self._stop is not None and self._stop.is_set()

    async def __aenter__(self) -> Self:
        if self._stop is not None:
            self._task = asyncio.create_task(self._look(self._stop))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[None]:
        """A block of waiting.

        Raises:
            TimeoutError: the time is over, or the caller wants to stop; ``stopped`` tells which.
        """
        async with asyncio.timeout(0 if self.stopped else seconds) as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None

    async def pause(self, seconds: float) -> None:
        """Sleep, but not longer than the caller wants to go on."""
        with contextlib.suppress(TimeoutError):
            async with self.within(seconds):
                await asyncio.Event().wait()

    async def _look(self, stop: asyncio.Event) -> None:
        await stop.wait()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(0)
