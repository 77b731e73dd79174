"""Selects streams, bytes and lines for a query: ranks, slots, time, pattern, and --level error.

Ranks come from the tables or the ranks' own records, never from a guess; a stream whose rank is not yet
written down is None. --level error picks lines that match a signature or carry an error level, and whole
tracebacks; it works per chunk, line by line only inside tracebacks.

Cost: of ``--level error`` time linear in bytes, also where one line holds a mark again and again; memory: one number a line that is picked.
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

# What a prefix of a launcher or of the job's own logger may put before a traceback's lines.
_PREFIX: Final = rb"(?:\[(?:rank|default|worker|trainer|pod)\d+\]: ?)?"
_HEAD: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:  \+ Exception Group )?Traceback \(most recent call last\):", limit=1 << 30
)
_CHAINED: Final = bounded(
    rb"(?m)^" + _PREFIX + rb"(?:The above exception was|During handling of the above)", limit=1 << 30
)
_INDENTED: Final = anchored(_PREFIX + rb"(?:\s|$)", limit=1 << 30)
# The levels of Python's logging, of glog (also absl's and torchrun's own), of logfmt and of JSON.
_LEVEL: Final = bounded(
    rb"\b(?:ERROR|CRITICAL|FATAL)\b|\b[EF]\d{4} \d\d:\d\d:\d\d"
    rb"|\b(?:level|lvl|severity)\"?[=:] ?\"?(?:error|critical|fatal|ERROR|CRITICAL|FATAL)\b",
    limit=1 << 30,
)
# An exception's own line, and what the C library, the kernel and the shell say of a death.
_FAILURE: Final = bounded(
    rb"(?:Error|Exception|Interrupt|Exit)\b:|\bFAILED\b|\b[Ff]atal(?: Python)? error\b|\bSegmentation fault\b"
    rb"|\bCUDA (?:error|out of memory)\b|\bterminate called\b|\bKilled\b|\bAborted\b|\bNo space left on device\b",
    limit=1 << 30,
)
_LOOK: Final = 4096
_MAX_BLOCK: Final = 400


class Tracebacks:
    """Tells the lines of tracebacks in one stream; lines must come in their order."""

    def __init__(self) -> None:
        self._left = 0

    @property
    def inside(self) -> bool:
        """Whether the next line may belong to a traceback."""
        return self._left > 0

    def take(self, line: bytes) -> Literal["frame", "words"] | None:
        """What the next line is: ``frame`` (its head, a frame, words between two chained ones), ``words`` (of the exception), or None."""
        if _HEAD.match(line) or _CHAINED.match(line):
            self._left = _MAX_BLOCK
            return "frame"
        if not self._left:
            return None
        if _INDENTED.match(line):
            self._left -= 1
            return "frame"
        # The line that names the exception ends its traceback.
        self._left = 0
        return "words"

    def end(self) -> None:
        """Forget a traceback that has begun."""
        self._left = 0


def names_failure(line: bytes) -> bool:
    """Whether a line by itself names a failure."""
    return _FAILURE.search(line) is not None


class ErrorLines:
    """The error lines of one stream, of which the chunks must come in their order.

    Args:
        catalogue: the signatures in force; what they call context is no error.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._tracebacks = Tracebacks()

    def pick(self, data: bytes) -> set[int]:
        """Where error lines begin in a chunk of whole lines (the last may lack its newline), as bytes of the chunk."""
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
    """Where the lines begin in which a pattern matches, each once."""
    at = 0
    while (match := pattern.search(data, at)) is not None:
        yield data.rfind(b"\n", at, match.start()) + 1 or at
        at = data.find(b"\n", match.end()) + 1
        if not at:
            return


def error_lines_of(run_dir: RunDir, *, problems: list[str]) -> Callable[[], ErrorLines]:
    """What picks the error lines of a run's streams, one for each stream; the user's own signatures count.

    Args:
        run_dir: the run.
        problems: takes a line where the user's signatures cannot be read.
    """
    from rankfall.rundir.user_signatures import tolerant_catalogue  # noqa: PLC0415 - loads the signatures

    catalogue, problem = tolerant_catalogue(run_dir.path.parent.parent)
    if problem is not None:
        problems.append(problem)
    return lambda: ErrorLines(catalogue)


class LineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are wanted. Filters narrow each other; ``ranks``, ``last`` and ``failed`` add up.

    Attributes:
        ranks: global ranks; None with ``last`` and ``failed`` false = all.
        last: the last global rank (of the newest round of an elastic job).
        failed: ranks that failed themselves, and the one the verdict names.
        slots: slots; None = all.
        attempt: its number, None = the newest (a follower goes on with later ones), ``all``.
        streams: both, only stdout or only stderr.
        since: only lines whose chunk came at this time or later, nanoseconds since the epoch; lines without a stamp stay.
        tail: only the last so many lines of the whole answer.
        level: ``error`` = only lines that a signature or their own level marks as errors, and tracebacks whole.
        instance: only this start of a slot, from 0: of a container that was restarted in place, of a slot that was started again alone.
        grep: RE2 pattern that the line's bytes (cut at 1 MiB) must hold.
        include_unranked: lines of no rank too; None = exactly when all ranks are wanted.
    """

    ranks: frozenset[int] | None = None
    last: bool = False
    failed: bool = False
    slots: frozenset[int] | None = None
    attempt: int | Literal["all"] | None = None
    streams: Literal["all", "out", "err"] = "all"
    since: int | None = None
    tail: int | None = None
    grep: str | None = None
    level: Literal["error"] | None = None
    instance: int | None = None
    include_unranked: bool | None = None

    @property
    def by_rank(self) -> bool:
        """Whether only some ranks are wanted."""
        return self.ranks is not None or self.last or self.failed

    @property
    def unranked(self) -> bool:
        """Whether lines of no rank are wanted."""
        return not self.by_rank if self.include_unranked is None else self.include_unranked


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Wanted ranks of one attempt: ``ranks`` None = all; ``settled`` false = more may be found out later."""

    ranks: frozenset[int] | None
    settled: bool = True

    def __contains__(self, rank: int) -> bool:
        """Whether this rank is wanted."""
        return self.ranks is None or rank in self.ranks


class Ranges:
    """Ranks of one stream's bytes.

    Args:
        ranges: (first byte, end byte or None, rank), by first byte.
        settled: where there are none, no rank will be known later either.
    """

    def __init__(self, ranges: tuple[tuple[int, int | None, int], ...] = (), *, settled: bool = False) -> None:
        self.ranges = ranges
        self._settled = settled
        # Nearly always one rank has the whole stream.
        self.simple = not ranges or (len(ranges) == 1 and ranges[0][0] == 0 and ranges[0][1] is None)
        self.rank = ranges[0][2] if ranges and self.simple else None

    @property
    def known(self) -> bool:
        """Whether any rank is known, or none will ever be."""
        return self._settled or bool(self.ranges)

    def at(self, byte: int) -> int | None:
        """Rank of the line that begins at ``byte``."""
        if self.simple:
            return self.rank
        for first, end, rank in reversed(self.ranges):
            if first <= byte and (end is None or byte < end):
                return rank
        return None

    def pieces(self, offset: int, data: bytes) -> Iterator[tuple[int | None, bytes]]:
        """Whole lines that begin at byte ``offset``, in order, divided where their rank changes."""
        if self.simple:
            yield self.rank, data
            return
        begin = 0
        for bound in sorted({byte for first, end, _ in self.ranges for byte in (first, end) if byte is not None}):
            if bound <= offset + begin:
                continue
            # The line that a bound lies in is of the rank of its first byte.
            end = data.find(b"\n", bound - offset - 1) + 1
            if not end or end == len(data):
                break
            yield self.at(offset + begin), data[begin:end]
            begin = end
        yield self.at(offset + begin), data[begin:]

    def any_in(self, wanted: Wanted) -> bool:
        """Whether some byte is of a wanted rank."""
        return any(rank in wanted for _, _, rank in self.ranges)


def check(query: LineQuery) -> None:
    """Refuse a query that no run can answer.

    Raises:
        UsageError: a negative number, or a pattern that is no RE2.
    """
    if query.tail is not None and query.tail < 0:
        raise UsageError(f"tail {query.tail} is negative", hint="give the number of last lines, 0 or more")
    if query.instance is not None and query.instance < 0:
        raise UsageError(f"instance {query.instance} is negative", hint="starts of a slot are counted from 0")
    if query.attempt is not None and query.attempt != "all" and query.attempt < 1:
        raise UsageError(f"there is no attempt {query.attempt}", hint="attempts are counted from 1")
    matcher(query.grep)


def matcher(pattern: str | None) -> Matcher:
    """A search for ``pattern`` over bytes; everything matches None.

    Raises:
        UsageError: the pattern is no RE2.
    """
    return Matcher(pattern)


class Matcher:
    """Bytes that hold a pattern, in time linear in their length."""

    def __init__(self, pattern: str | None) -> None:
        self._search = None
        if pattern is None:
            return
        import re2  # noqa: PLC0415 - only a query with a pattern needs it

        options = re2.Options()
        options.log_errors = False
        options.max_mem = 64 << 20
        try:
            # Bytes make it match byte by byte, so that text that is no UTF-8 is searched too.
            self._search = re2.compile(pattern.encode(errors="surrogateescape"), options).search
        except re2.error as error:
            text = error.args[0] if error.args else error
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            raise UsageError(
                f"grep pattern {pattern[:200]!r} is not valid: {text}",
                hint="RE2 syntax: no look-around, no back references",
            ) from None

    @property
    def everything(self) -> bool:
        """Whether it is no pattern at all."""
        return self._search is None

    def __call__(self, data: bytes) -> bool:
        """Whether ``data`` holds the pattern."""
        return self._search is None or self._search(data) is not None


def chosen_streams(
    run_dir: RunDir, query: LineQuery, *, attempt: int | None, since: int, problems: list[str] | None = None
) -> list[StreamName]:
    """Stream files on disk that the query may be about, ranks aside."""
    return of_query(find_streams(run_dir.logs_dir, attempt=attempt, since=since, problems=problems), query)


def of_query(names: list[StreamName], query: LineQuery) -> list[StreamName]:
    """Those that the query may be about, ranks aside."""
    return [
        name
        for name in names
        if (query.slots is None or name.slot in query.slots)
        and (query.instance is None or name.instance == query.instance)
        and (query.streams == "all" or name.out == (query.streams == "out"))
    ]


def known_ranges(run_dir: RunDir, tables: Queries, attempt: int | None, names: list[StreamName]) -> dict[str, Ranges]:
    """Ranks by stream, as far as they are known.

    While nobody supervises the run, nobody fills the table either: the ranks' own records are asked about the rest of ``names``.
    """
    found: dict[str, list[tuple[int, int | None, int]]] = {}
    # A row without a rank says that nobody knows it yet, or that nobody will.
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
    """Ranks that the query wants of one attempt."""
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
    """The spec tells it where we start the ranks and membership is fixed; else the ranks of the newest round themselves, or nobody yet."""
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
    """The last rank of the newest round, as the ranks' own records say; None before any has."""
    sizes = world_sizes(run_dir, attempt)
    return sizes[max(sizes)] - 1 if sizes else None


def _failed(facts: RankFacts) -> bool:
    own = facts.killed_by not in {"wrapper", "agent"}
    return own and (facts.signal is not None or facts.exit_code not in {None, 0})
