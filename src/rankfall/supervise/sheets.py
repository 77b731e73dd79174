"""Fact sheets of all slots of a plan: what their records tell, and what the backend sees of those whose records do not.

Draws no conclusion from a slot that is only late: it is looked at once more before it counts as lost.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankfall.backends.plan import Plan, slot_plan
from rankfall.backends.protocol import Backend
from rankfall.model import SlotFacts
from rankfall.observe.attempt import AttemptObserver
from rankfall.supervise.ledger import Ledger


class Sheets:
    """Slots of one attempt.

    Args:
        plan: of the attempt.
        backend: that planned it.
        observer: reads the records.
        ledger: takes notes about ends that could not be recorded.
    """

    def __init__(self, plan: Plan, *, backend: Backend, observer: AttemptObserver, ledger: Ledger) -> None:
        self._plan = plan
        self._backend = backend
        self._observer = observer
        self._ledger = ledger
        self._dead: set[int] = set()
        self._unwritten: set[int] = set()

    def slots(self) -> tuple[SlotFacts, ...]:
        """The slots that belong to the gang, as they stand now."""
        gone = self._plan.gone
        return tuple(facts for facts in self.everyone() if facts.slot not in gone)

    def replan(self, plan: Plan) -> None:
        """Look at the slots of this plan: some joined or left."""
        self._plan = plan

    def everyone(self) -> tuple[SlotFacts, ...]:
        """All slots of the plan, those too that left."""
        known = {facts.slot: facts for facts in self._observer.slots()}
        found = []
        for one in self._plan.slots:
            facts = known.get(one.slot) or SlotFacts(slot=one.slot, node=one.node, role=one.role, state="expected")
            if facts.state in {"expected", "lost"}:
                facts = self._unrecorded(facts)
            launcher, node = facts.launcher or self._plan.launcher, facts.node or one.node or None
            if (launcher, node) != (facts.launcher, facts.node):
                facts = msgspec.structs.replace(facts, launcher=launcher, node=node)
            found.append(facts)
        return tuple(found)

    def start_again(self, plan: Plan, slot: int) -> None:
        """Look at the start of a slot that this plan says, and forget what was seen of the one before."""
        self._plan = plan
        self._dead.discard(slot)
        self._unwritten.discard(slot)

    def without_the_rest(self) -> None:
        """Slots that were not started until now will not be any more: they count as lost."""
        self._dead |= {s.slot for s in self._plan.slots if self._backend.life(self._plan, s.slot) == "absent"}

    def never_came(self) -> list[int]:
        """Lost slots whose wrapper left no sign of having come up."""
        return [s.slot for s in self.slots() if s.state == "lost" and s.slot in self._dead]

    def _unrecorded(self, facts: SlotFacts) -> SlotFacts:
        """A slot without an end record: a wrapper that was killed, never came up, or could write nothing because the disk is full."""
        slot = facts.slot
        if facts.state == "expected":
            if slot not in self._dead:
                if self._backend.life(self._plan, slot) in {"dead", "ended"}:
                    # Looked at once more by the next poll, so that a record written meanwhile is not overlooked.
                    self._dead.add(slot)
                return facts
            folder = Path(slot_plan(self._plan, slot).slot_dir).name
            where = f"slots/attempt-{self._plan.attempt}/{folder}/wrapper.log"
            facts = msgspec.structs.replace(facts, state="lost", where=where)
            came_up = False
        else:
            came_up = True
        code = self._backend.exit_code(self._plan, slot)
        # A wrapper that never came up has a code of its own; only 0 is surely the command's.
        if code is None or (code and not came_up):
            return facts
        if slot not in self._unwritten:
            self._unwritten.add(slot)
            self._ledger.note(
                f"slot {slot} of attempt {self._plan.attempt} ended with code {code} and could not record it"
            )
        return msgspec.structs.replace(facts, state="ended", exit_code=code, where="exit status of the wrapper")
