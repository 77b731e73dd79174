"""Formats single values for people: colours, lists of ranks, counts, durations, ages and times. Pure.

Loaded by every command at start-up (colour detection), so it imports the standard library only. Output must
read as well without colours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import IO, Any, Final


class Paint:
    """Wraps text in SGR sequences when ``color`` is true, else leaves it as it is."""

    def __init__(self, *, color: bool = False) -> None:
        self.color = color

    def __call__(self, text: str, code: str) -> str:
        """``text`` with the SGR attributes ``code``, as ``1;31``."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        """What the eye should find first."""
        return self(text, "1")

    def dim(self, text: str) -> str:
        """What may be skipped."""
        return self(text, "2")

    def bad(self, text: str) -> str:
        """A failure."""
        return self(text, "1;31")

    def good(self, text: str) -> str:
        """A success."""
        return self(text, "32")

    def warn(self, text: str) -> str:
        """Worth a look."""
        return self(text, "33")


def wants_color(stream: IO[Any]) -> bool:
    """Whether colour is wanted there: a terminal, no ``NO_COLOR``, no dumb terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400

#: Numbers of ranks as people write them.


def ranks(numbers: Iterable[int]) -> str:
    """Numbers as people write them: ``0, 2-5, 9``; long lists end with a count (``model.numbers.ranges``)."""
    from rankfall.model.numbers import ranges  # noqa: PLC0415 - every command loads this module; most show no ranks

    return ranges(numbers)


def count(number: int, noun: str) -> str:
    """``1 rank``, ``3 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(seconds: float) -> str:
    """A duration: ``0.4s``, ``42s``, ``3m05s``, ``2h10m``, ``4d02h``."""
    if seconds < 10:  # noqa: PLR2004 - below ten seconds the tenth tells something
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def moment(text: str | None) -> datetime | None:
    """An RFC 3339 time (nanoseconds allowed) in UTC; None when it is none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def age(text: str | None, *, now: datetime) -> str:
    """How long ago: ``42s``; ``-`` when unknown."""
    at = moment(text)
    return "-" if at is None else span((now - at).total_seconds())


def clock(text: str | None) -> str:
    """The time of day in UTC with milliseconds; empty when unknown."""
    at = moment(text)
    return "" if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def day(text: str | None) -> str:
    """The date in UTC; empty when unknown."""
    at = moment(text)
    return "" if at is None else f"{at:%Y-%m-%d}"


def plus_minus(seconds: float | None) -> str:
    """An uncertainty worth showing: ``±0.2s``, ``±90s``; empty below ten milliseconds or when unknown."""
    if seconds is None or seconds < 0.01:  # noqa: PLR2004 - as the docstring says
        return ""
    return f"±{seconds:.2g}s" if seconds < 10 else f"±{seconds:.0f}s"  # noqa: PLR2004 - two digits are enough


def since(start: str | None, end: str | None, *, now: datetime) -> str:
    """How long something took, or has been going; ``-`` when unknown."""
    first = moment(start)
    if first is None:
        return "-"
    return span(((moment(end) or now) - first).total_seconds())
