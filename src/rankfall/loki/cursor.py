"""Cursor of one Loki query: each line exactly once, despite late lines and equal timestamps.

Pure. Loki has no page token and no order of arrival, so lines read within overlap_ns are remembered by
content and each pass starts that far behind the mark; the page after a full one starts at the timestamp
where that one ended. More lines in one nanosecond than a page holds are reported (stuck_at), never skipped
silently.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

SECOND: Final = 1_000_000_000
# How late a line may be stored and still be found.
OVERLAP_NS: Final = 600 * SECOND
# Longest span of one query; servers refuse more than 30 days.
SPAN_NS: Final = 24 * 3600 * SECOND
# Lines remembered at most, 12 bytes each and their stamps: where more came within the overlap, it is shortened to them.
MAX_SEEN: Final = 1 << 20
_ID_BYTES: Final = 12


class Entry(NamedTuple):
    """One line.

    Attributes:
        at: its stamp, nanoseconds since the epoch.
        key: what tells its source from others: values of labels that were chosen, never all, because Loki adds some of its own.
        text: as Loki has it.
        labels: of its stream, and its structured metadata.
    """

    at: int
    key: tuple[str, ...]
    text: str
    labels: dict[str, str]

    @property
    def id(self) -> bytes:
        """The same for the same line, whatever page brings it. Loki itself stores one stamp and text of a stream once."""
        found = hashlib.blake2b(f"{self.at} {len(self.key)}".encode(), digest_size=_ID_BYTES)
        for part in (*self.key, self.text):
            data = part.encode("utf-8", "surrogatepass")
            found.update(f"\n{len(data)}\n".encode())
            found.update(data)
        return found.digest()


class Window(NamedTuple):
    """What to ask for next: from ``start`` (included) to ``end`` (not), the oldest ``limit`` lines."""

    start: int
    end: int
    limit: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a cursor needs to go on in another process.

    Attributes:
        mark: all that was stored with stamps before it was read at some time.
        forgotten: newest stamp of a line that is no longer remembered: nothing up to it is asked for again.
        seen: lines at or after ``mark`` less the overlap that were read, as (stamp, id), in the order of reading.
        late: lines so far whose stamp lay before the mark when they came.
    """

    mark: int
    forgotten: int = -1
    seen: tuple[tuple[int, bytes], ...] = ()
    late: int = 0

    @classmethod
    def starting_at(cls, at: int) -> State:
        """Nothing was read, and nothing before ``at`` is wanted."""
        return cls(mark=at, forgotten=at - 1)


class Cursor:
    """One query's cursor.

    Use: ``begin`` a pass, then while ``window`` gives one, ask for it and ``take`` the page. What ``take`` gives is new.

    Args:
        state: of before, or where to begin: only ``mark``.
        overlap_ns: how far behind the mark a pass begins.
        limit: lines of a page.
        most: the server's largest limit, for many lines of one nanosecond.
        max_seen: lines remembered at most; many times a page.

    Attributes:
        limit: may be lowered at any time, when the server wants it.
        stuck_at: this nanosecond holds more lines than one page can; ``skip`` leaves the rest of it out.
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
        self._overlap = overlap_ns
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
        """As in the state."""
        return self._mark

    @property
    def late(self) -> int:
        """As in the state."""
        return self._late

    def state(self) -> State:
        """To be kept."""
        return State(mark=self._mark, forgotten=self._forgotten, seen=tuple(self._order), late=self._late)

    def begin(self, end: int, *, overlap_ns: int | None = None, settled: int | None = None) -> None:
        """Begin a pass over all that is there now.

        Args:
            end: stamps from here on are left for later passes.
            settled: the mark does not go beyond this stamp, where ``end`` lies ahead of the clock: what is stored up to it may still come late.
            overlap_ns: less than the cursor's own for a quick look between the thorough ones.
        """
        overlap = self._overlap if overlap_ns is None else min(overlap_ns, self._overlap)
        self._next = max(0, self._mark - overlap, self._forgotten + 1)
        self._end = end
        self._settled = end if settled is None else settled
        self._wide = False
        self._began = self._mark

    def window(self) -> Window | None:
        """What to ask for next; None when the pass is over, or stuck."""
        if self._next is None or self.stuck_at is not None:
            return None
        if self._next >= self._end:
            self._next = None
            return None
        limit = max(self.limit, self._most) if self._wide else self.limit
        return Window(self._next, min(self._end, self._next + SPAN_NS), limit)

    def take(self, page: Sequence[Entry], window: Window) -> list[Entry]:
        """The new lines of a page, in the order of their stamps.

        Args:
            page: all that the server gave, in any order, none outside the window.
            window: that it was asked for.
        """
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
            # The newest stamp of the page may go on behind it.
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
        """Go on behind the nanosecond that is stuck; what more it holds is lost, and to be said."""
        if self.stuck_at is not None:
            self._next = self.stuck_at + 1
            self._mark = max(self._mark, min(self._next, self._settled))
            self.stuck_at = None
            self._wide = False

    def most(self, limit: int) -> None:
        """The server gives so many lines at once at most."""
        self._most = self.limit = max(1, min(self.limit, limit))
        self._wide = False

    def _remember(self, ids: Iterable[tuple[int, bytes]]) -> None:
        for at, found in ids:
            if found not in self._seen:
                self._seen[found] = at
                self._order.append((at, found))
        horizon = self._mark - self._overlap
        # In the order of reading: late lines stand behind older ones and are forgotten a little later.
        while self._order and (self._order[0][0] < horizon or len(self._order) > self._max_seen):
            at, found = self._order.popleft()
            del self._seen[found]
            if at >= horizon:
                # Asked for again it would come as new.
                self._forgotten = max(self._forgotten, at)
