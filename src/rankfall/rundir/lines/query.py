"""Selects streams, bytes and lines: ranks, slots, time, pattern, and --level error.

Ranks come from tables or records, never from a guess.

Cost: of ``--level error`` time linear in bytes, even if one line repeats a mark; memory: one number a selected line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.model import RankFacts, StoreError, UsageError
from rankfall.model.patterns import Bounded, anchored, bounded
from rankfall.rundir.database import NO_RANK
from rankfall.rundir.requests import attempt_spec
from rankfall.rundir.salvage import streams as salvaged_streams
from rankfall.rundir.salvage import world_sizes
from rankfall.rundir.status import newest_round
from rankfall.rundir.streams.files import StreamName, find_streams

if TYPE_CHECKING:
    from rankfall.rundir.database import Queries
    from rankfall.rundir.directory import RunDir
    from rankfall.verdict.signatures.catalogue import Catalogue

# Prefix of a traceback's lines from launcher or logger.
_PREFIX: Final = rb"(?:\[(?:rank|default|worker|trainer|pod)\d+\]: ?)?"
_HEAD: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:  \+ Exception Group )?Traceback \(most recent call last\):", limit=1 << 30
)
_CHAINED: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:The above exception was|During handling of the above)", limit=1 << 30
)
_INDENTED: Final = anchored(_PREFIX + rb"(?:\s|$)", limit=1 << 30)
# Levels of Python's logging, glog, logfmt and JSON.
_LEVEL: Final = bounded(
    rb"\b(?:ERROR|CRITICAL|FATAL)\b|\b[EF]\d{4} \d\d:\d\d:\d\d"
    rb"|\b(?:level|lvl|severity)\"?[=:] ?\"?(?:error|critical|fatal|ERROR|CRITICAL|FATAL)\b",
    limit=1 << 30,
)
# An exception's line, and death messages of C library, kernel and shell.
_FAILURE: Final = bounded(
    rb"(?:Error|Exception|Interrupt|Exit)\b:|\bFAILED\b|\b[Ff]atal(?: Python)? error\b|\bSegmentation fault\b"
    rb"|\bCUDA (?:error|out of memory)\b|\bterminate called\b|\bKilled\b|\bAborted\b|\bNo space left on device\b",
    limit=1 << 30,
)
_LOOK: Final = 4096
_MAX_BLOCK: Final = 400


class Tracebacks:
    """Recognizes the lines of tracebacks in one stream; lines must come in their order."""

    def __init__(self) -> None:
        self._left = 0

    @property
    def inside(self) -> bool:
        """True if the next line may belong to a traceback."""
        return self._left > 0

    def take(self, line: bytes) -> Literal["frame", "words"] | None:
        """Classifies the next line as ``frame``, ``words`` (the exception's message) or None.

        ``frame`` includes heads and text between chained tracebacks.
        """
        if _HEAD.match(line) or _CHAINED.match(line):
            self._left = _MAX_BLOCK
            return "frame"
        if not self._left:
            return None
        if _INDENTED.match(line):
            self._left -= 1
            return "frame"
        self._left = 0
        return "words"

    def end(self) -> None:
        """Forgets an unfinished traceback."""
        self._left = 0


def names_failure(line: bytes) -> bool:
    """True if a line by itself names a failure."""
    return _FAILURE.search(line) is not None


class ErrorLines:
    """Selects the error lines of one stream; its chunks must come in order.

    Lines that ``catalogue`` classifies as context are no errors.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._tracebacks = Tracebacks()

    def pick(self, data: bytes) -> set[int]:
        """Offsets of error lines in whole lines."""
        found = {start for pattern in (_LEVEL, _FAILURE) for start in _lines_with(pattern, data)}
        hits = self._catalogue.scan(data, where=self._catalogue.STREAM)
        found |= {hit.line_start for hit in hits if hit.signature.role != "context"}
        if self._tracebacks.inside or _HEAD.search(data) or _CHAINED.search(data):
            offset = 0
            for line in data.split(b"\n"):
                if offset < len(data) and self._tracebacks.take(line[:_LOOK]) is not None:
                    found.add(offset)
                offset += len(line) + 1
        return found


def _lines_with(pattern: Bounded[bytes], data: bytes) -> Iterator[int]:
    """Yields the start of each line in which a pattern matches, once per line."""
    at = 0
    while (match := pattern.search(data, at)) is not None:
        yield data.rfind(b"\n", at, match.start()) + 1 or at
        at = data.find(b"\n", match.end()) + 1
        if not at:
            return


def error_lines_of(run_dir: RunDir, *, problems: list[str]) -> Callable[[], ErrorLines]:
    """Returns a factory of selectors of error lines, one for each stream; the user's signatures are included."""
    from rankfall.rundir.user_signatures import tolerant_catalogue  # noqa: PLC0415

    catalogue, problem = tolerant_catalogue(run_dir.path.parent.parent)
    if problem is not None:
        problems.append(problem)
    return lambda: ErrorLines(catalogue)


class LineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects lines. Filters narrow each other; ``ranks``, ``last`` and ``failed`` are a union.

    Attributes:
        ranks: Global ranks; None without ``last`` and ``failed`` = all.
        last: The last global rank, of the newest round.
        failed: Ranks that failed by themselves, and the rank of the verdict.
        slots: Slots; None = all.
        attempt: Number; None = the newest, and later ones; or ``all``.
        streams: Both, only stdout or only stderr.
        since: Earliest arrival, nanoseconds since the epoch; lines without a time are included.
        until: Latest arrival, in the same way.
        tail: Number of last lines in the whole result.
        level: ``error`` = error lines and whole tracebacks.
        instance: Only this start of a slot, from 0.
        grep: RE2 pattern for bytes (truncated at 1 MiB).
        include_unranked: Include lines without a rank; None = only if all ranks are selected.
    """

    ranks: frozenset[int] | None = None
    last: bool = False
    failed: bool = False
    slots: frozenset[int] | None = None
    attempt: int | Literal["all"] | None = None
    streams: Literal["all", "out", "err"] = "all"
    since: int | None = None
    until: int | None = None
    tail: int | None = None
    grep: str | None = None
    level: Literal["error"] | None = None
    instance: int | None = None
    include_unranked: bool | None = None

    @property
    def by_rank(self) -> bool:
        """True if the query selects only some ranks."""
        return self.ranks is not None or self.last or self.failed

    @property
    def unranked(self) -> bool:
        """True if the query selects lines of no rank."""
        return not self.by_rank if self.include_unranked is None else self.include_unranked


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Selected ranks of one attempt; ``ranks`` None = all.

    ``settled`` False: more ranks may be selected later.
    """

    ranks: frozenset[int] | None
    settled: bool = True

    def __contains__(self, rank: int) -> bool:
        """True if the query selects this rank."""
        return self.ranks is None or rank in self.ranks


class Ranges:
    """Ranks of one stream's bytes: (first byte, end or None, rank).

    ``settled``: if no range exists now, the stream will never get a rank.
    """

    def __init__(self, ranges: tuple[tuple[int, int | None, int], ...] = (), *, settled: bool = False) -> None:
        self.ranges = ranges
        self._settled = settled
        # Usually one rank has the whole stream.
        self.simple = not ranges or (len(ranges) == 1 and ranges[0][0] == 0 and ranges[0][1] is None)
        self.rank = ranges[0][2] if ranges and self.simple else None

    @property
    def known(self) -> bool:
        """True if any rank is available, or none ever will be."""
        return self._settled or bool(self.ranges)

    def at(self, byte: int) -> int | None:
        """Rank of the line that begins at ``byte``; None if unknown."""
        if self.simple:
            return self.rank
        for first, end, rank in reversed(self.ranges):
            if first <= byte and (end is None or byte < end):
                return rank
        return None

    def pieces(self, offset: int, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """Yields whole lines that begin at byte ``offset``, in order, split where their rank changes."""
        if self.simple:
            yield self.rank, data
            return
        begin = 0
        for bound in sorted({byte for first, end, _ in self.ranges for byte in (first, end) if byte is not None}):
            if bound <= offset + begin:
                continue
            # A line across a bound has its first byte's rank.
            end = data.find(b"\n", bound - offset - 1) + 1
            if not end or end == len(data):
                break
            yield self.at(offset + begin), data[begin:end]
            begin = end
        yield self.at(offset + begin), data[begin:]

    def any_in(self, wanted: Wanted) -> bool:
        """True if any byte has a selected rank."""
        return any(rank in wanted for _, _, rank in self.ranges)


def check(query: LineQuery) -> None:
    """Checks that a run can answer the query.

    Raises:
        UsageError: Number out of range, or not RE2.
    """
    if query.tail is not None and query.tail < 0:
        raise UsageError(f"tail {query.tail} is negative", hint="give the number of last lines, 0 or more")
    if query.instance is not None and query.instance < 0:
        raise UsageError(f"instance {query.instance} is negative", hint="count starts of a slot from 0")
    if query.attempt is not None and query.attempt != "all" and query.attempt < 1:
        raise UsageError(f"there is no attempt {query.attempt}", hint="count attempts from 1")
    matcher(query.grep)


def matcher(pattern: str | None) -> Matcher:
    """Returns a search over bytes; None matches everything.

    Raises:
        UsageError: The pattern is not RE2.
    """
    return Matcher(pattern)


class Matcher:
    """Searches bytes for a pattern, in time linear in their length."""

    def __init__(self, pattern: str | None) -> None:
        self._search = None
        if pattern is None:
            return
        import re2  # noqa: PLC0415

        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        try:
            # Byte by byte, also in text that is not UTF-8.
            self._search = re2.compile(pattern.encode(errors="surrogateescape"), options).search
        except re2.error as error:
            text = error.args[0] if error.args else error
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            raise UsageError(
                f"grep pattern {pattern[:200]!r} is not valid: {text}",
                hint="use RE2 syntax: it has no lookahead, lookbehind or back references",
            ) from None

    @property
    def everything(self) -> bool:
        """True if there is no pattern."""
        return self._search is None

    def __call__(self, data: bytes) -> bool:
        """True if ``data`` matches the pattern."""
        return self._search is None or self._search(data) is not None


def chosen_streams(
    run_dir: RunDir, query: LineQuery, *, attempt: int | None, since: int, problems: list[str] | None = None
) -> list[StreamName]:
    """Stream files on disk that may match the query, without regard to ranks."""
    return of_query(find_streams(run_dir.logs_dir, attempt=attempt, since=since, problems=problems), query)


def of_query(names: list[StreamName], query: LineQuery) -> list[StreamName]:
    """Streams that may match the query, without regard to ranks."""
    return [
        name
        for name in names
        if (query.slots is None or name.slot in query.slots)
        and (query.instance is None or name.instance == query.instance)
        and (query.streams == "all" or name.out == (query.streams == "out"))
    ]


def known_ranges(run_dir: RunDir, tables: Queries, attempt: int | None, names: list[StreamName]) -> dict[str, Ranges]:
    """Returns the known ranks by stream.

    Without a supervisor the records supply them.
    """
    found: dict[str, list[tuple[int, int | None, int]]] = {}
    # A row without a rank: not known yet, or never.
    held = tables.streams(attempt)
    rows = [row for row in held if row.rank is not None]
    never = {row.stream: Ranges(settled=True) for row in held if row.rank is None and row.proof == NO_RANK}
    mapped = {row.stream for row in rows}
    open_ones = {name.stream for name in names if name.of_a_rank and name.stream not in mapped | never.keys()}
    if open_ones and run_dir.lease_holder() is None:
        rows += [row for row in salvaged_streams(run_dir, attempt) if row.stream in open_ones]
    for row in rows:
        if row.rank is not None:
            found.setdefault(row.stream, []).append((row.from_byte, row.to_byte, row.rank))
    return never | {stream: Ranges(tuple(ranges)) for stream, ranges in found.items()}


def wanted_ranks(run_dir: RunDir, tables: Queries, query: LineQuery, attempt: int) -> Wanted:
    """Ranks of one attempt that the query selects."""
    if not query.by_rank:
        return Wanted(ranks=None)
    ranks = set(query.ranks or ())
    settled = True
    if query.last:
        last = _last_rank(run_dir, tables, attempt)
        settled = last is not None
        ranks |= set() if last is None else {last}
    if query.failed:
        settled = False
        ranks |= {facts.rank for facts in tables.ranks(attempt) if _failed(facts)}
        diagnosis = tables.diagnosis(attempt)
        if diagnosis is not None and diagnosis.verdict.rank is not None and diagnosis.verdict.state != "succeeded":
            ranks.add(diagnosis.verdict.rank)
    return Wanted(ranks=frozenset(ranks), settled=settled)


def _last_rank(run_dir: RunDir, tables: Queries, attempt: int) -> int | None:
    """Last rank, by spec or newest round, or None."""
    try:
        spec = attempt_spec(run_dir, tables, attempt)
    except StoreError:
        spec = None
    last = last_known_rank(run_dir, attempt)
    if spec is not None and spec.launcher == "exec":
        return last
    if spec is not None and not spec.elastic and any(part.in_world for part in spec.parts):
        return spec.world_size - 1
    if last is not None:
        return last
    newest = newest_round(tables.ranks(attempt))
    return max((facts.rank for facts in newest), default=None)


def last_known_rank(run_dir: RunDir, attempt: int) -> int | None:
    """Last rank of the newest round by the ranks' records; None before any record."""
    sizes = world_sizes(run_dir, attempt)
    return sizes[max(sizes)] - 1 if sizes else None


def _failed(facts: RankFacts) -> bool:
    own = facts.killed_by not in {"wrapper", "agent"}
    return own and (facts.signal is not None or facts.exit_code not in {None, 0})
