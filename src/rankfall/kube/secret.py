"""Wraps credentials so that no repr, error or JSON can show them, and makes text of others safe to show.

Text of servers and plug-ins is hostile and may repeat our own credentials: it is bounded, escaped and
redacted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any, Final

from rankfall_inside.redact import MASK, redact

_MAX_LISTED: Final = 300
# Read before redaction: enough that no secret is cut in half at the end of what is shown.
_READ: Final = 8192
# A shorter one would be masked in the middle of ordinary words.
_MIN_MASKED: Final = 4
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Secret:
    """Text or bytes that only ``reveal`` tells."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        # Pickles end in files and between processes.
        raise TypeError("a secret is not copied elsewhere")


def excerpt(text: str | bytes, *, secrets: Iterable[str] = (), limit: int = _MAX_LISTED) -> str:
    r"""One line of hostile text that is safe to show: bounded, escaped, without secrets.

    Args:
        text: anything; bytes are read as UTF-8, wrong ones shown as ``\xff``.
        secrets: our own credentials, masked wherever they show.
        limit: longest answer in characters.
    """
    if isinstance(text, bytes):
        text = text[:_READ].decode("utf-8", "backslashreplace")
    known = sorted({value for value in secrets if len(value) >= _MIN_MASKED}, key=len, reverse=True)
    over = len(text) > _READ
    text = redact(text[:_READ], known)
    if over and known:
        # The cut may have gone through a secret, whose first half no pattern knows.
        text = text[: max(0, len(text) - len(known[0]))]
    text = " ".join(text.split())
    text = "".join(char if _harmless(char) else char.encode("unicode_escape").decode("ascii") for char in text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def masked(value: Any, secrets: Iterable[str]) -> Any:
    """JSON of others without our own credentials."""
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
