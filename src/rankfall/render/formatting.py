"""Formats single values for users: colors, lists of ranks, counts, durations, ages and times. Pure.

Every command loads this module at start-up (color detection), so it imports the standard library only. Output must be
equally readable without colors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import IO, Any, Final


class Paint:
    """Wraps text in SGR sequences if ``color`` is true, else returns it unchanged."""

    def __init__(self, *, color: bool = False) -> None:
        self.color = color

    def __call__(self, text: str, code: str) -> str:
        """Returns ``text`` with the SGR attributes ``code``, for example ``1;31``."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        """Formats the most important text."""
        return self(text, "1")

    def dim(self, text: str) -> str:
        """Formats text of low importance."""
        return self(text, "2")

    def bad(self, text: str) -> str:
        """Formats a failure."""
        return self(text, "1;31")

    def good(self, text: str) -> str:
        """Formats a success."""
        return self(text, "32")

    def warn(self, text: str) -> str:
        """Formats a warning."""
        return self(text, "33")


def wants_color(stream: IO[Any]) -> bool:
    """Returns True for a terminal without ``NO_COLOR`` that is not dumb."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400


def ranks(numbers: Iterable[int]) -> str:
    """Formats ranks as ``0, 2-5, 9``; long lists end with a count (``model.numbers.ranges``)."""
    from rankfall.model.numbers import ranges  # noqa: PLC0415

    return ranges(numbers)


def count(number: int, noun: str) -> str:
    """Formats a count: ``1 rank``, ``3 ranks`` (``model.numbers.counted``)."""
    from rankfall.model.numbers import counted  # noqa: PLC0415

    return counted(number, noun)


def size(number: int) -> str:
    """Formats bytes, as ``1.5 GiB``."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(seconds: float) -> str:
    """Formats a duration: ``0.4s``, ``42s``, ``3m05s``, ``2h10m``, ``4d02h``."""
    if seconds < 10:  # noqa: PLR2004 - below ten seconds the tenth is useful
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
    """Parses an RFC 3339 time (nanoseconds allowed) to UTC; None if invalid."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def age(text: str | None, *, now: datetime) -> str:
    """Formats the age of a time: ``42s``; ``-`` if unknown."""
    at = moment(text)
    return "-" if at is None else span((now - at).total_seconds())


def clock(text: str | None) -> str:
    """Formats the time of day in UTC with milliseconds; empty if unknown."""
    at = moment(text)
    return "" if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def day(text: str | None) -> str:
    """Formats the date in UTC; empty if unknown."""
    at = moment(text)
    return "" if at is None else f"{at:%Y-%m-%d}"


def plus_minus(seconds: float | None) -> str:
    """Formats an uncertainty: ``±0.2s``, ``±90s``; empty below ten milliseconds or if unknown."""
    if seconds is None or seconds < 0.01:  # noqa: PLR2004 - as in the docstring
        return ""
    return f"±{seconds:.2g}s" if seconds < 10 else f"±{seconds:.0f}s"  # noqa: PLR2004 - two digits are enough


def since(start: str | None, end: str | None, *, now: datetime) -> str:
    """Formats how long something took, or has lasted so far; ``-`` if unknown."""
    first = moment(start)
    if first is None:
        return "-"
    return span(((moment(end) or now) - first).total_seconds())
