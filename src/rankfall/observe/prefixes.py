"""Prefixes that launchers put before a line, and what they say of its rank. Only lines that matter are looked at.

A prefix is believed for the identity of the line, as job text: ours, torch's, mpirun's and srun's carry the global rank, torchrun's
``[default1]:`` only the local one. Anything else is peeled off and says nothing.

Cost: at most the first ``_LOOK`` bytes of a line are read, so time is bounded for each line; nothing is kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model.numbers import whole
from rankfall.model.patterns import anchored, bounded

# Bytes of a line in which prefixes may stand.
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
# What any prefix begins with: most lines have none, and are done with at once.
_BEGINS: Final = anchored(
    rb"\A(?:[\[(\x1b]|\d{1,6}: |\d{4}[-/]|[\w.-]{1,253}(?:: (?=\[?rank ?\d|Traceback|  File|[\w.]+(?:Error|Exception)\b)| +\|))",
    limit=_LOOK,
)


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """What stood before a line.

    Attributes:
        length: bytes of all prefixes together.
        raw: those bytes without stamps; lines of one speaker share them.
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
    """The prefixes of one line; a line without any gives an empty one."""
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
