"""Splits a chunk of lines in bulk: strips timestamps and finds ranks.

Accepts only whole lines of one UTC day with sorted timestamps and without records. The caller splits other chunks line
by line.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from rankfall.model import numbers
from rankfall.model.patterns import Bounded, anchored, bounded
from rankfall.rundir.cluster.log_routes import StampParser
from rankfall.rundir.streams.files import MOST_APART_NS
from rankfall.rundir.streams.writer import Mark

# Bytes; smaller chunks are not worth it.
LEAST: Final = 2048
_DAY: Final = anchored(rb"\d{4}-\d\d-\d\dT", limit=16)
_DATE_LENGTH: Final = 11
# Up to a timestamp's point.
_SECOND_LENGTH: Final = 20
_TENTH_LENGTH: Final = 21
_TIME_LENGTH: Final = _TENTH_LENGTH - _DATE_LENGTH
_SECONDS_LENGTH: Final = 8
# Head of a rank's line.
_HEAD: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (\[rank (\d{1,7}|\?)\] )", limit=64)
# Head of a line without wrapper.
_STAMP: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (())", limit=64)
# Cached patterns, one a rank.
_MOST: Final = 64
_RECORD: Final = b"\x1e"
_NS: Final = 1_000_000_000
# Tenths of a second that a chunk of one rank may span.
_MOST_TENTHS: Final = 20


class SplitChunk(NamedTuple):
    """A split chunk; ``pieces`` has the key None or ``b"?"`` for lines without rank."""

    lines: int
    pieces: dict[bytes | None, bytes]
    counts: dict[bytes | None, int]
    marks: dict[bytes | None, list[Mark]]
    last: int
    high: int
    low: int


class Splitter:
    """Splits chunks of one log; ``foreign`` means without Rankfall's wrapper."""

    def __init__(self, stamps: StampParser, *, foreign: bool = False) -> None:
        self._stamps = stamps
        self._foreign = foreign
        self._date = b""
        self._second = b""
        self._second_ns = 0
        self._heads: Bounded[bytes] | None = None
        self._of_rank: dict[bytes, Bounded[bytes]] = {}

    def split(self, data: bytes) -> SplitChunk | None:
        """Splits a chunk of whole lines; None if it must be split line by line."""
        if _RECORD in data:
            return None
        return self._alike(data) or self._mixed(data)

    def _alike(self, data: bytes) -> SplitChunk | None:
        """Splits lines of one rank within few tenths of a second; None for others."""
        end = data.rfind(b"\n", 0, -1) + 1
        pattern = _STAMP if self._foreign else _HEAD
        head, tail = pattern.match(data), pattern.match(data, end)
        if head is None or tail is None or head[1] != tail[1]:
            return None
        parts = self._heads_of(head[1]).split(data)
        count = len(parts) - 1
        length = head.end()
        parts[0] = parts[0][length:]
        text = b"\n".join(parts)
        # All heads have the same length: proves that each line had one.
        if len(text) != len(data) - count * length:
            return None
        marks = self._tenths(data, count, length)
        if marks is None:
            return None
        seconds, rank = [first // _NS for _, _, first, _ in marks], head[2]
        return SplitChunk(count, {rank: text}, {rank: count}, {rank: marks}, marks[-1][3], max(seconds), min(seconds))

    def _tenths(self, data: bytes, count: int, head: int) -> list[Mark] | None:
        """Returns timestamps cut at each tenth of a second; None if too many result."""
        marks: list[Mark] = []
        at = line = 0
        while at < len(data):
            end = _end_of_tenth(data, at)
            sign = b"\n" + data[at : at + _TENTH_LENGTH]
            # The first line has no newline before it.
            lines = data.count(sign, max(0, at - 1), end) + (not at)
            first = self._stamps.split(data[at : at + head])[0]
            newest = data.rfind(b"\n", at, end - 1) + 1 or at
            last = self._stamps.split(data[newest : newest + head])[0]
            if first is None or last is None or len(marks) >= _MOST_TENTHS or (marks and first < marks[-1][3]):
                # Also where a clock was set back, or a file is read twice.
                return None
            marks.append((at - line * head, line, first, last))
            at, line = end, line + lines
        # Complete only if each line is in its tenth.
        return marks if line == count else None

    def _mixed(self, data: bytes) -> SplitChunk | None:
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
            # A clock was set back, or the day is invalid.
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
            # Two spellings of one rank: its lines would change order.
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
        """Returns (first line, end line, first and last timestamp) of each tenth of a second.

        Timestamps must be sorted.
        """
        found = []
        line, count = 0, len(stamps)
        while line < count:
            stamp = stamps[line]
            tenth, end = stamp[:_TIME_LENGTH], line + 1
            first = last = self._ns(stamp)
            if end < count and stamps[end][:_TIME_LENGTH] == tenth:
                # No greater value begins with these digits.
                end = bisect_right(stamps, tenth + b":", end)
                last = self._ns(stamps[end - 1])
            found.append((line, end, first, last))
            line = end
        return found

    def _of_day(self, date: bytes) -> Bounded[bytes] | None:
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
        """Pattern of a rank's head; a fixed first byte is fastest."""
        found = self._of_rank.get(tag)
        if found is None:
            if len(self._of_rank) >= _MOST:
                self._of_rank.clear()
            found = self._of_rank[tag] = bounded(
                rb"\n(?:.{%d}[0-9]{9}Z %b|)" % (_SECOND_LENGTH, re.escape(tag)), limit=1 << 30
            )
        return found

    def _ns(self, time: bytes) -> int:
        if time[:_SECONDS_LENGTH] != self._second:
            self._second = time[:_SECONDS_LENGTH]
            self._second_ns = self._stamps.split(self._date + self._second + b".000000000Z ")[0] or 0
        # foreign-text: nine digits, matched by the pattern
        return self._second_ns + int(time[_SECONDS_LENGTH + 1 :])


def rank_of(digits: bytes | None) -> int | None:
    """Rank in a prefix; None for no rank."""
    return None if not digits or digits == b"?" else numbers.matched(digits)


def marks_of(texts: Sequence[bytes], stamps: list[int], after: int | None) -> list[Mark]:
    """Returns one stream's timestamps, one mark per tenth of a second; 0 in ``stamps`` = none."""
    found: list[Mark] = []
    at = line = 0
    count, newest = len(stamps), after or 0
    # After a clock step, or without a timestamp, each line is checked.
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
    """Offset after the lines in the tenth of a second that begins at ``at``.

    Timestamps must not decrease.
    """
    tenth, end = data[at : at + _TENTH_LENGTH], len(data)
    low, high = at, end
    while True:
        half = (low + high) // 2
        middle = data.find(b"\n", half, high - 1) + 1 or data.rfind(b"\n", low, half) + 1
        if not middle:
            return high
        if data[middle : middle + _TENTH_LENGTH] == tenth:
            low = middle
        else:
            high = middle
