"""Follows a run's lines live: each once, ordered by timestamp within a short hold.

Reads files alone, without effect on others. A rank's stream waits for its rank: a displayed line cannot change.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rankfall.rundir.lines.merge import Block, Line, LineOrder, MergeInput, View, block_of, cursor_for, tail_of
from rankfall.rundir.lines.query import (
    LineQuery,
    Matcher,
    Ranges,
    Wanted,
    check,
    error_lines_of,
    known_ranges,
    of_query,
    wanted_ranks,
)
from rankfall.rundir.lines.reader import MIN_BLOCK, Forward, Span, lines_backward
from rankfall.rundir.streams.content import content_size, read_bytes
from rankfall.rundir.streams.files import StreamFinder, StreamName

if TYPE_CHECKING:
    from rankfall.rundir.directory import RunDir

HOLD_S: Final = 0.2
# Seconds that an unfiltered view waits for a stream's rank.
RANK_WAIT_S: Final = 5.0
# A line that is older than an earlier one by more is late. Less is usual between ranks that print the same, on a busy
# machine too.
TOLERANCE_S: Final = 2.0
# Longest interval between table reads: a change within one file system clock tick is invisible.
_REREAD_S: Final = 1.0
_SETTLED_S: Final = 3.0
# Shortest interval: a large job's supervisor writes permanently.
_PAUSE_S: Final = 0.1
_NS: Final = 1_000_000_000
_BLOCK: Final = 256 << 10
# Seconds between polls of all streams if no write is counted: another process may write too.
_UNCOUNTED_S: Final = 10.0
# Bytes read and not yet yielded.
_MEMORY: Final = 64 << 20
_MAX_PROBLEMS: Final = 100


class Piece(NamedTuple):
    """Adjacent lines of one timestamp; ``late``: lines newer by over ``TOLERANCE_S`` were yielded before."""

    view: View
    span: Span
    late: bool


class LineTail:
    """One viewer of one run.

    ``hold``: seconds that a line waits for earlier ones. ``rank_wait``: seconds that a stream waits for its rank; None =
    until its attempt ends. ``starts``: offsets, by stream, at which to begin. ``whole``: long lines in pieces, for
    :meth:`pieces` alone. ``writes``: number of stored pieces, or None; while it is constant, :meth:`blocks` polls
    no stream. ``problems``: messages about unreadable data.

    Raises:
        UsageError: The query is invalid.
    """

    def __init__(
        self,
        run_dir: RunDir,
        query: LineQuery,
        *,
        clock: Callable[[], int] = time.time_ns,
        hold: float = HOLD_S,
        rank_wait: float | None = RANK_WAIT_S,
        starts: Mapping[str, int] | None = None,
        whole: bool = False,
        writes: Callable[[], int | None] | None = None,
    ) -> None:
        check(query)
        self.problems: list[str] = []
        self._run_dir = run_dir
        self._query = query
        self._clock = clock
        self._hold = int(hold * _NS)
        self._rank_wait = None if rank_wait is None else int(rank_wait * _NS)
        self._starts = starts or {}
        self._whole = whole
        self._writes = writes
        self._counted: int | None = None
        self._polled_at = 0
        self._ended: set[int] = set()
        self._matches = Matcher(query.grep)
        self._errors = error_lines_of(run_dir, problems=self.problems) if query.level is not None else None
        self._since_attempt: int | None = None
        self._waiting: dict[str, tuple[StreamName, int]] = {}
        self._views: list[View] = []
        self._feeds: list[MergeInput] = []
        self._started: set[str] = set()
        # Due time, order and number of each input.
        self._heap: list[tuple[int, LineOrder, int]] = []
        self._idle: set[int] = set()
        self._given = 0
        self._current: Iterator[Line] = iter(())
        self._finder = StreamFinder(run_dir.logs_dir, attempt=query.attempt if isinstance(query.attempt, int) else None)
        self._found: list[StreamName] = []
        self._names: list[StreamName] = []
        self._attempts: frozenset[int] = frozenset()
        self._seen: object = None
        self._seen_at = self._read_at = 0
        # The stream selection must run again.
        self._open = True
        # Some stream is not displayed, or its rank unknown.
        self._unknown = True
        self._ranges: dict[str, Ranges] = {}
        self._wanted: dict[int, Wanted] = {}

    def poll(self, *, limit: int = 5000) -> list[Line]:
        """Returns at most ``limit`` due lines; the next call returns further ones."""
        now = self._clock()
        history = self._refresh(now, patient=True)
        bound = now - self._hold
        found: list[Line] = list(history)
        if len(found) >= limit:
            return found
        for line in self._ready(now, bound=bound, final=False):
            found.append(line)
            if len(found) >= limit:
                break
        return found

    def blocks(self, *, final: bool = False) -> Iterator[Block]:
        """Yields all due lines in large blocks; with ``final`` all remaining.

        An object yields only one of lines, blocks and pieces.
        """
        now = self._clock()
        if not final and self._nothing_new(now):
            return
        yield from map(block_of, self._refresh(now, patient=not final))
        for view, span, late in self._due(now, bound=None if final else now - self._hold, final=final):
            yield from view.blocks(span, late=late)

    def _nothing_new(self, now: int) -> bool:
        """True if nothing was stored since the last poll, which left no line and no stream waiting."""
        # Before the poll: what is stored meanwhile counts for the next one.
        writes = self._writes() if self._writes is not None else None
        known = writes is not None and writes == self._counted and not self._heap and not self._waiting
        if known and 0 <= now - self._polled_at < _UNCOUNTED_S * _NS:
            return True
        self._counted, self._polled_at = writes, now
        return False

    def pieces(self, *, final: bool = False) -> Iterator[Piece]:
        """Yields all due data unchanged; with ``final`` all remaining."""
        now = self._clock()
        self._refresh(now, patient=not final)
        yield from self._due(now, bound=None if final else now - self._hold, final=final)

    def drain(self) -> Iterator[Line]:
        """Yields all remaining lines without a hold, when no more will be written.

        Includes last lines without LF.
        """
        now = self._clock()
        yield from self._refresh(now, patient=False)
        yield from self._ready(now, bound=None, final=True)

    def unfinished(self) -> Iterator[Line]:
        r"""Yields the end of each line without LF, as a line: a bar, redrawn after ``\r``; ``poll`` returns it later."""
        for view, source in zip(self._views, self._feeds, strict=True):
            cursor = source.cursor
            with contextlib.suppress(OSError):
                data = cursor.unfinished()
                line = view.line(None, cursor.offset, data, cut=False) if data else None
                if line is not None:
                    yield line

    def ranges_of(self, stream: str) -> Ranges:
        """Currently known ranges of a stream's ranks."""
        return self._ranges.get(stream, Ranges())

    def again(self, stream: str, *, first: int, last: int) -> Iterator[Line]:
        """Yields lines that were yielded before, now with the known ranks.

        ``first`` and ``last`` are the offsets of the first and last line.
        """
        view = next(view for view in self._views if view.name.stream == stream)
        cursor = Forward(view.name.path, start=first, block=_BLOCK)
        while spans := cursor.take(final=True):
            for line in chain.from_iterable(view.lines(span, late=self._is_late(span.at)) for span in spans):
                if line.offset > last:
                    return
                yield line

    def _ready(self, now: int, *, bound: int | None, final: bool) -> Iterator[Line]:
        """Yields lines whose hold is over; the next call yields untaken ones."""
        yield from _kept(self._current)
        for view, span, late in self._due(now, bound=bound, final=final):
            self._current = view.lines(span, late=late)
            yield from _kept(self._current)

    def _due(self, now: int, *, bound: int | None, final: bool) -> Iterator[Piece]:
        """Yields spans whose hold is over, in the order of lines."""
        for number in list(self._idle):
            self._fill(number, now, final=final)
        while self._heap and (bound is None or self._heap[0][0] <= bound):
            due, _, number = heapq.heappop(self._heap)
            span = self._feeds[number].spans.popleft()
            late = self._is_late(due)
            self._given = max(self._given, due)
            self._idle.add(number)
            self._fill(number, now, final=final)
            yield Piece(self._views[number], span, late)

    def _is_late(self, at: int | None) -> bool:
        return at is None or at < self._given - round(TOLERANCE_S * _NS)

    def _fill(self, number: int, now: int, *, final: bool) -> None:
        source = self._feeds[number]
        if source.fill(final=final):
            self._idle.discard(number)
            at = source.spans[0].at
            # No line is later than its reading: a clock ahead must not delay it.
            heapq.heappush(self._heap, (now if at is None else min(at, now), source.order, number))
        elif source.problem:
            self._note(source.problem)

    def _refresh(self, now: int, *, patient: bool) -> list[Line]:
        """Finds new streams and ranks; first also returns the last existing lines."""
        first = self._since_attempt is None
        problems: list[str] = []
        found = self._finder.find(since=self._since_attempt or 0, problems=problems)
        for problem in problems:
            self._note(problem)
        if found is not self._found:
            self._found, self._names, self._open = found, of_query(found, self._query), True
            self._attempts = frozenset(name.attempt for name in self._names)
        # After listing the folders, to include data stored before a stream's first byte.
        self._read_tables(now, patient=patient)
        if not self._open and patient:
            return []
        self._open = False
        for name in self._names:
            if name.stream not in self._started and name.attempt >= (self._since_attempt or 0):
                self._waiting.setdefault(name.stream, (name, now))
        fresh = [
            view
            for name, since in list(self._waiting.values())
            if (view := self._decide(name, waited=None if not patient else now - since)) is not None
        ]
        history: list[Line] = []
        starts: dict[str, int] = {}
        if first and self._query.tail is not None:
            starts = {view.name.stream: _last_line_end(view) for view in fresh}
            history = tail_of(fresh, self._query.tail, ends=starts, problems=self.problems)
            self._given = max((line.at for line in history if line.at is not None), default=0)
        for view in fresh:
            start = starts.get(view.name.stream, self._starts.get(view.name.stream))
            # All may have much data simultaneously.
            block = max(MIN_BLOCK, min(_BLOCK, _MEMORY // (len(self._feeds) + 1)))
            if start is None and not self._whole:
                cursor = cursor_for(view, block=block)
            else:
                cursor = Forward(view.name.path, start=start or 0, block=block, whole=self._whole)
            self._start(view, cursor)
        self._unknown = bool(self._waiting) or any(
            view.name.of_a_rank and not view.ranges.known for view in self._views
        )
        return history

    def _start(self, view: View, cursor: Forward) -> None:
        number = len(self._feeds)
        self._feeds.append(MergeInput(number, view.name, cursor))
        self._views.append(view)
        self._idle.add(number)
        self._started.add(view.name.stream)
        del self._waiting[view.name.stream]

    def _decide(self, name: StreamName, *, waited: int | None) -> View | None:
        """Returns a selected stream's view; None while it waits for its rank."""
        ranges = self._ranges.get(name.stream, Ranges())
        if name.of_a_rank and not ranges.known and waited is not None and self._waits(name, waited):
            self._open = True
            return None
        view = View(
            name=name,
            ranges=ranges,
            wanted=self._wanted.get(name.attempt, Wanted(ranks=None if not self._query.by_rank else frozenset())),
            unranked=self._query.unranked,
            since=self._query.since,
            until=self._query.until,
            matches=self._matches,
            errors=self._errors() if self._errors is not None else None,
        )
        return view if view.useful else None

    def _waits(self, name: StreamName, waited: int) -> bool:
        return name.attempt not in self._ended if self._rank_wait is None else waited < self._rank_wait

    def _read_tables(self, now: int, *, patient: bool) -> None:
        names, attempts = self._names, self._attempts
        seen = (self._run_dir.tables_mark(), attempts)
        age = now - self._read_at
        if seen != self._seen:
            self._seen_at = now
        # Unknown ranks may be in records.
        settled = not self._unknown and self._read_at - self._seen_at >= _SETTLED_S * _NS
        fresh = 0 <= age < _PAUSE_S * _NS or (seen == self._seen and (settled or 0 <= age < _REREAD_S * _NS))
        # The final read must include data of the same clock tick.
        if self._since_attempt is not None and patient and fresh:
            return
        self._seen, self._read_at, self._open = seen, now, True
        with self._run_dir.reader() as tables:
            newest = tables.newest_attempt()
            if self._since_attempt is None:
                self._since_attempt = (newest or 0) if self._query.attempt is None else 0
            for number in attempts:
                if number < self._since_attempt:
                    continue
                unknown = [name for name in names if name.attempt == number and name.stream not in self._ranges]
                self._ranges.update(known_ranges(self._run_dir, tables, number, unknown))
                self._wanted[number] = wanted_ranks(self._run_dir, tables, self._query, number)
            if self._rank_wait is None:
                self._ended = {row.attempt for row in tables.attempts() if row.ended is not None}
            for problem in tables.problems:
                self._note(problem)
        for number, view in enumerate(self._views):
            self._views[number] = msgspec.structs.replace(
                view,
                ranges=self._ranges.get(view.name.stream, view.ranges),
                wanted=self._wanted.get(view.name.attempt, view.wanted),
            )

    def _note(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


def _kept(lines: Iterator[Line]) -> Iterator[Line]:
    """Yields the same lines; an early stop does not close ``lines``."""
    while (line := next(lines, None)) is not None:
        yield line


def _last_line_end(view: View) -> int:
    """Byte offset after the last complete line of the stream file; 0 if there is none."""
    try:
        size = content_size(view.name.path)
        last = next(lines_backward(view.name.path, end=size, block=4096), None)
        if last is None:
            return 0
        return size if read_bytes(view.name.path, size - 1, 1) == b"\n" else last.offset
    except OSError:
        return 0
