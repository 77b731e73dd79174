"""Small things about text of jobs: decode, bound, normalise. Text is hostile: nothing here trusts its size or its bytes."""

from __future__ import annotations

import hashlib
import re
from typing import Final

MAX_LINE: Final = 2000

_NORMAL: Final = (
    (re.compile(r"0x[0-9a-fA-F]+"), "PTR"),
    (re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}\b"), "UUID"),
    # Only from the beginning of a word: from each of its letters a long one would take time by its square.
    (re.compile(r"(?<![\w.-])(?:[\w.-]*/)+([\w.-]+)"), r"\1"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDR"),
    (re.compile(r"(?i)\b(rank|worker|node|host|pid|port|gpu|slot|cuda:)([ :=_\[(-]*)\d+"), r"\1\2#"),
    (re.compile(r"\d{4,}"), "#"),
)


def decode(data: bytes, *, limit: int = MAX_LINE) -> str:
    """Text for people: UTF-8 with replacements, at most ``limit`` bytes; what a carriage return overwrote is left out."""
    line = data.rstrip(b"\r\n")
    line = line[line.rfind(b"\r") + 1 :]
    if len(line) > limit:
        line = line[:limit] + b" ..."
    return line.decode("utf-8", "replace")


def normalise(text: str) -> str:
    """The same text for the same fault elsewhere: no pointers, addresses, folders, ports, ranks, long numbers."""
    text = text[:MAX_LINE]
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text[:300]


def digest(*parts: object) -> str:
    """A short, stable identity of some content."""
    joined = "\0".join("" if part is None else str(part) for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
