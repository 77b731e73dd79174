"""Selects the default output lines of a job with many ranks.

These are all lines of rank 0 and the last rank; from others, lines that name a failure, and whole tracebacks. No line
appears under an unproven rank: once a stream's rank is proved, earlier lines are read again from the run directory. No
line is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from rankfall.model import StoreError
from rankfall.model.jobspec.sizes import sized
from rankfall.model.patterns import bounded
from rankfall.rundir import RunDir
from rankfall.rundir.lines import Line, LineTail, last_known_rank
from rankfall.rundir.lines.query import Ranges, Tracebacks, names_failure
from rankfall.rundir.requests import requested_sizes

_LOOK: Final = 4096
# torchrun's final traceback about a failed child.
_LAUNCHER: Final = bounded(rb"errors\.ChildFailedError|raise ChildFailedError", limit=1 << 30)


class DefaultLineFilter:
    """Selects the default lines of ``run``: all of some ranks, from others those about a failure, whole tracebacks.

    Of lines without a rank, only those that name a failure count, without their frames.

    Args:
        whole: Returns True for a line of a rank that is displayed completely.
    """

    def __init__(self, whole: Callable[[Line], bool]) -> None:
        self._whole = whole
        self._tracebacks: dict[str, Tracebacks] = {}

    def __call__(self, line: Line) -> bool:
        """True if this line is selected; lines of one stream must come in their order."""
        if line.rank is not None and self._whole(line):
            return True
        text = line.data[:_LOOK]
        tracebacks = self._tracebacks.setdefault(line.stream, Tracebacks())
        if line.rank is None and _LAUNCHER.search(text):
            tracebacks.end()
            return False
        part = tracebacks.take(text)
        return line.rank is not None if part == "frame" else part == "words" or names_failure(text)


class FirstOrLastRank:
    """Predicate for lines of rank 0 or of the last rank of a full start.

    If the job starts its ranks itself (launcher ``exec``), only the ranks report their number; before that, no rank
    counts as the last one.

    Args:
        directory: The run.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._last: dict[int, int | None] = {}
        self._fixed: int | None = None
        try:
            spec = directory.spec
            if spec.launcher != "exec":
                self._fixed = sized(spec, requested_sizes(directory.path, spec)).world_size - 1
        except StoreError:
            self._fixed = 0

    def __call__(self, line: Line) -> bool:
        """Returns True for a line of rank 0 or of the last rank."""
        if line.rank == 0 or self._fixed is not None:
            return line.rank in {0, self._fixed}
        if line.attempt not in self._last:
            self._last[line.attempt] = last_known_rank(self._directory, line.attempt)
        return line.rank == self._last[line.attempt]

    def forget(self, attempt: int | None = None) -> None:
        """Drops the number of ranks of this attempt (None: of all), because a restart may have changed it."""
        if attempt is None:
            self._last.clear()
        else:
            self._last.pop(attempt, None)


class _Unknown(msgspec.Struct):
    """Lines of one stream with an unknown rank: the first, the last one's offset, the printed ones, the ranges."""

    first: Line
    last: int
    known: Ranges
    printed: set[int] = msgspec.field(default_factory=set)


class LateRankFilter:
    """Selects lines of some ranks, even if these become known late, and from all others those about a failure.

    ``whole``: True for a line of a rank that is displayed completely.
    """

    def __init__(self, tail: LineTail, whole: Callable[[Line], bool]) -> None:
        self._tail = tail
        self._whole = whole
        self._choose = DefaultLineFilter(whole)
        self._unknown: dict[str, _Unknown] = {}

    def pick(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yields the selected new lines, after earlier lines of streams whose rank has become known."""
        for stream in list(self._unknown):
            yield from self._caught_up(stream)
        for line in lines:
            known = self._tail.ranges_of(line.stream)
            rank = line.rank if line.rank is not None else known.at(line.offset)
            if rank is not None:
                yield from self._caught_up(line.stream)
            elif line.stream not in self._unknown:
                self._unknown[line.stream] = _Unknown(line, line.offset, known)
            placed = line if rank == line.rank else msgspec.structs.replace(line, rank=rank)
            chosen = self._choose(placed)
            if rank is None:
                unknown = self._unknown[line.stream]
                unknown.last = line.offset
                if chosen:
                    unknown.printed.add(line.offset)
            if chosen:
                yield placed

    def _caught_up(self, stream: str) -> Iterator[Line]:
        """Yields lines that came before their rank became available, if that rank is selected."""
        unknown = self._unknown.get(stream)
        if unknown is None:
            return
        known = self._tail.ranges_of(stream)
        if known.ranges == unknown.known.ranges:
            return
        del self._unknown[stream]
        if not any(self._whole(msgspec.structs.replace(unknown.first, rank=rank)) for _, _, rank in known.ranges):
            return
        for line in self._tail.again(stream, first=unknown.first.offset, last=unknown.last):
            if line.rank is not None and self._whole(line) and line.offset not in unknown.printed:
                yield line
