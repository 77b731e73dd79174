"""Combines all bounds of node clocks and converts times to this machine's clock.

Fine bounds (nanoseconds) come from live lines, coarse ones (whole seconds) from objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from rankfall.model import RankFacts, SlotFacts
from rankfall.model.evidence import SlotClock
from rankfall.model.timestamps import EXACT, Bound

# Maximum offset in seconds of a clock that counts as local.
GOOD_CLOCK_S: Final = 0.5
_NS: Final = 1_000_000_000
_GOOD: Final = round(GOOD_CLOCK_S * _NS)
Sheet = TypeVar("Sheet", RankFacts, SlotFacts)
# Lateness without any bound.
_NEVER: Final = 1 << 62


class NodeClocks:
    """Clocks of one attempt; slots of one node share its clock."""

    def __init__(self, node_of: Callable[[int | None], str | None]) -> None:
        self._node_of = node_of
        self._fine: dict[int | None, Bound] = {}
        self._coarse: dict[int, Bound] = {}
        self._nodes: dict[str, Bound] = {}
        self._server = EXACT
        # By node; None = to be computed again.
        self._by_node: dict[str, tuple[Bound, Bound]] | None = None
        self._off: dict[int, Bound] | None = None
        self._late: dict[int | None, int] = {}

    def came(self, slot: int | None, delay_ns: int) -> None:
        """Adds a delay in nanoseconds between a timestamp in the slot's data and the data's arrival here."""
        self._forget()
        held = self._fine.get(slot)
        fine = Bound(-delay_ns, None)
        self._fine[slot] = fine if held is None else held.meet(fine)

    def written(self, slot: int | None, at: int, arrived: int) -> None:
        """Adds a writer's timestamp and the file system's ``arrived`` right after it, by this machine's clock."""
        # The writer may have been suspended in between: the greatest lower bound counts; the write may take half a
        # second.
        lo = at - arrived
        held = self._fine.get(slot)
        if held is None or held.lo is None or lo > held.lo:
            self._fine[slot] = Bound(lo, lo + _GOOD)
            self._forget()

    def proved(self, slot: int, ahead: Bound) -> None:
        """Sets the bound of the slot's clock that object timestamps prove; replaces the earlier one."""
        if self._coarse.get(slot) != ahead:
            self._coarse[slot] = ahead
            self._forget()

    def proved_of_node(self, node: str, ahead: Bound) -> None:
        """Sets the bound that timestamps on a node's objects prove; replaces the earlier one."""
        if self._nodes.get(node) != ahead:
            self._nodes[node] = ahead
            self._forget()

    def placed(self) -> None:
        """Combines the slots by node again, because the nodes of slots became known."""
        self._forget()

    def server(self, ahead: Bound) -> None:
        """Sets how far the API server's clock is ahead."""
        self._server = ahead

    def ahead(self, slot: int | None) -> Bound:
        """Offset of a slot's clock; :data:`EXACT` if local."""
        fine, known = self._known(slot)
        if self._is_local_clock(fine, known):
            return EXACT
        return fine.meet(known)

    def late(self, slot: int | None) -> int:
        """Nanoseconds by which an event may follow its timestamp; may be negative."""
        # Called for each slot at each poll.
        if slot not in self._late:
            self._late[slot] = self._find_late(slot)
        return self._late[slot]

    def _find_late(self, slot: int | None) -> int:
        fine, known = self._known(slot)
        if self._is_local_clock(fine, known):
            return abs(fine.lo or 0)
        lo = fine.meet(known).lo
        return _NEVER if lo is None else -lo

    def ours(self, slot: int | None, at: int) -> int:
        """Converts a slot's timestamp to this machine's clock; nanoseconds since the epoch."""
        return at - (self.ahead(slot).middle or 0)

    def off(self) -> Mapping[int, Bound]:
        """Clock offsets of slots whose clock does not count as local, by slot."""
        if self._off is None:
            slots = {slot for slot in (*self._fine, *self._coarse) if slot is not None}
            self._off = {slot: ahead for slot in sorted(slots) if (ahead := self.ahead(slot)) is not EXACT}
        return self._off

    def retimed(self, facts: Sheet) -> Sheet:
        """Facts with times converted to this machine's clock, as exactly as the bounds allow."""
        if facts.slot not in self.off():
            return facts
        started, ended = self._times(facts.slot, facts.started_at, facts.ended_at)
        return msgspec.structs.replace(facts, started_at=started, ended_at=ended)

    def _times(self, slot: int | None, *times: int | None) -> list[int | None]:
        return [None if at is None else self.ours(slot, at) for at in times]

    def table(self) -> tuple[SlotClock, ...]:
        """Returns all clocks that do not count as local, for a case."""
        rows = [SlotClock(slot, ahead) for slot, ahead in self.off().items()]
        server = self._server
        ours = (server.lo is None or server.lo <= _GOOD) and (server.hi is None or server.hi >= -_GOOD)
        return tuple(rows) if ours else (SlotClock(None, server), *rows)

    def _forget(self) -> None:
        self._late = {}
        self._by_node = None
        self._off = None

    def _known(self, slot: int | None) -> tuple[Bound, Bound]:
        if self._by_node is None:
            self._by_node = self._combined()
        node = self._node_of(slot)
        if node is not None:
            return self._by_node.get(node) or (Bound(), self._nodes.get(node, Bound()))
        return self._fine.get(slot, Bound()), Bound() if slot is None else self._coarse.get(slot, Bound())

    def _combined(self) -> dict[str, tuple[Bound, Bound]]:
        found: dict[str, tuple[Bound, Bound]] = {}
        for slot in (*self._fine, *(slot for slot in self._coarse if slot not in self._fine)):
            node = self._node_of(slot)
            if node is not None:
                fine, known = found.get(node) or (Bound(), self._nodes.get(node, Bound()))
                coarse = Bound() if slot is None else self._coarse.get(slot, Bound())
                found[node] = (fine.meet(self._fine.get(slot, Bound())), known.meet(coarse))
        return found

    @staticmethod
    def _is_local_clock(fine: Bound, known: Bound) -> bool:
        if fine.lo is not None:
            return abs(fine.lo) <= _GOOD
        return (known.lo is None or known.lo <= _GOOD) and (known.hi is None or known.hi >= -_GOOD)
