"""Reads a Loki query to its end by pages: each line exactly once, despite late lines and equal timestamps.

Loki has no page token: the pure ``Cursor`` remembers lines within the overlap by content, which are queried again.
``Reader`` backs off while the server is busy. Errors never count as no lines; unpageable lines are a reported gap.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from rankfall.loki import LimitRefused, LokiError

SECOND: Final = 1_000_000_000
# Longest lateness of a line in nanoseconds.
OVERLAP_NS: Final = 600 * SECOND
# Longest query, nanoseconds; servers refuse over 30 days.
SPAN_NS: Final = 24 * 3600 * SECOND
# Most remembered lines, 12 bytes each plus timestamps.
MAX_SEEN: Final = 1 << 20
_ID_BYTES: Final = 12


class Entry(NamedTuple):
    """One log line.

    Attributes:
        at: Nanoseconds since the epoch.
        key: Values of the source's labels.
        text: Text as Loki stores it.
        labels: Stream labels and structured metadata.
    """

    at: int
    key: tuple[str, ...]
    text: str
    labels: dict[str, str]

    @property
    def id(self) -> bytes:
        """Identity of the line; Loki stores equal lines of a stream once."""
        found = hashlib.blake2b(f"{self.at} {len(self.key)}".encode(), digest_size=_ID_BYTES)
        for part in (*self.key, self.text):
            data = part.encode("utf-8", "surrogatepass")
            found.update(f"\n{len(data)}\n".encode())
            found.update(data)
        return found.digest()


class Window(NamedTuple):
    """Next query: the oldest ``limit`` lines from ``start`` until before ``end``."""

    start: int
    end: int
    limit: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """State with which a cursor continues in another process.

    Attributes:
        mark: All lines before it are read.
        forgotten: Newest forgotten timestamp; not queried again.
        seen: Lines in the overlap as (timestamp, id), in reading order.
        late: Number of lines that arrived behind the mark.
    """

    mark: int
    forgotten: int = -1
    seen: tuple[tuple[int, bytes], ...] = ()
    late: int = 0

    @classmethod
    def starting_at(cls, at: int) -> State:
        """Returns a state that ignores lines before ``at``."""
        return cls(mark=at, forgotten=at - 1)


class Cursor:
    """Cursor of one query.

    Call ``begin`` for a pass; while ``window`` returns a range, query it and ``take`` the page.

    Args:
        state: Earlier state, or only a ``mark``.
        overlap_ns: Nanoseconds before the mark at which a pass starts.
        limit: Lines per page.
        most: Largest limit that the server accepts.
        max_seen: Most remembered lines; many times a page.

    Attributes:
        limit: Lines per page; may be lowered.
        stuck_at: Nanosecond with more lines than a page, or None.
    """

    def __init__(
        self,
        state: State,
        *,
        overlap_ns: int = OVERLAP_NS,
        limit: int = 1000,
        most: int = 5000,
        max_seen: int = MAX_SEEN,
    ) -> None:
        self.limit = limit
        self.stuck_at: int | None = None
        self._most = most
        # The newest line that was read lies before the mark.
        self._overlap = overlap_ns + 1
        self._max_seen = max_seen
        self._mark = state.mark
        self._forgotten = state.forgotten
        self._late = state.late
        self._seen: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self._next: int | None = None
        self._end = self._settled = 0
        self._wide = False
        self._began = state.mark
        self._remember(state.seen)

    @property
    def mark(self) -> int:
        """The ``mark`` of the state."""
        return self._mark

    @property
    def late(self) -> int:
        """The ``late`` count of the state."""
        return self._late

    def state(self) -> State:
        """Returns the state to store."""
        return State(mark=self._mark, forgotten=self._forgotten, seen=tuple(self._order), late=self._late)

    def begin(self, end: int, *, overlap_ns: int | None = None, settled: int | None = None) -> None:
        """Starts a pass over all lines stored now, up to ``end``.

        ``settled``: the mark stays before this time, because earlier lines may still arrive. ``overlap_ns`` shortens
        the overlap.
        """
        overlap = self._overlap if overlap_ns is None else min(overlap_ns + 1, self._overlap)
        self._next = max(0, self._mark - overlap, self._forgotten + 1)
        self._end = end
        self._settled = end if settled is None else settled
        self._wide = False
        self._began = self._mark

    def window(self) -> Window | None:
        """Returns the next range; None if over or stuck."""
        if self._next is None or self.stuck_at is not None:
            return None
        if self._next >= self._end:
            self._next = None
            return None
        limit = max(self.limit, self._most) if self._wide else self.limit
        return Window(self._next, min(self._end, self._next + SPAN_NS), limit)

    def take(self, page: Sequence[Entry], window: Window) -> list[Entry]:
        """Returns a page's new lines, ordered by timestamp."""
        ordered = sorted(page, key=lambda one: one.at)
        new: dict[bytes, Entry] = {}
        for entry in ordered:
            found = entry.id
            if found not in self._seen:
                new.setdefault(found, entry)
        self._late += sum(1 for one in new.values() if one.at < self._began)
        if len(page) < window.limit:
            self._next = window.end
            self._wide = False
        elif ordered[-1].at > window.start:
            # More lines may share this timestamp.
            self._next = ordered[-1].at
            self._wide = False
        elif self._wide or window.limit >= self._most:
            self.stuck_at = window.start
        else:
            self._wide = True
        self._mark = max(self._mark, min(self._next or 0, self._settled))
        self._remember((entry.at, found) for found, entry in new.items())
        return list(new.values())

    def skip(self) -> None:
        """Continues after the stuck nanosecond; the caller reports the loss."""
        if self.stuck_at is not None:
            self._next = self.stuck_at + 1
            self._mark = max(self._mark, min(self._next, self._settled))
            self.stuck_at = None
            self._wide = False

    def most(self, limit: int) -> None:
        """Lowers the limit to the server's."""
        self._most = self.limit = max(1, min(self.limit, limit))
        self._wide = False

    def _remember(self, ids: Iterable[tuple[int, bytes]]) -> None:
        for at, found in ids:
            if found not in self._seen:
                self._seen[found] = at
                self._order.append((at, found))
        horizon = self._mark - self._overlap
        # Reading order: late lines are forgotten later.
        while self._order and (self._order[0][0] < horizon or len(self._order) > self._max_seen):
            at, found = self._order.popleft()
            del self._seen[found]
            if at >= horizon:
                # A repeated query would return the line as new.
                self._forgotten = max(self._forgotten, at)


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
