"""Restarts single failed slots inside a running attempt (``restart_scope: replica``).

Verdict and decision are one row, written before any action. The diagnosis uses only that instance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.model import Case, Decision, Diagnosis, SlotFacts
from rankfall.rundir import SlotFailure, SlotFailureRow
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt_facts import AttemptWriter, SlotStates
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.run_events import EventLog

# Seconds for a wrapper's exit or the kubelet's report.
_LEAVE_S: Final = 10.0
# Seconds to read a failure's data while other slots have new data.
_QUIET_S: Final = 0.5
_NS: Final = 1_000_000_000
# Between messages about a waiting slot; Kubernetes' back-off is 10 s, doubled, at most 10 minutes.
_WAIT_NS: Final = 60 * _NS

# Decides about a failed slot; takes diagnosis, case and slot.
Decide = Callable[[Diagnosis, Case, int], Decision]
# Reports a failed slot to its node; takes plan, diagnosis, slot and instance.
Tell = Callable[[Plan, Diagnosis, int, int], None]


class SlotRestarts:
    """The slots of one attempt that restart alone.

    ``down``: slots that stay failed; ``final``: their newest verdict or None. ``grace`` in seconds.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        alone: Iterable[int],
        falls: list[SlotFailureRow],
        backend: Backend,
        observer: AttemptObserver,
        slot_states: SlotStates,
        writer: AttemptWriter,
        run_store: BestEffortStore,
        events: EventLog,
        decide: Decide,
        tell: Tell,
        grace: float,
    ) -> None:
        self.plan = plan
        self.down: set[int] = set()
        self.final: Diagnosis | None = None
        self._alone = frozenset(alone)
        self._backend = backend
        self._observer = observer
        self._slot_states = slot_states
        self._writer = writer
        self._run_store = run_store
        self._events = events
        self._decide = decide
        self._tell = tell
        self._grace = grace
        self._falls = falls
        # Decisions not carried out yet.
        self._waiting: dict[int, SlotFailureRow] = {}
        self._started: set[tuple[int, int]] = set()
        # Last message by slot, nanoseconds since the epoch.
        self._announced_at: dict[int, int] = {}
        # First observation of a failure, monotonic seconds.
        self._seen: dict[int, float] = {}
        for slot in plan.slots:
            if slot.instance:
                # The decision that restarted it may be lost.
                observer.select_start(slot.slot, slot.instance)
                slot_states.start_again(plan, slot.slot)
        for row in falls:
            if row.attempt == plan.attempt:
                self._take(row)

    def waits(self, slot: int) -> bool:
        """True if the slot is to restart and has not yet."""
        return slot in self._waiting

    def own(self, slot: int | None) -> bool:
        """True if a failure of this slot is handled here and is no failure of the attempt."""
        return slot in self._alone and slot not in self.down

    @property
    def busy(self) -> bool:
        """True if a slot has failed or is about to start."""
        return bool(self._waiting or self._seen)

    def masked(self, slots: tuple[SlotFacts, ...]) -> tuple[SlotFacts, ...]:
        """Returns the slots; failed ones that may restart count as running."""
        return tuple(
            msgspec.structs.replace(facts, state="running", exit_code=None, signal=None, killed_by=None, ended_at=None)
            if self.own(facts.slot) and _fell(facts)
            else facts
            for facts in slots
        )

    def look(
        self, slots: tuple[SlotFacts, ...], *, changed: bool, clock: float, halted: Callable[[], bool] = lambda: False
    ) -> None:
        """Decides about failed slots and starts slots that are due.

        ``changed``: new data arrived. ``halted`` is called before each decision, because stopped slots fail too.

        Raises:
            InfrastructureError: A slot cannot be started.
        """
        for facts in slots:
            if not self.own(facts.slot):
                continue
            row = self._waiting.get(facts.slot)
            if row is not None:
                self._start(row)
            elif _fell(facts):
                self._handle_failed(facts, changed=changed, clock=clock, halted=halted)

    def _handle_failed(self, facts: SlotFacts, *, changed: bool, clock: float, halted: Callable[[], bool]) -> None:
        slot = facts.slot
        age = clock - self._seen.setdefault(slot, clock)
        if age < _LEAVE_S and (self._backend.alive(self.plan, slot) or (changed and age < _QUIET_S)):
            return
        if halted():
            return
        del self._seen[slot]
        if facts.state == "lost" and self._backend.end(self.plan, [slot], grace=self._grace):
            self._events.say("gap", f"ended leftover processes of slot {slot}", at=time.time_ns(), slots=[slot])
        case = msgspec.structs.replace(self._observer.case(only=slot), slots=(facts,), ended=True, succeeded=False)
        found = diagnose_by(self.plan.strategy, case)
        if found.verdict.cause.confidence != "proven" and self._backend.deleted_externally(self.plan) is not None:
            # The attempt handles a deleted job.
            self.down.add(slot)
            return
        decision = self._decide(found, case, slot)
        if self.plan.cluster is not None:
            # Kubernetes has its own back-off.
            decision = msgspec.structs.replace(decision, delay_s=0.0)
        fall = SlotFailure(
            **msgspec.structs.asdict(decision),
            slot=slot,
            instance=facts.instance,
            diagnosis=found,
            evidence=self._observer.evidence_of(slot),
            step=max((facts.step for facts in case.ranks if facts.step is not None), default=None),
            due=time.time_ns() + round(decision.delay_s * _NS),
        )
        self._writer.store(force=True)
        number = self._run_store.add_decision(self.plan.attempt, fall)
        self._say(fall)
        row = SlotFailureRow(id=number or 0, attempt=self.plan.attempt, fall=fall)
        self._falls.append(row)
        self._take(row)

    def _take(self, row: SlotFailureRow) -> None:
        """Applies a decision: observes the next instance from now on, or leaves the slot failed."""
        fall = row.fall
        if not fall.again:
            self.down.add(fall.slot)
            self.final = fall.diagnosis
            return
        self._observer.select_start(fall.slot, fall.instance + 1)
        self.plan = self.plan.with_start(fall.slot, fall.instance + 1)
        self._slot_states.start_again(self.plan, fall.slot)
        if row.done_at is None:
            self._waiting[fall.slot] = row
            # After a kill this repeats. The attempt's verdict reports a slot that stays failed.
            self._tell(self.plan, fall.diagnosis, fall.slot, fall.instance)

    def _start(self, row: SlotFailureRow) -> None:
        slot, now = row.fall.slot, time.time_ns()
        if self._backend.life(self.plan, slot) == "absent":
            if now < row.fall.due:
                return
            key = (slot, row.fall.instance)
            if key not in self._started:
                self._backend.start_again(self.plan, slot)
                self._started.add(key)
            if self._backend.life(self.plan, slot) == "absent":
                self._announce_wait(row, now)
                return
        del self._waiting[slot]
        self._run_store.decision_done(row, at=now)
        self._falls[self._falls.index(row)] = msgspec.structs.replace(row, done_at=now)
        text = f"slot {slot} is restarted alone, the others continue (restart {row.fall.instance + 1} of this slot)"
        self._events.say("slot", text, at=now, attempt=self.plan.attempt, slot=slot, instance=row.fall.instance + 1)

    def _announce_wait(self, row: SlotFailureRow, now: int) -> None:
        """Reports a long wait: a platform does not replace a pod whose end it cannot prove."""
        slot = row.fall.slot
        if now >= self._announced_at.get(slot, row.fall.due) + _WAIT_NS:
            self._announced_at[slot] = now
            pod = f" {row.fall.diagnosis.verdict.pod}" if row.fall.diagnosis.verdict.pod else ""
            text = f"slot {slot} waits until Kubernetes replaces its pod{pod} (for {(now - row.fall.due) / _NS:.0f} s)"
            self._events.say("waiting", text, at=now, attempt=self.plan.attempt, slot=slot)

    def _say(self, fall: SlotFailure) -> None:
        verdict, now = fall.diagnosis.verdict, time.time_ns()
        rank = "" if verdict.rank is None else f", rank {verdict.rank}"
        place = f" on {verdict.node}" if verdict.node else ""
        about = {"attempt": self.plan.attempt, "slot": fall.slot, "instance": fall.instance}
        self._events.say(
            "fall",
            f"slot {fall.slot} failed: {verdict.cause.slug} ({verdict.cause.confidence}){rank}{place}; "
            f"{fall.action}: {fall.because}",
            at=now,
            **about,
            slug=verdict.cause.slug,
            confidence=verdict.cause.confidence,
            rank=verdict.rank,
            node=verdict.node,
            action=fall.action,
            rule=fall.rule,
            budget=fall.budget,
            left=fall.left,
            delay_s=round(fall.delay_s, 3),
        )


def _fell(facts: SlotFacts) -> bool:
    return facts.state == "lost" or (facts.state == "ended" and bool(facts.signal or facts.exit_code))
