"""The end of a run whose ranks never became known: the last lines of each slot, which the default view did not show for want of a rank."""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import StoreError
from rankfall.report import words
from rankfall.store import RunDir
from rankfall.store.lines import Line, LineQuery, read_lines

_LINES: Final = 20
_SLOTS: Final = 16


class UnknownRanks(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to show.

    Attributes:
        slots: whose ranks never became known, and that printed something.
        lines: the last of each of the first slots.
    """

    slots: tuple[int, ...]
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """What is said before the lines."""
        more = f" (of the first {_SLOTS})" if len(self.slots) > _SLOTS else ""
        named = f"slot {self.slots[0]}" if len(self.slots) == 1 else f"slots {words.ranks(self.slots)}"
        return f"the ranks of {named} never became known; the last lines there{more}, rank unknown:"


def unknown_ranks(directory: RunDir) -> UnknownRanks | None:
    """Of the newest attempt; None when each slot's ranks are known, or nothing was printed.

    Slots of a role outside the world of ranks are left out, where the job has one.
    """
    try:
        spec = directory.spec
    except StoreError:
        return None
    with directory.reader() as reader:
        attempt = reader.newest_attempt()
        if attempt is None:
            return None
        known = {facts.slot for facts in reader.ranks(attempt)}
        known |= {row.slot for row in reader.streams(attempt) if row.rank is not None}
        begun = {facts.slot for facts in reader.slots(attempt)}
    has_world = any(part.in_world for part in spec.parts)
    outside = {slot for part in spec.parts if has_world and not part.in_world for slot in part.slots}
    found: list[int] = []
    lines: list[Line] = []
    for slot in sorted(begun - known - outside):
        if len(found) >= _SLOTS:
            found.append(slot)
            continue
        last = list(read_lines(directory, LineQuery(slots=frozenset({slot}), attempt=attempt, tail=_LINES)))
        if last:
            found.append(slot)
            lines += last
    return UnknownRanks(slots=tuple(found), lines=tuple(lines)) if lines else None
