"""Which of many equal records are printed one by one: the first of a minute; the others are counted and told in one line.

The first of each kind is always printed at once, so no storm hides another fault. Memory is bounded: past a number of kinds all
further ones of the minute share one count.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import msgspec

from rankfall.model.health_report import KernelLine

WINDOW_S: Final = 60.0
BURST: Final = 10
KINDS: Final = 512


class _Count:
    __slots__ = ("first", "folded", "last", "printed", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.printed = 0
        self.folded = 0
        self.first: KernelLine | None = None
        self.last: KernelLine | None = None


class Storm:
    """Counts equal lines of one minute each."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Count] = {}

    def admit(self, line: KernelLine, *, now: float) -> bool:
        """Whether this line is to be printed itself.

        Args:
            line: of any kind.
            now: seconds on a clock that never jumps.
        """
        key: Hashable = (line.kind, line.code, line.device, line.instance, line.job, line.trust)
        if key not in self._kinds and len(self._kinds) >= KINDS:
            key = None
        count = self._kinds.get(key)
        if count is None:
            count = self._kinds[key] = _Count(now + WINDOW_S)
        if count.printed < BURST:
            count.printed += 1
            return True
        count.folded += 1
        count.first = count.first or line
        count.last = line
        return False

    def due(self, *, now: float, all_: bool = False) -> list[KernelLine]:
        """Lines that tell the counts of the minutes that are over.

        Args:
            now: as above.
            all_: those that are not over too: the agent ends.
        """
        over = [key for key, each in self._kinds.items() if all_ or each.until <= now]
        return [_told(count) for key in over if (count := self._kinds.pop(key)).folded]

    def next(self) -> float | None:
        """When the next minute is over; None = nothing is counted."""
        return min((each.until for each in self._kinds.values() if each.folded), default=None)


def _told(count: _Count) -> KernelLine:
    first, last = count.first, count.last
    if first is None or last is None:
        raise AssertionError("a count without a line")
    return msgspec.structs.replace(
        last,
        kind="fold",
        seq=first.seq,
        last_seq=last.seq,
        count=count.folded,
        note=f"{count.folded} more as this one within {WINDOW_S:.0f} s",
    )
