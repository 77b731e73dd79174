"""Picks what a person sees by default while ranks may still become known: no line is shown under a rank that is not proven, and none is lost.

When a stream turns out to be of a rank that is shown whole, its lines from the first one on come before its further ones. Nothing is kept
in memory meanwhile: they are read again from the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from rankfall.report.interesting import Interesting
from rankfall.store.lines import Follower, Line
from rankfall.store.select import Ranges


class _Unknown(msgspec.Struct):
    """Lines of one stream that came while nobody knew their rank: the first, where the last begins, those shown already, what was known."""

    first: Line
    last: int
    known: Ranges
    shown: set[int] = msgspec.field(default_factory=set)


class LateRanks:
    """Lines of some ranks, whenever these become known, and of all others what tells of a failure.

    Args:
        follower: where the lines come from.
        whole: whether a line is of a rank that is shown whole.
    """

    def __init__(self, follower: Follower, whole: Callable[[Line], bool]) -> None:
        self._follower = follower
        self._whole = whole
        self._choose = Interesting(whole)
        self._unknown: dict[str, _Unknown] = {}

    def pick(self, lines: Iterable[Line]) -> Iterator[Line]:
        """What is shown of the follower's next lines, behind the earlier lines of streams whose rank became known since."""
        for stream in list(self._unknown):
            yield from self._caught_up(stream)
        for line in lines:
            known = self._follower.ranges_of(line.stream)
            rank = line.rank if line.rank is not None else known.at(line.offset)
            if rank is not None:
                yield from self._caught_up(line.stream)
            elif line.stream not in self._unknown:
                self._unknown[line.stream] = _Unknown(line, line.offset, known)
            placed = line if rank == line.rank else msgspec.structs.replace(line, rank=rank)
            shown = self._choose(placed)
            if rank is None:
                unknown = self._unknown[line.stream]
                unknown.last = line.offset
                if shown:
                    unknown.shown.add(line.offset)
            if shown:
                yield placed

    def _caught_up(self, stream: str) -> Iterator[Line]:
        """Lines that came before their rank was known, when it is known now and one of those that are shown."""
        unknown = self._unknown.get(stream)
        if unknown is None:
            return
        known = self._follower.ranges_of(stream)
        if known.ranges == unknown.known.ranges:
            return
        del self._unknown[stream]
        if not any(self._whole(msgspec.structs.replace(unknown.first, rank=rank)) for _, _, rank in known.ranges):
            return
        for line in self._follower.again(stream, first=unknown.first.offset, last=unknown.last):
            if line.rank is not None and self._whole(line) and line.offset not in unknown.shown:
                yield line
