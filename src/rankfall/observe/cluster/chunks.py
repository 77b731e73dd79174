"""Takes a chunk of lines apart with a few operations on all of them together: stamps off, ranks told, one piece of bytes a stream.

It takes only what is as nearly every chunk is: whole lines of one day, each with a stamp in UTC, none of them a record. For any other it
says no, and the chunk is gone through line by line with the same outcome.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from rankfall.observe.cluster.apilines import StampParser

# Below this a chunk is not worth it, bytes.
LEAST: Final = 2048
_DAY: Final = re.compile(rb"\d{4}-\d\d-\d\dT")
_DATE_LENGTH: Final = 11
_SECOND_LENGTH: Final = 8
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

    def split(self, data: bytes) -> Taken | None:
        """Take apart; None when it must be gone through line by line.

        Args:
            data: whole lines, the last one with its newline.
        """
        heads = self._of_day(data[:_DATE_LENGTH])
        if heads is None or _RECORD in data:
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

    def _ns(self, time: bytes) -> int | None:
        return self._stamps.split(self._date + time + b"Z ")[0]


def rank_of(digits: bytes | None) -> int | None:
    """The rank that a prefix tells; None = a line of no rank."""
    return None if digits is None or digits == b"?" else int(digits)
