"""Hides credentials, and makes foreign text safe to display.

Text of servers and plug-ins is hostile and may repeat credentials.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from rankfall_inside.redact import MASK, redact

_MAX_LISTED: Final = 300
# Enough characters that no displayed secret is cut.
_READ: Final = 8192
# Shorter secrets would mask ordinary words.
_MIN_MASKED: Final = 4
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Secret:
    """Text that only ``reveal`` returns."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Returns the value."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        # Pickles are written to files.
        raise TypeError("a secret is not copied elsewhere")


def excerpt(text: str | bytes, *, secrets: Iterable[str] = (), limit: int = _MAX_LISTED) -> str:
    r"""Returns hostile text as one safe line without secrets; invalid bytes become ``\xff``."""
    if isinstance(text, bytes):
        text = text[:_READ].decode("utf-8", "backslashreplace")
    known = sorted({value for value in secrets if len(value) >= _MIN_MASKED}, key=len, reverse=True)
    over = len(text) > _READ
    text = redact(text[:_READ], known)
    if over and known:
        # The cut may split a secret; its half matches no pattern.
        text = text[: max(0, len(text) - len(known[0]))]
    text = " ".join(text.split())
    text = "".join(char if _harmless(char) else char.encode("unicode_escape").decode("ascii") for char in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def masked(value: Any, secrets: Iterable[str]) -> Any:
    """Masks Rankfall's credentials in foreign JSON."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK) if len(secret) >= _MIN_MASKED else value
        return value
    if isinstance(value, list):
        return [masked(item, secrets) for item in value]
    if isinstance(value, dict):
        return {masked(key, secrets): masked(item, secrets) for key, item in value.items()}
    return value


def _harmless(char: str) -> bool:
    return (char.isascii() and char.isprintable()) or unicodedata.category(char) not in _HIDDEN_CATEGORIES
