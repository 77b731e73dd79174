"""Takes a chunk of lines apart with a few operations on all of them together: stamps off, ranks told, one piece of bytes a stream.

It takes only what is as nearly every chunk is: whole lines of one day, each with a stamp in UTC, none of them a record. For any other it
says no, and the chunk is gone through line by line with the same outcome. A chunk that one busy rank printed within two seconds is taken in
half of the time: what stands in front of its lines differs in nine digits only, so nothing has to be kept of them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rankfall.observe.cluster.apilines import StampParser

# Below this a chunk is not worth it, bytes.
LEAST: Final = 2048
_DAY: Final = re.compile(rb"\d{4}-\d\d-\d\dT")
_DATE_LENGTH: Final = 11
# A stamp to its point.
_SECOND_LENGTH: Final = 20
# What stands in front of a rank's line.
_HEAD: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (\[rank (\d{1,7}|\?)\] )")
# Patterns that are kept, one a rank.
_MOST: Final = 64
_RECORD: Final = b"\x1e"
_NS: Final = 1_000_000_000


class Taken(NamedTuple):
    """A chunk in pieces.

    Attributes:
        lines: how many it held.
        pieces: bytes of each rank's lines, by the digits as they stood in the prefix; None or ``b"?"`` = of no rank.
        counts, first: lines of each piece, and the stamp of its first one.
        last: stamp of the last line, nanoseconds.
        high, low: newest and oldest whole second of all stamps.
    """

    lines: int
    pieces: dict[bytes | None, bytes]
    counts: dict[bytes | None, int]
    first: dict[bytes | None, int]
    last: int
    high: int
    low: int


class Splitter:
    """Takes chunks of one log apart.

    Args:
        stamps: the log's parser of stamps.
    """

    def __init__(self, stamps: StampParser) -> None:
        self._stamps = stamps
        self._date = b""
        self._heads: re.Pattern[bytes] | None = None
        self._of_rank: dict[bytes, re.Pattern[bytes]] = {}

    def split(self, data: bytes) -> Taken | None:
        """Take apart; None when it must be gone through line by line.

        Args:
            data: whole lines, the last one with its newline.
        """
        if _RECORD in data:
            return None
        return self._alike(data) or self._mixed(data)

    def _alike(self, data: bytes) -> Taken | None:
        """Of lines that all are of one rank, and of the same second as the first or the last of them."""
        end = data.rfind(b"\n", 0, -1) + 1
        head, tail = _HEAD.match(data), _HEAD.match(data, end)
        if head is None or tail is None or head[1] != tail[1]:
            return None
        begin, last = self._stamps.split(head[0])[0], self._stamps.split(tail[0])[0]
        if begin is None or last is None:
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
        first, newest = data[:_SECOND_LENGTH], data[end : end + _SECOND_LENGTH]
        seen = data.count(b"\n" + first) + (data.count(b"\n" + newest) if newest != first else 0)
        if seen != count - 1:
            return None
        seconds, rank = (begin // _NS, last // _NS), head[2]
        return Taken(count, {rank: text}, {rank: count}, {rank: begin}, last, max(seconds), min(seconds))

    def _mixed(self, data: bytes) -> Taken | None:
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
        newest, oldest = self._ns(max(stamps)), self._ns(min(stamps))
        last, begin = self._ns(stamps[-1]), self._ns(stamps[0])
        if newest is None or oldest is None or last is None or begin is None:
            return None
        high, low = newest // _NS, oldest // _NS
        one = ranks[0]
        if ranks.count(one) == count:
            texts.append(b"")
            return Taken(count, {one: b"\n".join(texts)}, {one: count}, {one: begin}, last, high, low)
        pieces: dict[bytes | None, list[bytes]] = {rank: [] for rank in dict.fromkeys(ranks)}
        if len({rank_of(rank) for rank in pieces}) < len(pieces):
            # One stream under two spellings: their lines would change places.
            return None
        for rank, text in zip(ranks, texts, strict=True):
            pieces[rank].append(text)
        first = {rank: self._ns(stamps[ranks.index(rank)]) or begin for rank in pieces}
        joined = {rank: b"\n".join([*lines, b""]) for rank, lines in pieces.items()}
        counts = {rank: len(lines) for rank, lines in pieces.items()}
        return Taken(count, joined, counts, first, last, high, low)

    def _of_day(self, date: bytes) -> re.Pattern[bytes] | None:
        """What stands in front of each line of this day."""
        if date != self._date:
            if _DAY.fullmatch(date) is None:
                return None
            self._date = date
            self._heads = re.compile(
                rb"\n" + date + rb"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{9})Z (?:\[rank (\d{1,7}|\?)\] )?"
            )
        return self._heads

    def _heads_of(self, tag: bytes) -> re.Pattern[bytes]:
        """A line's end, and the head of a line of this rank behind it. Only its first byte is sure, which is what is searched for fastest."""
        found = self._of_rank.get(tag)
        if found is None:
            if len(self._of_rank) >= _MOST:
                self._of_rank.clear()
            found = self._of_rank[tag] = re.compile(rb"\n(?:.{%d}[0-9]{9}Z %b|)" % (_SECOND_LENGTH, re.escape(tag)))
        return found

    def _ns(self, time: bytes) -> int | None:
        return self._stamps.split(self._date + time + b"Z ")[0]


def rank_of(digits: bytes | None) -> int | None:
    """The rank that a prefix tells; None = a line of no rank."""
    return None if digits is None or digits == b"?" else int(digits)
