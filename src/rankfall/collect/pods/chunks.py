"""Takes a chunk of lines apart with a few operations on all of them together: stamps off, ranks told, one piece of bytes a stream.

It takes only what is as nearly every chunk is: whole lines of one day, each with a stamp in UTC and none older than the one before it, none
of them a record. For any other it says no, and the chunk is gone through line by line with the same outcome. A chunk that one busy rank
printed within two seconds is taken in half of the time: what stands in front of its lines differs in nine digits only, so nothing has to be
kept of them.

Stamps are kept of the first and the last line of each tenth of a second. They are taken for the oldest and the newest ones: a clock that is set
back within a tenth of a second is not noticed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankfall.collect.pods.line_splitter import StampParser
from rankfall.model import numbers
from rankfall.model.patterns import Bounded, anchored, bounded
from rankfall.rundir.streams.files import MOST_APART_NS
from rankfall.rundir.streams.writer import Mark

# Below this a chunk is not worth it, bytes.
LEAST: Final = 2048
_DAY: Final = anchored(rb"\d{4}-\d\d-\d\dT", limit=16)
_DATE_LENGTH: Final = 11
# A stamp to its point, and to the tenth of the second; of the latter the time of the day.
_SECOND_LENGTH: Final = 20
_TENTH_LENGTH: Final = 21
_TIME_LENGTH: Final = _TENTH_LENGTH - _DATE_LENGTH
# "hh:mm:ss".
_SECONDS_LENGTH: Final = 8
# What stands in front of a rank's line.
_HEAD: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (\[rank (\d{1,7}|\?)\] )", limit=64)
# What stands in front of a line where no wrapper of ours is.
_STAMP: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (())", limit=64)
# Patterns that are kept, one a rank.
_MOST: Final = 64
_RECORD: Final = b"\x1e"
_NS: Final = 1_000_000_000
# A chunk of one rank is cut into at most so many tenths of a second.
_MOST_TENTHS: Final = 20


class SplitChunk(NamedTuple):
    """A chunk in pieces.

    Attributes:
        lines: how many it held.
        pieces: bytes of each rank's lines, by the digits as they stood in the prefix; None or ``b"?"`` = of no rank.
        counts, marks: lines of each piece, and their stamps.
        last: stamp of the last line, nanoseconds.
        high, low: newest and oldest whole second of all stamps.
    """

    lines: int
    pieces: dict[bytes | None, bytes]
    counts: dict[bytes | None, int]
    marks: dict[bytes | None, list[Mark]]
    last: int
    high: int
    low: int


class Splitter:
    """Takes chunks of one log apart.

    Args:
        stamps: the log's parser of stamps.
        foreign: no wrapper of ours is in the container: what looks like its prefix is the job's own text.
    """

    def __init__(self, stamps: StampParser, *, foreign: bool = False) -> None:
        self._stamps = stamps
        self._foreign = foreign
        self._date = b""
        # The second of this day that was asked for last, and when it begins.
        self._second = b""
        self._second_ns = 0
        self._heads: Bounded[bytes] | None = None
        self._of_rank: dict[bytes, Bounded[bytes]] = {}

    def split(self, data: bytes) -> SplitChunk | None:
        """Take apart; None when it must be gone through line by line.

        Args:
            data: whole lines, the last one with its newline.
        """
        if _RECORD in data:
            return None
        return self._alike(data) or self._mixed(data)

    def _alike(self, data: bytes) -> SplitChunk | None:
        """Of lines that all are of one rank, and of few tenths of a second."""
        end = data.rfind(b"\n", 0, -1) + 1
        pattern = _STAMP if self._foreign else _HEAD
        head, tail = pattern.match(data), pattern.match(data, end)
        if head is None or tail is None or head[1] != tail[1]:
            return None
        # Split at each newline; behind it the head goes too, where it is one of this rank.
        parts = self._heads_of(head[1]).split(data)
        count = len(parts) - 1
        length = head.end()
        parts[0] = parts[0][length:]
        text = b"\n".join(parts)
        # All heads have the same length: so many bytes are gone only when each line had one.
        if len(text) != len(data) - count * length:
            return None
        marks = self._tenths(data, count, length)
        if marks is None:
            return None
        seconds, rank = [first // _NS for _, _, first, _ in marks], head[2]
        return SplitChunk(count, {rank: text}, {rank: count}, {rank: marks}, marks[-1][3], max(seconds), min(seconds))

    def _tenths(self, data: bytes, count: int, head: int) -> list[Mark] | None:
        """Stamps of ``count`` lines whose heads have this length, cut where the tenth of a second changes; None = there are too many."""
        marks: list[Mark] = []
        at = line = 0
        while at < len(data):
            end = _end_of_tenth(data, at)
            sign = b"\n" + data[at : at + _TENTH_LENGTH]
            # The first line of all has no newline before it.
            lines = data.count(sign, max(0, at - 1), end) + (not at)
            first = self._stamps.split(data[at : at + head])[0]
            newest = data.rfind(b"\n", at, end - 1) + 1 or at
            last = self._stamps.split(data[newest : newest + head])[0]
            if first is None or last is None or len(marks) >= _MOST_TENTHS:
                return None
            marks.append((at - line * head, line, first, last))
            at, line = end, line + lines
        # Each line is counted in one tenth at most: all of them were only when each stands in its own.
        return marks if line == count else None

    def _mixed(self, data: bytes) -> SplitChunk | None:
        """Of any lines of one day."""
        heads = self._of_day(data[:_DATE_LENGTH])
        if heads is None:
            return None
        # "", stamp, rank, text, stamp, rank, text, ...
        parts = heads.split(b"\n" + data[:-1])
        stamps, ranks, texts = parts[1::3], parts[2::3], parts[3::3]
        count = len(stamps)
        if count != data.count(b"\n"):
            return None
        if sorted(stamps) != stamps or self._stamps.split(self._date + stamps[0] + b"Z ")[0] is None:
            # A clock was set back, or there is no such day.
            return None
        last, begin = self._ns(stamps[-1]), self._ns(stamps[0])
        high, low = last // _NS, begin // _NS
        tenths = self._by_tenths(stamps)
        one = ranks[0]
        if ranks.count(one) == count:
            marks, at = [], 0
            for begin, end, first, newest in tenths:
                marks.append((at, begin, first, newest))
                at += sum(map(len, texts[begin:end])) + end - begin
            texts.append(b"")
            return SplitChunk(count, {one: b"\n".join(texts)}, {one: count}, {one: marks}, last, high, low)
        pieces: dict[bytes | None, list[bytes]] = {rank: [] for rank in dict.fromkeys(ranks)}
        if len({rank_of(rank) for rank in pieces}) < len(pieces):
            # One stream under two spellings: their lines would change places.
            return None
        found: dict[bytes | None, list[Mark]] = {rank: [] for rank in pieces}
        sizes = dict.fromkeys(pieces, 0)
        for begin, end, *_ in tenths:
            whose = ranks[begin:end]
            before = {rank: len(pieces[rank]) for rank in dict.fromkeys(whose)}
            for rank, text in zip(whose, texts[begin:end], strict=True):
                pieces[rank].append(text)
            for rank, line in before.items():
                lines = pieces[rank]
                first = newest = self._ns(stamps[begin + whose.index(rank)])
                if len(lines) > line + 1:
                    newest = self._ns(stamps[end - 1 - whose[::-1].index(rank)])
                found[rank].append((sizes[rank], line, first, newest))
                if end < count:
                    sizes[rank] += sum(map(len, lines[line:])) + len(lines) - line
        counts = {rank: len(lines) for rank, lines in pieces.items()}
        joined = {rank: b"\n".join([*lines, b""]) for rank, lines in pieces.items()}
        return SplitChunk(count, joined, counts, found, last, high, low)

    def _by_tenths(self, stamps: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
        """Lines of each tenth of a second: the first one, the one behind the last, and the stamps of both ends. No stamp is older than the one before it."""
        found = []
        line, count = 0, len(stamps)
        while line < count:
            stamp = stamps[line]
            tenth, end = stamp[:_TIME_LENGTH], line + 1
            first = last = self._ns(stamp)
            if end < count and stamps[end][:_TIME_LENGTH] == tenth:
                # Nothing that begins with these digits is greater.
                end = bisect_right(stamps, tenth + b":", end)
                last = self._ns(stamps[end - 1])
            found.append((line, end, first, last))
            line = end
        return found

    def _of_day(self, date: bytes) -> Bounded[bytes] | None:
        """What stands in front of each line of this day."""
        if date != self._date:
            if _DAY.fullmatch(date) is None:
                return None
            self._date = date
            self._second = b""
            self._heads = bounded(
                rb"\n"
                + date
                + rb"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{9})Z "
                + (rb"()" if self._foreign else rb"(?:\[rank (\d{1,7}|\?)\] )?"),
                limit=1 << 30,
            )
        return self._heads

    def _heads_of(self, tag: bytes) -> Bounded[bytes]:
        """A line's end, and the head of a line of this rank behind it. Only its first byte is sure, which is what is searched for fastest."""
        found = self._of_rank.get(tag)
        if found is None:
            if len(self._of_rank) >= _MOST:
                self._of_rank.clear()
            found = self._of_rank[tag] = bounded(
                rb"\n(?:.{%d}[0-9]{9}Z %b|)" % (_SECOND_LENGTH, re.escape(tag)), limit=1 << 30
            )
        return found

    def _ns(self, time: bytes) -> int:
        """Nanoseconds since the epoch of a time of this day that the pattern has seen."""
        if time[:_SECONDS_LENGTH] != self._second:
            self._second = time[:_SECONDS_LENGTH]
            self._second_ns = self._stamps.split(self._date + self._second + b".000000000Z ")[0] or 0
        # foreign-text: nine digits, seen by the pattern; each tenth of a second of each rank comes here
        return self._second_ns + int(time[_SECONDS_LENGTH + 1 :])


def rank_of(digits: bytes | None) -> int | None:
    """The rank that a prefix tells; None = a line of no rank."""
    return None if not digits or digits == b"?" else numbers.matched(digits)


def marks_of(texts: Sequence[bytes], stamps: list[int], after: int | None) -> list[Mark]:
    """Stamps of the lines of one stream, cut where the tenth of a second changes.

    Args:
        texts: the lines without their newlines.
        stamps: of each; 0 = it has none, so that it is only known to lie between its neighbours.
        after: the newest stamp before all of them.
    """
    found: list[Mark] = []
    at = line = 0
    count, newest = len(stamps), after or 0
    # Where a clock was set back, or a line has no stamp, each line is looked at.
    rising = sorted(stamps) == stamps and stamps[0] > 0
    while line < count:
        first, end = stamps[line], line + 1
        tenth = first // MOST_APART_NS
        if rising:
            end = bisect_left(stamps, (tenth + 1) * MOST_APART_NS, end)
        else:
            while end < count and stamps[end] // MOST_APART_NS == tenth:
                end += 1
        if first or newest:
            found.append((at, line, first or newest, stamps[end - 1]))
        newest = stamps[end - 1] or newest
        at += sum(map(len, texts[line:end])) + end - line
        line = end
    return found


def _end_of_tenth(data: bytes, at: int) -> int:
    """Where the first line of another tenth of a second begins behind the line at ``at``, in lines whose stamps do not fall."""
    tenth, end = data[at : at + _TENTH_LENGTH], len(data)
    low, high = at, end
    # ``low`` is a line of this tenth, ``high`` one of another or the end.
    while True:
        half = (low + high) // 2
        middle = data.find(b"\n", half, high - 1) + 1 or data.rfind(b"\n", low, half) + 1
        if not middle:
            return high
        if data[middle : middle + _TENTH_LENGTH] == tenth:
            low = middle
        else:
            high = middle
