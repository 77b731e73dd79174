"""Signals that somebody sent to a slot's wrapper: whose they are. One that may be of our own request to stop is nobody else's."""

from __future__ import annotations

from rankfall.model import Evidence, Record
from rankfall.observe import evidence as make
from rankfall.observe.cluster.stops import StopMark
from rankfall.observe.facts import Facts
from rankfall.observe.records import Found


class Signals:
    """Records of such signals, weighed anew each time: the mark of our stop, and how far a clock is off, may be known later.

    Args:
        stop: the mark of our own stop; None on this machine, where the wrapper knows who sent a signal.
    """

    def __init__(self, stop: StopMark | None) -> None:
        self._stop = stop
        self._found: list[Found] = []

    def add(self, item: Found) -> None:
        """Take one record of kind ``kill``."""
        self._found.append(item)

    def forget(self, slot: int) -> None:
        """Drop those of a slot that is started again."""
        self._found = [item for item in self._found if item.record.slot != slot]

    def weigh(self, facts: Facts) -> tuple[list[Evidence], list[Evidence]]:
        """Evidence of somebody else's signals, and what only looked like it."""
        theirs: list[Evidence] = []
        ours: list[Evidence] = []
        for item in self._found:
            record = item.record
            piece = make.of_slot_signal(record, name=f"records/{item.name}")
            if piece is not None:
                (ours if self._after_stop(record, facts) else theirs).append(piece)
        return theirs, ours

    def _after_stop(self, record: Record, facts: Facts) -> bool:
        """Whether it came after we asked for the end, as far as the slot's clock can tell."""
        stop = self._stop.read() if self._stop is not None else None
        if stop is None or record.at_ns is None:
            return False
        return record.at_ns + facts.clocks.late(record.slot) >= stop.at_ns
