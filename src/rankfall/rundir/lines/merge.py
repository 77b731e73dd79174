"""Merges the lines of many streams by arrival time: all, or the last N."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from rankfall.rundir.lines.query import (
    ErrorLines,
    LineQuery,
    Matcher,
    Ranges,
    Wanted,
    check,
    chosen_streams,
    error_lines_of,
    known_ranges,
    wanted_ranks,
)
from rankfall.rundir.lines.reader import MAX_LINE, Backward, Forward, Span, lines_backward
from rankfall.rundir.streams.content import content_size
from rankfall.rundir.streams.files import StreamName, StreamOrder

if TYPE_CHECKING:
    from rankfall.rundir.directory import RunDir

# Appended to a displayed line beyond MAX_LINE.
CUT_MARK: Final = b" [rankfall: line cut at 1 MiB, the record has the rest]"
# A line without a timestamp is never the earliest.
UNKNOWN: Final = 1 << 63
_MEMORY: Final = 64 << 20
LineOrder: TypeAlias = tuple[int, StreamOrder]


def line_order(at: int | None, stream: StreamOrder) -> LineOrder:
    """Returns the sort key of a line: its timestamp, then its stream (:attr:`StreamName.order`).

    Lines without a timestamp are last. The key contains no rank, so a late rank moves no line.
    """
    return UNKNOWN if at is None else at, stream


class Line(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a stream.

    Attributes:
        at: Chunk's arrival, nanoseconds since the epoch, or None.
        stream: Path relative to the run directory.
        offset: Bytes of the stream before the line.
        out: True for stdout, False for stderr.
        data: Without LF; truncated lines end with ``CUT_MARK``.
        truncated: True if ``data`` is only its beginning.
        late: Yielded after a line that is over two seconds newer.
    """

    at: int | None
    rank: int | None
    slot: int
    role: str
    attempt: int
    stream: str
    offset: int
    out: bool
    data: bytes
    truncated: bool = False
    late: bool = False


class Block(NamedTuple):
    """Adjacent lines of one rank and one timestamp in one stream.

    Attributes:
        first: First line; its ``data`` is empty if several.
        data: All lines as displayed, with LFs.
    """

    first: Line
    data: bytes

    def lines(self) -> Iterator[Line]:
        """Yields each line."""
        if self.first.data or self.data == b"\n":
            yield self.first
            return
        offset = self.first.offset
        for text in self.data[:-1].split(b"\n"):
            yield msgspec.structs.replace(self.first, offset=offset, data=text)
            offset += len(text) + 1


def block_of(line: Line) -> Block:
    """Returns one line as a block."""
    return Block(line, line.data + b"\n")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The selected part of one stream.

    ``errors`` selects error lines and has state: lines pass once, in order.
    """

    name: StreamName
    ranges: Ranges
    wanted: Wanted
    unranked: bool
    since: int | None
    until: int | None
    matches: Matcher
    errors: ErrorLines | None = None

    @property
    def useful(self) -> bool:
        """True if the query may select some byte of the stream."""
        ranges = self.ranges
        return ranges.any_in(self.wanted) or (self.unranked and (not ranges.simple or ranges.rank is None))

    def covers(self, at: int | None) -> bool:
        """True for a selected or unknown time."""
        if at is None:
            return True
        return (self.since is None or at >= self.since) and (self.until is None or at <= self.until)

    def line(self, at: int | None, offset: int, data: bytes, *, cut: bool, late: bool = False) -> Line | None:
        """Line if the query selects it, else None."""
        rank = self.ranges.at(offset)
        if rank is None:
            if not self.unranked:
                return None
        elif rank not in self.wanted:
            return None
        if not self.covers(at):
            return None
        if not self.matches(data):
            return None
        return self._line(at, rank, offset, data + CUT_MARK if cut else data, cut=cut, late=late)

    def _line(
        self, at: int | None, rank: int | None, offset: int, data: bytes, *, cut: bool = False, late: bool = False
    ) -> Line:
        name = self.name
        return Line(
            at=at,
            rank=rank,
            slot=name.slot,
            role=name.role,
            attempt=name.attempt,
            stream=name.stream,
            offset=offset,
            out=name.out,
            data=data,
            truncated=cut,
            late=late,
        )

    def lines(self, span: Span, *, late: bool = False) -> Iterator[Line]:
        """Yields the selected lines of a span."""
        if not self.covers(span.at):
            return
        picked = None if self.errors is None else self.errors.pick(span.data)
        if span.cut:
            texts = [span.data]
        else:
            texts = span.data.split(b"\n")
            if not texts[-1]:
                texts.pop()
        offset = span.offset
        for text in texts:
            chosen = picked is None or offset - span.offset in picked
            line = self.line(span.at, offset, text, cut=span.cut, late=late) if chosen else None
            offset += len(text) + 1
            if line is not None:
                yield line

    def blocks(self, span: Span, *, late: bool = False) -> Iterator[Block]:
        """Yields the selected lines of a span in blocks as large as possible."""
        if span.cut or self.errors is not None or not self.matches.everything:
            yield from map(block_of, self.lines(span, late=late))
            return
        if not self.covers(span.at):
            return
        offset = span.offset
        for rank, data in self.ranges.pieces(offset, span.data):
            if self.unranked if rank is None else rank in self.wanted:
                first = self._line(span.at, rank, offset, b"", late=late)
                yield Block(first, data if data.endswith(b"\n") else data + b"\n")
            offset += len(data)


class MergeInput:
    """A stream that is being read, with its spans that were read and not yielded yet."""

    def __init__(self, number: int, name: StreamName, cursor: Forward) -> None:
        self.number = number
        self.cursor = cursor
        self._stream = name.order
        self.spans: deque[Span] = deque()
        self.problem: str | None = None

    @property
    def order(self) -> LineOrder:
        """Sort key of the next lines."""
        return line_order(self.spans[0].at, self._stream)

    def fill(self, *, final: bool) -> bool:
        """Reads more if no span remains; returns True if there is one."""
        if not self.spans:
            try:
                self.spans.extend(self.cursor.take(final=final))
                self.problem = None
            except OSError as error:
                self.problem = f"{self.cursor.path} cannot be read: {error.strerror or error}"
        return bool(self.spans)


def merge(feeds: list[MergeInput]) -> Iterator[tuple[int, Span]]:
    """Yields the spans of all inputs with their input's number, in the order of lines.

    Pieces of one long line remain adjacent.
    """
    by_number = {source.number: source for source in feeds}
    heap = [(source.order, source.number) for source in feeds if source.fill(final=True)]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        source = by_number[number]
        while source.fill(final=True):
            span = source.spans.popleft()
            yield number, span
            if not (span.cut and source.cursor.whole):
                break
        if source.fill(final=True):
            heapq.heappush(heap, (source.order, number))


def read_lines(run_dir: RunDir, query: LineQuery, *, problems: list[str] | None = None) -> Iterator[Line]:
    """Returns the current lines of a run in order (:func:`line_order`).

    Raises:
        UsageError: Invalid query (raised immediately).
    """
    return chain.from_iterable(block.lines() for block in read_blocks(run_dir, query, problems=problems))


def read_blocks(run_dir: RunDir, query: LineQuery, *, problems: list[str] | None = None) -> Iterator[Block]:
    """Returns :func:`read_lines` in large blocks.

    Raises:
        UsageError: The query is invalid.
    """
    check(query)
    notes = problems if problems is not None else []
    views = open_view(run_dir, query, notes)
    if query.tail is not None:
        ends = {view.name.stream: _size(view) for view in views}
        return map(block_of, tail_of(views, query.tail, ends=ends, problems=notes))
    return _all_of(views, notes)


def open_view(run_dir: RunDir, query: LineQuery, problems: list[str]) -> list[View]:
    """Selected parts of all streams on disk, in the order of their names."""
    with run_dir.reader() as tables:
        attempt = tables.newest_attempt() if query.attempt is None else query.attempt
        number = None if attempt == "all" else attempt
        names = chosen_streams(run_dir, query, attempt=number, since=0, problems=problems)
        if attempt is None and names:
            # Without tables, the newest folder is the newest attempt.
            names = [name for name in names if name.attempt == names[-1].attempt]
        ranges = known_ranges(run_dir, tables, number, names)
        wanted = {n: wanted_ranks(run_dir, tables, query, n) for n in {name.attempt for name in names}}
        problems.extend(tables.problems)
    matches = Matcher(query.grep)
    errors = error_lines_of(run_dir, problems=problems) if query.level is not None else None
    found = []
    for name in names:
        view = View(
            name=name,
            ranges=ranges.get(name.stream, Ranges()),
            wanted=wanted[name.attempt],
            unranked=query.unranked,
            since=query.since,
            until=query.until,
            matches=matches,
            errors=errors() if errors is not None else None,
        )
        if view.useful:
            found.append(view)
    return found


def _all_of(views: list[View], problems: list[str], *, ends: dict[str, int] | None = None) -> Iterator[Block]:
    block = _MEMORY // max(1, len(views))
    ends = ends or {}
    feeds = [
        MergeInput(number, view.name, cursor_for(view, block=block, end=ends.get(view.name.stream)))
        for number, view in enumerate(views)
    ]
    for number, span in merge(feeds):
        yield from views[number].blocks(span)
    problems.extend(source.problem for source in feeds if source.problem)


def cursor_for(view: View, *, block: int = MAX_LINE, end: int | None = None) -> Forward:
    """Returns a reader of the stream from its beginning, or from the first chunk that is new enough."""
    path = view.name.path
    if view.since is not None:
        cursor = Forward(path, block=block)
        offset = cursor.index.offset_since(view.since)
        if offset:
            # One byte earlier: an LF there means that a line begins with the chunk.
            return Forward(path, start=offset - 1, skip=True, block=block, end=end)
    return Forward(path, block=block, end=end)


def _size(view: View) -> int:
    try:
        return content_size(view.name.path)
    except OSError:
        return 0


def tail_of(views: list[View], count: int, *, ends: dict[str, int], problems: list[str]) -> list[Line]:
    """Returns the last ``count`` selected lines before the given ends of the streams, in the order of lines.

    Error lines need reading forward: earlier text decides about tracebacks.
    """
    if any(view.errors is not None for view in views):
        found = deque[Line](maxlen=count)
        found.extend(block.first for block in _all_of(views, problems, ends=ends))
        return list(found)
    block = min(65536, _MEMORY // max(1, len(views)))
    readers = [_backward(view, ends[view.name.stream], block, problems) for view in views]
    backward = heapq.merge(*readers, key=itemgetter(0), reverse=True)
    # Not one line more: it could be huge.
    return [line for _, line in islice(backward, count)][::-1]


def _backward(view: View, end: int, block: int, problems: list[str]) -> Iterator[tuple[LineOrder, Line]]:
    stream = view.name.order
    try:
        for found in lines_backward(view.name.path, end=end, block=block):
            if _too_old(found, view.since):
                return
            line = view.line(found.at, found.offset, found.data, cut=found.cut)
            if line is not None:
                yield line_order(line.at, stream), line
    except OSError as error:
        problems.append(f"{view.name.path} cannot be read: {error.strerror or error}")


def _too_old(found: Backward, since: int | None) -> bool:
    return since is not None and found.at is not None and found.at < since
