"""Small things about text of jobs: decode, bound, normalise. Text is hostile: nothing here trusts its size or its bytes."""

from __future__ import annotations

import hashlib
from typing import Final

from rankfall.model.patterns import bounded

MAX_LINE: Final = 2000
# So many bytes are compared at once.
_BLOCK: Final = 64 << 10

_NORMAL: Final = (
    (bounded(r"0x[0-9a-fA-F]+", limit=2_000), "PTR"),
    (bounded(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}\b", limit=2_000), "UUID"),
    # Only from the beginning of a word: from each of its letters a long one would take time by its square.
    (bounded(r"(?<![\w./-])(?:[\w.-]*/)+([\w.-]+)", limit=2_000), r"\1"),
    (bounded(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", limit=2_000), "ADDR"),
    (bounded(r"(?i)\b(rank|worker|node|host|pid|port|gpu|slot|cuda:)([ :=_\[(-]*)\d+", limit=2_000), r"\1\2#"),
    (bounded(r"\d{4,}", limit=2_000), "#"),
)


def decode(data: bytes, *, limit: int = MAX_LINE) -> str:
    """Text for people: UTF-8 with replacements, at most ``limit`` bytes; what a carriage return overwrote is left out."""
    line = data.rstrip(b"\r\n")
    line = line[line.rfind(b"\r") + 1 :]
    if len(line) > limit:
        line = line[:limit] + b" ..."
    return line.decode("utf-8", "replace")


def repeats(data: bytes, start: int, width: int, *, most: int) -> int:
    """How many copies of ``data[start : start + width]`` follow it at once, at most ``most``: as fast as memory is compared."""
    count, at, step, block = 0, start + width, 1, data[start : start + width]
    while step <= most - count and data.startswith(block, at):
        count, at = count + step, at + len(block)
        if len(block) < _BLOCK:
            block, step = block * 2, step * 2
    while step > 1:
        step //= 2
        block = block[: step * width]
        if step <= most - count and data.startswith(block, at):
            count, at = count + step, at + len(block)
    return count


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
