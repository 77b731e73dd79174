"""Selects the lines of output that a person sees by default of a job with many ranks.

All lines of rank 0 and of the last rank; from the others what names a failure, tracebacks whole. While the
rank of a stream is unknown no line is shown under an unproven rank: once it is known, earlier lines are
read again from the run directory. No line is changed.
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
# torchrun's own end over a failed child.
_LAUNCHER: Final = bounded(rb"errors\.ChildFailedError|raise ChildFailedError", limit=1 << 30)


class DefaultLineFilter:
    """Picks what ``run`` shows by default: all lines of some ranks, from the others what tells of a failure, tracebacks whole.

    Of the lines of no rank only those that name a failure, without the frames above them: they are mostly the launcher's own, whose
    report of a failed child says nothing that is not said better at the end.

    Args:
        whole: whether a line is of a rank that is shown whole.
    """

    def __init__(self, whole: Callable[[Line], bool]) -> None:
        self._whole = whole
        self._tracebacks: dict[str, Tracebacks] = {}

    def __call__(self, line: Line) -> bool:
        """Whether this line is shown; lines of one stream must come in their order."""
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
    """Whether a line is of rank 0 or of the last rank of a full start.

    Where the job starts its ranks itself (launcher ``exec``) nobody but they know how many there are; no rank is taken for the last one before.

    Args:
        directory: the run.
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
        """Whether this line is."""
        if line.rank == 0 or self._fixed is not None:
            return line.rank in {0, self._fixed}
        if line.attempt not in self._last:
            self._last[line.attempt] = last_known_rank(self._directory, line.attempt)
        return line.rank == self._last[line.attempt]

    def forget(self, attempt: int | None = None) -> None:
        """Ranks of this attempt (None: of any) have started, or may have: there may be more or fewer than before."""
        if attempt is None:
            self._last.clear()
        else:
            self._last.pop(attempt, None)


class _Unknown(msgspec.Struct):
    """Lines of one stream that came while nobody knew their rank: the first, where the last begins, those shown already, what was known."""

    first: Line
    last: int
    known: Ranges
    printed: set[int] = msgspec.field(default_factory=set)


class LateRankFilter:
    """Lines of some ranks, whenever these become known, and of all others what tells of a failure.

    Args:
        tail: where the lines come from.
        whole: whether a line is of a rank that is shown whole.
    """

    def __init__(self, tail: LineTail, whole: Callable[[Line], bool]) -> None:
        self._tail = tail
        self._whole = whole
        self._choose = DefaultLineFilter(whole)
        self._unknown: dict[str, _Unknown] = {}

    def pick(self, lines: Iterable[Line]) -> Iterator[Line]:
        """What is shown of the follower's next lines, behind the earlier lines of streams whose rank became known since."""
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
        """Lines that came before their rank was known, when it is known now and one of those that are shown."""
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
