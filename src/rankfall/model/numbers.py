"""Numbers out of text that others wrote: the one way to them.

``int`` and ``float`` are no readers of foreign text: ``int`` raises ``ValueError`` for more than 4,300 digits and takes digits of every
script, underscores and white space; ``float`` takes ``nan`` and ``inf``. Here a number has few ASCII digits, and everything else is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Most digits of a whole number, as nanoseconds since the epoch have them.
MAX_DIGITS: Final = 19
#: The largest number of 64 bits with a sign, which is what sqlite takes.
MOST: Final = (1 << 63) - 1
# From so many neighbours on, a range reads better than a list; and so many parts of a list are shown.
_SPAN: Final = 3
_MAX_PARTS: Final = 12
# Longest text of a number with a fraction or an exponent.
_MAX_REAL: Final = 40


def whole(text: bytes | str | None, *, digits: int = MAX_DIGITS) -> int | None:
    """The whole number that the text is, with an optional sign; None if it is none, has more digits, or is larger than ``MOST``.

    Args:
        text: ASCII digits and nothing around them.
        digits: the most that it may have; more than 19 lift the bound of ``MOST``.
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
    """The finite number that the text is, as ``-1.5e-3``; None if it is none, longer than 40 characters, NaN or infinite."""
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


def clamped(text: bytes | str | None, *, least: int, most: int) -> int | None:
    """The whole number that the text is where it lies in the range; None otherwise."""
    number = whole(text)
    return number if number is not None and least <= number <= most else None


def matched(digits: bytes | str | None, *, most: int = MAX_DIGITS) -> int:
    """The whole number of digits that a pattern has matched: 0 where there are none, the largest that fits where there are more."""
    if digits and len(digits) > most:
        return min(int("9" * most), MOST) if most <= MAX_DIGITS else int("9" * most)
    return whole(digits, digits=most) or 0


def hexadecimal(text: bytes | str | None) -> int | None:
    """The number of 1 to 16 hexadecimal digits, with or without ``0x``; None if the text is none."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    plain = (text or "").lower().removeprefix("0x")
    return int(plain, 16) if 1 <= len(plain) <= 16 and not plain.strip("0123456789abcdef") else None  # noqa: PLR2004 - digits of 64 bits


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: ``0, 2-5, 9``; long lists end with a count."""
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
