"""Maps each line of a container's log to its timestamp, stream and text offset.

Timestamps are RFC 3339 in the node's zone. The kubelet glues fragments, so a line may have none.

The wrapper writes ``[rank N] `` before ranks' lines, and ``[rank ?] `` before similar output. Without the wrapper only
torchrun's prefixes count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from typing import Final

from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded

SLOT_STREAM: Final = "slot.out"
RECORD_MARK: Final = b"\x1erankfall/1 "
_RECORD_SIGN: Final = RECORD_MARK[:1]
_RANK: Final = b"[rank "
_STRANGE: Final = b"[rank ?] "
_MAX_RANK_DIGITS: Final = 7
# torchrun's ``--tee`` prefix: role and local rank.
_TAG: Final = anchored(rb"\[[A-Za-z_][\w.-]{0,60}\]:", limit=64)
_DIGITS: Final = anchored(rb"(?:0|[1-9]\d{0,2})", limit=8)
#: torchrun's default roles, now and earlier.
USUAL_ROLES: Final = ("default", "trainer")
# Directly after a timestamp, but no torch rank prefix; searched in many lines in one call.
_TAG_WITHIN: Final = bounded(rb"Z \[(?!rank\d{1,9}\]:)[A-Za-z_][\w.-]{0,59}\d\]:", limit=1 << 30)
_NS: Final = 1_000_000_000
_UTC_LENGTH: Final = 30
_DATE_LENGTH: Final = 19
_LONGEST: Final = 35
# strptime takes ten times as long and accepts a blank for a digit.
_MOMENT: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", limit=32)


class Routes:
    """Maps the lines of one log to streams.

    ``on_record`` returns False for a line that is not Rankfall's. ``foreign``: no wrapper.

    Attributes:
        base: Added to a local rank for its stream number.
        roles: Role names in torchrun's prefixes.
        locals: Existing local ranks, or None.
        tagged: A torchrun-like prefix was found.
    """

    def __init__(self, on_record: Callable[[bytes, int | None], bool], *, foreign: bool) -> None:
        self.base = 0
        self.roles: tuple[str, ...] = USUAL_ROLES
        self.locals: Collection[int] | None = None
        self.tagged = False
        self._on_record = on_record
        self._foreign = foreign

    def alike(self, data: bytes) -> bool:
        """True if no line has a rank prefix, so all are the slot's; always False with Rankfall's wrapper."""
        if b"]:" not in data:
            return self._foreign
        return self._foreign and "rank" not in self.roles and _TAG_WITHIN.search(data) is None

    def of(self, line: bytes, start: int, stamp: int | None) -> tuple[str, int] | None:
        """Line's stream and text offset; None for a record, which goes to ``on_record``.

        ``start`` follows its timestamp; ``stamp`` in nanoseconds since the epoch.
        """
        if self._foreign:
            local = self._local(line, start) if line.startswith(b"[", start) else None
            return (SLOT_STREAM if local is None else f"{self.base + local}.out"), start
        if line.startswith(_RANK, start):
            begin = start + len(_RANK)
            end = line.find(b"] ", begin, begin + _MAX_RANK_DIGITS + 2)
            rank = line[begin:end] if end > 0 else b""
            if rank.isdigit():
                # foreign-text: a few ASCII digits, checked above; runs for each line
                return f"r{int(rank)}.out", end + 2
            if line.startswith(_STRANGE, start):
                return SLOT_STREAM, start + len(_STRANGE)
        elif line.startswith(RECORD_MARK, start) and self._on_record(line[start:], stamp):
            return None
        return SLOT_STREAM, start

    def _local(self, line: bytes, start: int) -> int | None:
        """Local rank in torchrun's prefix, or None."""
        if _TAG.match(line, start) is None:
            return None
        name = line[start + 1 : line.index(b"]:", start)]
        for role in self.roles:
            digits = name.removeprefix(role.encode())
            if len(digits) < len(name) and _DIGITS.fullmatch(digits):
                self.tagged = True
                local = numbers.matched(digits)
                return local if self.locals is None or local in self.locals else None
        # The prefix of an unnamed role, or torch's own.
        self.tagged = self.tagged or (name[-1:].isdigit() and not name.startswith(b"rank"))
        return None


def records_within(data: bytes) -> tuple[int, int]:
    """Returns start and end of possible records in whole lines; (0, 0) without one."""
    first = data.find(_RECORD_SIGN)
    if first < 0:
        return 0, 0
    return data.rfind(b"\n", 0, first) + 1, data.index(b"\n", data.rindex(_RECORD_SIGN)) + 1


class StampParser:
    """Splits timestamps off lines; caches the last second."""

    def __init__(self) -> None:
        self._second = b""
        self._epoch = 0

    def split(self, line: bytes) -> tuple[int | None, int]:
        """Nanoseconds since the epoch and the text's begin; (None, 0) without timestamp."""
        if line[_UTC_LENGTH - 1 : _UTC_LENGTH + 1] == b"Z " and line[_DATE_LENGTH : _DATE_LENGTH + 1] == b".":
            second, fraction = line[:_DATE_LENGTH], line[_DATE_LENGTH + 1 : _UTC_LENGTH - 1]
            if fraction.isdigit():
                if second != self._second:
                    epoch = _epoch(second, 0)
                    if epoch is None:
                        return None, 0
                    self._second, self._epoch = second, epoch
                # foreign-text: at most nine digits, checked above; runs for each line
                return self._epoch * _NS + int(fraction), _UTC_LENGTH + 1
        return _slow(line)


def stamp_text(ns: int, *, east_s: int = 0) -> str:
    """Timestamp in the API's form; ``east_s`` is the zone in seconds."""
    zone = timezone(timedelta(seconds=east_s))
    moment = datetime.fromtimestamp(ns // _NS, zone).strftime("%Y-%m-%dT%H:%M:%S")
    sign, minutes = ("-" if east_s < 0 else "+"), abs(east_s) // 60
    offset = f"{sign}{minutes // 60:02d}:{minutes % 60:02d}" if east_s else "Z"
    return f"{moment}.{ns % _NS:09d}{offset}"


def _slow(line: bytes) -> tuple[int | None, int]:
    """Parses any other fraction and zone that RFC 3339 allows; result as of ``split``."""
    blank = line.find(b" ", 0, _LONGEST + 1)
    text = line[:blank] if blank > 0 else line if len(line) <= _LONGEST else b""
    if len(text) <= _DATE_LENGTH or not text.isascii():
        return None, 0
    zone = _zone(text)
    if zone is None:
        return None, 0
    offset, length = zone
    fraction = text[_DATE_LENGTH : len(text) - length]
    if fraction and (fraction[:1] != b"." or not fraction[1:].isdigit() or len(fraction) > 10):  # noqa: PLR2004 - point and nine digits
        return None, 0
    epoch = _epoch(text[:_DATE_LENGTH], offset)
    if epoch is None:
        return None, 0
    return epoch * _NS + numbers.matched(fraction[1:].ljust(9, b"0")), len(text) + (1 if blank > 0 else 0)


def _zone(text: bytes) -> tuple[int, int] | None:
    """Returns seconds east of UTC, and the length of the zone in bytes; None if there is none."""
    if text.endswith(b"Z"):
        return 0, 1
    tail = text[-6:]
    if tail[:1] not in {b"+", b"-"} or tail[3:4] != b":" or not (tail[1:3] + tail[4:6]).isdigit():
        return None
    seconds = numbers.matched(tail[1:3]) * 3600 + numbers.matched(tail[4:6]) * 60
    return (-seconds if tail[:1] == b"-" else seconds), 6


# foreign-text: two or four digits each, matched by the pattern
def _epoch(text: bytes, offset: int) -> int | None:
    if _MOMENT.fullmatch(text) is None:
        return None
    try:
        moment = datetime(
            int(text[:4]),
            int(text[5:7]),
            int(text[8:10]),
            int(text[11:13]),
            int(text[14:16]),
            int(text[17:]),
            tzinfo=timezone(timedelta(seconds=offset)),
        )
    except ValueError:
        return None
    return int(moment.timestamp())
