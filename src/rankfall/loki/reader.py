"""Reads one Loki query to its end, page by page, with back-off while the server is busy.

A passing error never counts as no lines: the cursor stays and the wait doubles with jitter, never below
Retry-After. Lines that cannot be paged are reported as a gap and left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from rankfall.loki.cursor import Cursor, Entry
from rankfall.loki.errors import LimitRefused, LokiError

FIRST_S: Final = 0.5
MOST_S: Final = 30.0
# Longest ``Retry-After`` that is waited for in one piece, seconds.
ASKED_S: Final = 300.0
# How long a server may fail without a break, by default, seconds.
PATIENCE_S: Final = 60.0


class PageSource(Protocol):
    """What gives pages: :class:`rankfall.loki.client.Loki`."""

    def query_range(self, query: str, *, start: int, end: int, limit: int) -> Awaitable[list[Entry]]:
        """The oldest ``limit`` lines of a range."""
        ...


class Reader:
    """One query.

    Args:
        loki: gives pages.
        query: in Loki's language.
        cursor: where it stands.
        trouble: told why it waits, once for each time.
        on_stuck: told of a nanosecond that holds more lines than can be had; the rest of it is lost.
        patience_s: how long the server may fail without a break; None = for ever.
    """

    def __init__(
        self,
        loki: PageSource,
        query: str,
        cursor: Cursor,
        *,
        trouble: Callable[[LokiError], None],
        on_stuck: Callable[[int], None],
        patience_s: float | None = PATIENCE_S,
    ) -> None:
        self.cursor = cursor
        self._loki = loki
        self._query = query
        self._trouble = trouble
        self._on_stuck = on_stuck
        self._patience_s = patience_s

    async def read(
        self, end: int, *, overlap_ns: int | None = None, settled: int | None = None
    ) -> AsyncIterator[list[Entry]]:
        """One pass: what is new, a page at a time. The cursor's state is that after the page that was given.

        Args:
            end: stamps from here on are left for later passes, nanoseconds since the epoch.
            overlap_ns: as :meth:`Cursor.begin`.
            settled: as there.

        Raises:
            LokiError: it does not pass, or lasted too long. The cursor stands where it stood.
        """
        cursor = self.cursor
        cursor.begin(end, overlap_ns=overlap_ns, settled=settled)
        while (window := cursor.window()) is not None or cursor.stuck_at is not None:
            if window is None:
                if cursor.stuck_at is not None:
                    self._on_stuck(cursor.stuck_at)
                cursor.skip()
                continue
            try:
                page = await self._page(window.start, window.end, window.limit)
            except LimitRefused as error:
                if window.limit <= 1:
                    raise
                cursor.most(min(window.limit - 1, error.most if error.most is not None else window.limit // 2))
                continue
            new = cursor.take(page, window)
            if new:
                yield new

    async def _page(self, start: int, end: int, limit: int) -> list[Entry]:
        pause, waited = FIRST_S, 0.0
        while True:
            try:
                return await self._loki.query_range(self._query, start=start, end=end, limit=limit)
            except LokiError as error:
                wait = max(pause * random.uniform(0.5, 1.0), min(error.retry_after or 0.0, ASKED_S))  # noqa: S311 - guards nothing
                if not error.passing or (self._patience_s is not None and waited + wait > self._patience_s):
                    raise
                self._trouble(error)
            await asyncio.sleep(wait)
            waited += wait
            pause = min(MOST_S, 2.0 * pause)
