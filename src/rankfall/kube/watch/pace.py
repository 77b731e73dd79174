"""Time-outs, back-off and cancellation of a watch."""

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
    """Times of a watch in seconds.

    Attributes:
        idle: Silence until the connection counts as dead; bookmarks come about once a minute.
        shortest: Shortest requested lifetime of a connection.
        longest: Longest requested lifetime; the choice between both is random.
        first: Longest pause before the first retry; doubles.
        cap: Longest pause chosen by the client.
        patience: Longest honored ``Retry-After``.
        head: Time-out for headers.
        denied: Seconds to retry a 401 or 403 after a granted connection: a starting server has not read its roles (seen
            with 1.34).
        doubting: True = retry them also if no connection was granted before.
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
        """Returns the requested lifetime of one connection in whole seconds."""
        return round(rng.uniform(self.shortest, self.longest))

    def pause(self, tries: int, *, retry_after: float | None, rng: random.Random) -> float:
        """Returns the seconds before the next attempt, never less than the server requests.

        ``tries`` counts consecutive failures. The first pause is random, because connections end normally at one
        moment.
        """
        bound = min(self.cap, self.first * 2.0 ** min(tries, _DOUBLINGS))
        ours = bound * (rng.uniform(0.5, 1.0) if tries else rng.random())
        return ours if retry_after is None else min(retry_after, self.patience) + ours


class Waits:
    """Bounds waits by time-outs and the caller's stop event."""

    def __init__(self, stop: asyncio.Event | None) -> None:
        self._stop = stop
        self._task: asyncio.Task[None] | None = None
        self._scope: asyncio.Timeout | None = None

    @property
    def stopped(self) -> bool:
        """True if the caller has requested the stop."""
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
        """Bounds a block of waiting.

        Raises:
            TimeoutError: Time-out or stop; see ``stopped``.
        """
        async with asyncio.timeout(0 if self.stopped else seconds) as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None

    async def pause(self, seconds: float) -> None:
        """Sleeps, at most until the stop."""
        with contextlib.suppress(TimeoutError):
            async with self.within(seconds):
                await asyncio.Event().wait()

    async def _look(self, stop: asyncio.Event) -> None:
        await stop.wait()
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(0)
