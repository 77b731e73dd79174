"""Prefixes that launchers put before a line, and what they say of its rank. Only lines that matter are looked at, so this may be slow.

A prefix is believed for the identity of the line, as job text: ours, torch's, mpirun's and srun's carry the global rank, torchrun's
``[default1]:`` only the local one. Anything else is peeled off and says nothing.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_STAMP: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES: Final = (
    ("global", re.compile(rb"\[rank ?(\d{1,6})\]:? ?")),
    ("global", re.compile(rb"\[\d{1,6},(\d{1,6})\]<std(?:out|err)>: ?")),
    ("global", re.compile(rb"(\d{1,6}): (?=\S)")),
    ("local", re.compile(rb"\[[A-Za-z_]+(\d{1,4})\]: ?")),
    ("slot", re.compile(rb"\[slot (\d{1,6})\] ?")),
    ("pod", re.compile(rb"\[pod/([\w.-]{1,253})/[\w.-]{1,63}\] ?")),
    ("host", re.compile(rb"([\w.-]{1,253}): (?=\[?rank ?\d|Traceback|  File|[\w.]+(?:Error|Exception)\b)")),
    ("host", re.compile(rb"([\w.-]{1,128}) +\| ?")),
    ("none", re.compile(rb"\([^()\n]{0,200}?\bpid=\d+[^()\n]{0,200}?\) ?")),
    ("none", re.compile(rb"(?:\x1b\[[0-9;]*m)+")),
    ("stamp", re.compile(rb"\[?" + _STAMP.encode() + rb"\]? ?")),
)
_MAX_PREFIXES: Final = 6


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
    at = 0
    found: dict[str, bytes] = {}
    raw: list[bytes] = []
    head = line[:1024]
    for _ in range(_MAX_PREFIXES):
        for kind, pattern in _PREFIXES:
            match = pattern.match(head, at)
            if match is not None and match.end() > at and (kind in {"none", "stamp"} or kind not in found):
                break
        else:
            break
        if kind == "stamp":
            found[kind] = match.group().strip(b"[] ")
        else:
            raw.append(match.group())
            if kind != "none":
                found[kind] = match.group(1)
        at = match.end()
    if not at:
        return _NOTHING
    name = found.get("pod") or found.get("host")
    return Prefix(
        length=at,
        raw=b"".join(raw),
        rank=_number(found.get("global")),
        local_rank=_number(found.get("local")),
        slot=_number(found.get("slot")),
        name=name.decode("utf-8", "replace") if name else None,
        stamp=found["stamp"].decode("ascii", "replace") if "stamp" in found else None,
    )


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None else None
