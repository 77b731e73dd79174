"""Splits pod log lines: runtime timestamp, rank prefix, stream.

Timestamps are RFC 3339 in the node's zone. The kubelet glues fragments, so a line may have none.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from rankfall.model import numbers
from rankfall.model.patterns import anchored

_NS: Final = 1_000_000_000
_UTC_LENGTH: Final = 30
_DATE_LENGTH: Final = 19
_LONGEST: Final = 35
# strptime takes ten times as long and accepts a blank for a digit.
_MOMENT: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", limit=32)


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
