"""Parses numbers and addresses from foreign text; of numbers only a few ASCII digits count, all else is None.

``int`` raises ``ValueError`` above 4,300 digits and accepts other scripts, underscores and spaces; ``float`` accepts
``nan`` and ``inf``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from rankfall.model.errors import UsageError

#: Most digits of a whole number; nanoseconds since the epoch need them.
MAX_DIGITS: Final = 19
#: Largest signed 64-bit number, the limit of sqlite.
MOST: Final = (1 << 63) - 1
# Shortest range, and most parts shown.
_SPAN: Final = 3
_MAX_PARTS: Final = 12
_MAX_NUMBERED: Final = 16
# Longest text of a real number.
_MAX_REAL: Final = 40


def whole(text: bytes | str | None, *, digits: int = MAX_DIGITS) -> int | None:
    """Parses a whole number with optional sign; None for other text and beyond ``MOST``.

    Args:
        text: Digits, with an optional sign.
        digits: Most digits; above 19, ``MOST`` does not apply.
    """
    if not text or len(text) > digits + 1:
        return None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    plain = text[1:] if text[0] in "+-" else text
    if len(plain) > digits or not (plain.isascii() and plain.isdigit()):
        return None
    number = int(text)
    return number if digits > MAX_DIGITS or -MOST <= number <= MOST else None


def real(text: bytes | str | None) -> float | None:
    """Parses a finite number, as ``-1.5e-3``; None if longer than 40 characters or not one."""
    if not text or len(text) > _MAX_REAL:
        return None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not text.isascii() or text.strip("0123456789.eE+-"):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) != float("inf") else None


def counted(number: int, noun: str) -> str:
    """Formats a count: ``1 rank``, ``3 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clamped(text: bytes | str | None, *, least: int, most: int) -> int | None:
    """Parses a whole number in the range; None otherwise."""
    number = whole(text)
    return number if number is not None and least <= number <= most else None


def matched(digits: bytes | str | None, *, most: int = MAX_DIGITS) -> int:
    """Returns the number of digits that a pattern matched: 0 for none, the largest for too many."""
    if digits and len(digits) > most:
        return min(int("9" * most), MOST) if most <= MAX_DIGITS else int("9" * most)
    return whole(digits, digits=most) or 0


def hexadecimal(text: bytes | str | None) -> int | None:
    """Parses 1-16 hexadecimal digits, optionally after ``0x``; None otherwise."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    plain = (text or "").lower().removeprefix("0x")
    return int(plain, 16) if 1 <= len(plain) <= 16 and not plain.strip("0123456789abcdef") else None  # noqa: PLR2004 - digits of 64 bits


def ranges(numbers: Iterable[int]) -> str:
    """Formats numbers as ``0, 2-5, 9``; shortens long lists."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(set(numbers)), None]:
        if run and number == run[-1] + 1:
            run.append(number)
            continue
        parts += [f"{run[0]}-{run[-1]}"] if len(run) >= _SPAN else [str(n) for n in run]
        run = [number] if number is not None else []
    if len(parts) > _MAX_PARTS:
        return f"{', '.join(parts[:_MAX_PARTS])} and more"
    return ", ".join(parts)


def numbered(word: str, numbers: Sequence[int]) -> str:
    """Formats `` ranks 1, 2, 3`` for the first sixteen numbers."""
    listed = ", ".join(str(number) for number in numbers[:_MAX_NUMBERED])
    more = f" and {len(numbers) - _MAX_NUMBERED} more" if len(numbers) > _MAX_NUMBERED else ""
    return f" {word}{'s' if len(numbers) > 1 else ''} {listed}{more}"


def is_http(text: str) -> bool:
    """True for an HTTP(S) URL with a host and valid port."""
    try:
        found = urlsplit(text)
        return found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
    except ValueError:  # unpaired bracket or invalid port
        return False


def address_of(text: str) -> tuple[str, int]:
    """Parses ``HOST:PORT`` or ``:PORT``; without a host ``0.0.0.0``.

    Raises:
        UsageError: The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    number = clamped(port, least=0, most=65_535)
    if not colon or number is None or not port.isdigit():
        raise UsageError(f"{text[:60]!r} is not an address", hint="as 127.0.0.1:9090, or :9090 for all of this machine")
    return host.strip("[]") or "0.0.0.0", number  # noqa: S104 - no host means all
