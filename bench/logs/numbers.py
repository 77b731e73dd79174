"""Lines that count aloud, and what of them a tool saw. Pure: text in, counts out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# A writer's line, wherever a tool put its prefix and stamps. The bar ends it, so that half a line is none.
_LINE: Final = re.compile(rb"count (\d+) (\d+)\|")


@dataclass(frozen=True)
class Seen:
    """What a tool made of the lines of all writers.

    Attributes:
        written: lines that there were.
        seen: different ones that arrived whole.
        repeated: arrivals beyond the first of a line.
        strange: lines that nobody wrote, or torn ones.
    """

    written: int
    seen: int
    repeated: int
    strange: int

    @property
    def lost(self) -> int:
        """Lines that never arrived."""
        return self.written - self.seen


def said(writer: int, number: int, *, length: int = 0) -> str:
    """What a writer prints as its line of this number."""
    return f"count {writer} {number}|".ljust(length, ".")


def count(text: bytes, *, writers: int, lines: int) -> Seen:
    """Count what arrived.

    Args:
        text: all that a tool printed or stored.
        writers: numbered from 0.
        lines: of each, numbered from 0.
    """
    arrived: Counter[tuple[int, int]] = Counter()
    strange = 0
    for line in text.splitlines():
        if b"count" not in line:
            continue
        found = _LINE.findall(line)
        whole = [(int(writer), int(number)) for writer, number in found]
        known = [one for one in whole if one[0] < writers and one[1] < lines]
        arrived.update(known)
        strange += len(whole) != line.count(b"count ") or len(known) != len(whole) or len(whole) > 1
    return Seen(written=writers * lines, seen=len(arrived), repeated=arrived.total() - len(arrived), strange=strange)


def total(parts: Iterable[Seen]) -> Seen:
    """Several counts as one."""
    parts = list(parts)
    return Seen(
        written=sum(one.written for one in parts),
        seen=sum(one.seen for one in parts),
        repeated=sum(one.repeated for one in parts),
        strange=sum(one.strange for one in parts),
    )
