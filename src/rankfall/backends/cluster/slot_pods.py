"""The pod of each slot as the journal has it, and how the slot stands by it. Reads the run directory only.

A slot has ended when its container has and the last words of it are stored; one that nobody will hear of any more is dead.
"""

from __future__ import annotations

import time
from typing import Final

from rankfall.backends.cluster.submitted import run_of
from rankfall.backends.plan import Plan, slot_plan
from rankfall.backends.protocol import Life
from rankfall.observe.cluster.podfacts import PodFact
from rankfall.observe.cluster.pods import PodView

# How old the journal of pods may be that a slot is told by, seconds: less than a look takes.
_FRESH_S: Final = 0.01


class SlotPods:
    """Pods of a run's attempts; each journal is read on from where it was."""

    def __init__(self) -> None:
        self._views: dict[int, PodView] = {}
        self._read_at: dict[int, float] = {}

    def of(self, plan: Plan, slot: int) -> PodFact | None:
        """The pod of this start of the slot; None while the journal has none.

        Raises:
            KeyError: the plan has no such slot.
        """
        view = self._views.get(plan.attempt)
        if view is None:
            run_dir = run_of(plan)
            view = self._views[plan.attempt] = PodView(run_dir.path, attempt=plan.attempt)
            spec = run_dir.spec
            for one in plan.slots:
                if spec.restarts_alone(one.slot):
                    view.look_at(one.slot, one.instance)
        start = slot_plan(plan, slot).instance
        if start:
            view.look_at(slot, start)
            self._read_at.pop(plan.attempt, None)
        self._refreshed(plan.attempt, view)
        return view.pods().get(slot)

    def _refreshed(self, attempt: int, view: PodView) -> None:
        """Take in what is new; once for all slots that are asked for in one go."""
        now = time.monotonic()
        if now - self._read_at.get(attempt, -_FRESH_S) >= _FRESH_S:
            view.poll()
            self._read_at[attempt] = now


def life_of(fact: PodFact | None) -> Life:
    """How a slot stands whose pod this is; None = it has none yet."""
    if fact is None:
        return "absent"
    if fact.main is not None and fact.main.state == "terminated":
        return "ended" if fact.log != "open" else "running"
    if fact.overdue and not fact.over:
        return "dead"
    if fact.gone or fact.phase == "Failed":
        return "dead" if fact.log != "open" or fact.main is None else "running"
    return "running" if fact.main is not None and fact.main.state == "running" else "starting"
