"""Parses untrusted JSON and numbers; bad input gives ``ValueError`` or None.

Counterpart of rankfall.model.decoding and rankfall.model.numbers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Digits of nanoseconds since the epoch.
MAX_DIGITS = 19
#: Deepest JSON nesting.
MAX_DEPTH = 64
# Longest text of a real number.
_MAX_REAL = 40


def whole(text: str | bytes | None, digits: int = MAX_DIGITS) -> int | None:
    """Returns the number of 1 to ``digits`` ASCII digits; None for other text."""
    if not text or len(text) > digits:
        return None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    return int(text) if text.isdigit() and text.isascii() else None


def signed(text: str | bytes | None) -> int | None:
    """Returns :func:`whole` with an optional leading minus."""
    if not text or text[:1] not in ("-", b"-"):
        return whole(text)
    found = whole(text[1:])
    return None if found is None else -found


def real(text: str | bytes | None) -> float | None:
    """Returns a finite number such as ``-1.5e-3``; None for other text or over 40 characters."""
    if not text or len(text) > _MAX_REAL:
        return None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if text.strip("0123456789.eE+-"):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) != float("inf") else None


def loads(data: str | bytes) -> Any:
    """Parses JSON.

    Raises:
        ValueError: Invalid JSON or UTF-8, nested too deeply, or a number too long, infinite or NaN.
    """
    import json

    try:
        found = json.loads(data, parse_int=_integer, parse_float=_float, parse_constant=_float)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return found
        level = [below for each in level for below in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(f"JSON is nested more than {MAX_DEPTH} levels deep")


def _integer(text: str) -> int:
    found = signed(text)
    if found is None:
        raise ValueError(f"JSON has a number of {len(text)} digits")
    return found


def _float(text: str) -> float:
    found = real(text)
    if found is None:
        raise ValueError(f"JSON has an invalid number: {text[:20]}")
    return found
