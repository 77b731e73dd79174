"""Decodes, bounds and normalizes job text, and parses launcher prefixes.

Prefixes of Rankfall, torch, mpirun and srun give the global rank, torchrun's [default1]: only the local one.

Cost: at most the first ``_LOOK`` bytes of a line are read for its prefixes; nothing is cached.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model.numbers import whole
from rankfall.model.patterns import anchored, bounded

MAX_LINE: Final = 2000
# Bytes compared in one step.
_BLOCK: Final = 64 << 10

_NORMAL: Final = (
    (bounded(r"0x[0-9a-fA-F]+", limit=2_000), "PTR"),
    (bounded(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}\b", limit=2_000), "UUID"),
    # Only from a word's beginning: otherwise quadratic time.
    (bounded(r"(?<![\w./-])(?:[\w.-]*/)+([\w.-]+)", limit=2_000), r"\1"),
    (bounded(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", limit=2_000), "ADDR"),
    (bounded(r"(?i)\b(rank|worker|node|host|pid|port|gpu|slot|cuda:)([ :=_\[(-]*)\d+", limit=2_000), r"\1\2#"),
    (bounded(r"\d{4,}", limit=2_000), "#"),
)


def decode(data: bytes, *, limit: int = MAX_LINE) -> str:
    """Decodes a line for display: at most ``limit`` bytes, without text before a carriage return."""
    line = data.rstrip(b"\r\n")
    line = line[line.rfind(b"\r") + 1 :]
    if len(line) > limit:
        line = line[:limit] + b" ..."
    return line.decode("utf-8", "replace")


def repeats(data: bytes, start: int, width: int, *, most: int) -> int:
    """Returns how many copies of ``data[start : start + width]`` directly follow it, at most ``most``."""
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
    """Removes details that differ between equal faults: pointers, folders, ports, ranks."""
    text = text[:MAX_LINE]
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text[:300]


# Bytes of a line that may contain prefixes.
_LOOK: Final = 1024
_STAMP: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES: Final = (
    ("global", bounded(rb"\A\[rank ?(\d{1,6})\]:? ?", limit=_LOOK)),
    ("global", bounded(rb"\A\[\d{1,6},(\d{1,6})\]<std(?:out|err)>: ?", limit=_LOOK)),
    ("global", bounded(rb"\A(\d{1,6}): (?=\S)", limit=_LOOK)),
    ("local", bounded(rb"\A\[[A-Za-z_]+(\d{1,4})\]: ?", limit=_LOOK)),
    ("slot", bounded(rb"\A\[slot (\d{1,6})\] ?", limit=_LOOK)),
    ("pod", bounded(rb"\A\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?", limit=_LOOK)),
    ("host", bounded(rb"\A([\w.-]{1,253}): (?=\[?rank ?\d|Traceback|  File|[\w.]+(?:Error|Exception)\b)", limit=_LOOK)),
    ("host", bounded(rb"\A([\w.-]{1,128}) +\| ?", limit=_LOOK)),
    ("none", bounded(rb"\A\([^()\n]{0,200}?\bpid=\d+[^()\n]{0,200}?\) ?", limit=_LOOK)),
    ("none", bounded(rb"\A(?:\x1b\[[0-9;]*m)+", limit=_LOOK)),
    ("stamp", bounded(rb"\A\[?" + _STAMP.encode() + rb"\]? ?", limit=_LOOK)),
)
_MAX_PREFIXES: Final = 6
# Beginning of any prefix: most lines have none.
_BEGINS: Final = anchored(
    rb"\A(?:[\[(\x1b]|\d{1,6}: |\d{4}[-/]|[\w.-]{1,253}(?:: (?=\[?rank ?\d|Traceback|  File|[\w.]+(?:Error|Exception)\b)| +\|))",
    limit=_LOOK,
)


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix of a line.

    Attributes:
        length: Bytes of all prefixes.
        raw: Without timestamps; the same for one speaker.
    """

    length: int = 0
    raw: bytes = b""
    rank: int | None = None
    local_rank: int | None = None
    slot: int | None = None
    name: str | None = None
    stamp: str | None = None


_NOTHING: Final = Prefix()


def parse_prefix(line: bytes) -> Prefix:
    """Parses the prefixes of one line; empty if none."""
    if _BEGINS.match(line) is None:
        return _NOTHING
    length = 0
    found: dict[str, bytes] = {}
    raw: list[bytes] = []
    rest = line[:_LOOK]
    for _ in range(_MAX_PREFIXES):
        for kind, pattern in _PREFIXES:
            match = pattern.match(rest)
            if match is not None and match.end() and (kind in {"none", "stamp"} or kind not in found):
                break
        else:
            break
        if kind == "stamp":
            found[kind] = match.group().strip(b"[] ")
        else:
            raw.append(match.group())
            if kind != "none":
                found[kind] = match.group(1)
        length += match.end()
        rest = rest[match.end() :]
        if _BEGINS.match(rest) is None:
            break
    if not length:
        return _NOTHING
    name = found.get("pod") or found.get("host")
    return Prefix(
        length=length,
        raw=b"".join(raw),
        rank=whole(found.get("global")),
        local_rank=whole(found.get("local")),
        slot=whole(found.get("slot")),
        name=name.decode("utf-8", "replace") if name else None,
        stamp=found["stamp"].decode("ascii", "replace") if "stamp" in found else None,
    )
