"""Builds LogQL queries from names and texts that may be hostile.

Pure. Label names are checked and every text is quoted; nothing is pasted into a query. Refuses what Loki
cannot take in any form.
"""

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
    r"""A text as Loki's language writes it: in double quotes, as Go's.

    JSON's escapes will not do: Go has no ``\/``, and refuses the two halves of ``\ud83d\ude00``.

    Raises:
        UsageError: it holds half a surrogate pair, which no text of Loki's can.
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
    """A text as a part of a regular expression that matches it and nothing else."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


def label(name: str) -> str:
    """The name of a label, checked.

    Raises:
        UsageError: Loki has no label of such a name.
    """
    if not _LABEL.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} is no name of a label in Loki",
            hint="letters, digits and underscores, as k8s_pod_name; dots become underscores",
        )
    return name


def selector(equal: Mapping[str, str], *, like: Mapping[str, str] | None = None) -> str:
    """Which streams: ``{a="x",b=~"y"}``.

    Args:
        equal: labels and the value that each must have.
        like: labels and a regular expression for the whole of each value.

    Raises:
        UsageError: a name is none, or nothing is asked for: Loki wants one label at least.
    """
    parts = [f"{label(name)}={quoted(value)}" for name, value in equal.items()]
    parts += [f"{label(name)}=~{quoted(value)}" for name, value in (like or {}).items()]
    if not any(value for value in (*equal.values(), *(like or {}).values())):
        raise UsageError("a query of Loki names no stream", hint="give one label with a value")
    return "{" + ",".join(parts) + "}"


def containing(texts: Sequence[str]) -> str:
    """Only lines that contain one of these texts: `` |= "a" or "b"``; nothing for none."""
    return f" |= {' or '.join(quoted(text) for text in texts)}" if texts else ""


def having(name: str, value: str) -> str:
    """Only lines whose label or structured metadata has this value: `` | k8s_node_name="n1"``.

    Raises:
        UsageError: no name of a label.
    """
    return f" | {label(name)}={quoted(value)}"
