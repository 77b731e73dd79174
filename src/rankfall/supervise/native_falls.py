"""Slots of an unattended Job that fall and whose pods Kubernetes replaces by itself, one at a time, while the others run on.

Nothing is decided here: that the next pod is there is the decision. The fall before it gets a diagnosis of its own, from what is known of that
pod alone, and is nothing of its successor's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.model import SlotFacts
from rankfall.model.times import rfc3339
from rankfall.observe.attempt import AttemptObserver
from rankfall.observe.cluster.podfacts import PodFact
from rankfall.observe.strategies import diagnose_by
from rankfall.store import Fall, FallRow
from rankfall.supervise.events import EventLog
from rankfall.supervise.keeping import Keeper
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.sheets import Sheets

RULE: Final = "native"


class NativeFalls:
    """The replaced slots of one attempt.

    Args:
        plan: of the attempt, with the start of each slot that is looked at.
        alone: slots whose pods are replaced alone; empty = all of this does nothing.
        observer, sheets, keeper: of the attempt.
        ledger: takes the falls.
        events: for viewers.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        alone: Collection[int],
        observer: AttemptObserver,
        sheets: Sheets,
        keeper: Keeper,
        ledger: Ledger,
        events: EventLog,
    ) -> None:
        self._plan = plan
        self._alone = frozenset(alone)
        self._observer = observer
        self._sheets = sheets
        self._keeper = keeper
        self._ledger = ledger
        self._events = events

    def look(self, slots: Iterable[SlotFacts], pods: Iterable[PodFact]) -> bool:
        """Go over to the next pod of each slot that fell and has one; whether there was any.

        Args:
            slots: all slots of the attempt.
            pods: all pods of the attempt.
        """
        made: dict[int, int] = {}
        for pod in pods if self._alone else ():
            if pod.slot is not None:
                made[pod.slot] = made.get(pod.slot, 0) + 1
        moved = [facts for facts in slots if _fell(facts) and made.get(facts.slot, 0) > facts.instance + 1]
        for facts in moved:
            self._go_over(facts)
        return bool(moved)

    def _go_over(self, facts: SlotFacts) -> None:
        now, slot = time.time_ns(), facts.slot
        case = msgspec.structs.replace(self._observer.case(only=slot), slots=(facts,), ended=True, succeeded=False)
        found = diagnose_by(self._plan.strategy, case)
        fall = Fall(
            action="retry",
            rule=RULE,
            because="Kubernetes replaced its pod by itself",
            at=rfc3339(now),
            slot=slot,
            instance=facts.instance,
            diagnosis=found,
            evidence=self._observer.evidence_of(slot),
            due=now,
        )
        self._keeper.store(force=True)
        number = self._ledger.add_decision(self._plan.attempt, fall)
        self._ledger.decision_done(FallRow(id=number or 0, attempt=self._plan.attempt, fall=fall), at=now)
        cause = found.verdict.cause
        self._events.say(
            "fall",
            f"slot {slot} fell: {cause.slug} ({cause.confidence}); retry: {fall.because}, the others run on",
            at=now,
            attempt=self._plan.attempt,
            slot=slot,
            instance=facts.instance,
            slug=cause.slug,
            rule=RULE,
        )
        self._observer.look_at(slot, facts.instance + 1)
        self._plan = self._plan.with_start(slot, facts.instance + 1)
        self._sheets.start_again(self._plan, slot)


def _fell(facts: SlotFacts) -> bool:
    return facts.state == "lost" or (facts.state == "ended" and bool(facts.signal or facts.exit_code))
