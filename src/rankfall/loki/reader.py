"""Reads a Loki query to its end by pages, with back-off while the server is busy.

Errors never count as no lines. Unpageable lines are a reported gap.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from rankfall.loki import LimitRefused, LokiError
from rankfall.loki.cursor import Cursor, Entry

FIRST_S: Final = 0.5
MOST_S: Final = 30.0
# Longest honored ``Retry-After``, seconds.
ASKED_S: Final = 300.0
# Default seconds without a success.
PATIENCE_S: Final = 60.0


class PageSource(Protocol):
    """Source of pages, implemented by :class:`rankfall.loki.client.Loki`."""

    def query_range(self, query: str, *, start: int, end: int, limit: int) -> Awaitable[list[Entry]]:
        """Returns the oldest ``limit`` lines of a range."""
        ...


class Reader:
    """Reader of one query; gives up after ``patience_s`` seconds without success (None = never).

    ``trouble`` is called before each wait, ``on_stuck`` with a nanosecond whose further lines are lost.
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
        """Runs one pass up to ``end``; yields new lines by page, with the cursor after that page.

        Raises:
            LokiError: A permanent error, or no answer for ``patience_s``; the cursor stays.
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
