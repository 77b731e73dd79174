"""Builds LogQL queries from possibly hostile names and texts; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rankfall.model import UsageError
from rankfall.model.patterns import anchored

_LABEL: Final = anchored(r"[a-zA-Z_][a-zA-Z0-9_]*", limit=1_024)
_SPECIAL: Final = frozenset(r"\.+*?()|[]{}^$")
_FIRST_PRINTABLE: Final = 0x20
_DELETE: Final = 0x7F
_SURROGATES: Final = range(0xD800, 0xE000)


def quoted(text: str) -> str:
    r"""Returns a text in double quotes with Go's escapes.

    JSON's differ: Go has no ``\/`` and refuses both halves of ``\ud83d\ude00``.

    Raises:
        UsageError: Half a surrogate pair.
    """
    out = []
    for char in text:
        code = ord(char)
        if code in _SURROGATES:
            raise UsageError("a text for Loki holds half a surrogate pair", hint="give text that is valid UTF-8")
        if char in {'"', "\\"}:
            out.append(f"\\{char}")
        elif code < _FIRST_PRINTABLE or code == _DELETE:
            out.append(f"\\u{code:04x}")
        else:
            out.append(char)
    return f'"{"".join(out)}"'


def literal(text: str) -> str:
    """Returns a regular expression for exactly this text."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


def label(name: str) -> str:
    """Checks a label name and returns it.

    Raises:
        UsageError: Invalid in Loki.
    """
    if not _LABEL.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} is not the name of a label in Loki",
            hint="use letters, digits and underscores, as k8s_pod_name; dots become underscores",
        )
    return name


def selector(equal: Mapping[str, str], *, like: Mapping[str, str] | None = None) -> str:
    """Returns a stream selector such as ``{a="x",b=~"y"}``; ``like`` has regular expressions.

    Raises:
        UsageError: Invalid name, or no value.
    """
    parts = [f"{label(name)}={quoted(value)}" for name, value in equal.items()]
    parts += [f"{label(name)}=~{quoted(value)}" for name, value in (like or {}).items()]
    if not any(value for value in (*equal.values(), *(like or {}).values())):
        raise UsageError("a query for Loki names no stream", hint="give one label with a value")
    return "{" + ",".join(parts) + "}"


def containing(texts: Sequence[str]) -> str:
    """Returns a filter for any of the texts, as `` |= "a" or "b"``."""
    return f" |= {' or '.join(quoted(text) for text in texts)}" if texts else ""


def having(name: str, value: str) -> str:
    """Returns a label filter, as `` | k8s_node_name="n1"``.

    Raises:
        UsageError: The label name is invalid.
    """
    return f" | {label(name)}={quoted(value)}"
