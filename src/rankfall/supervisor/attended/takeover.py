"""Makes this process the only supervisor of a run across machines, and restores attempts that its database lost.

A run that has begun waits for an unreachable cluster; another fails after 30 s.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankfall.backends.plan import Plan, SlotPlan
from rankfall.backends.protocol import Backend, HeldBy
from rankfall.collect.pods.lazy_collector import LazyCollector
from rankfall.collect.stores.record_store import record_store_of
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.model import EvidenceLost, HeldElsewhere, InfrastructureError, RankfallError, SlotFacts
from rankfall.model.jobspec.sizes import first_sizes, sized
from rankfall.rundir import RunDir, salvage
from rankfall.rundir.requests import requested_sizes
from rankfall.supervisor.attempt_facts import AttemptEvents, AttemptWriter, SlotStates
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.attended.next_attempt import within_bounds
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import Control, read_cancel
from rankfall.supervisor.run_events import EventLog


class AttemptMirror:
    """Mirrors one attempt; decides and stops nothing."""

    def __init__(
        self, run_dir: RunDir, *, plan: Plan, backend: Backend, run_store: BestEffortStore, events: EventLog
    ) -> None:
        spec = sized(run_dir.spec, first_sizes(run_dir.spec) | plan.sizes)
        self._attempt = plan.attempt
        self._events = events
        self._observer = AttemptObserver(
            run_dir,
            spec=spec,
            attempt=plan.attempt,
            launcher=None,
            record_store=record_store_of(run_dir, spec, attempt=plan.attempt),
        )
        slot_states = SlotStates(plan, backend=backend, observer=self._observer, run_store=run_store)
        self._slot_states = slot_states
        self._writer = AttemptWriter(run_store, attempt=plan.attempt, observer=self._observer, slot_states=slot_states)
        self._events_of_attempt = AttemptEvents(events, attempt=plan.attempt, launcher=plan.launcher)
        # Its supervisor explains why slots end.
        self._events_of_attempt.quiet = True
        self._collector = LazyCollector(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
        )
        self._collector.start()

    def look(self) -> None:
        """Processes new data."""
        now = time.time_ns()
        for text in self._collector.troubles():
            self._events.say("gap", text, at=now, attempt=self._attempt)
        delta = self._observer.poll(now)
        self._writer.saw(delta)
        self._events_of_attempt.tell(delta, self._slot_states.slots(), self._observer.ranks(), now=now)
        self._writer.store()

    def stop(self) -> None:
        """Stops and stores everything."""
        self._collector.stop()
        self.look()
        self._writer.store(force=True)


# Seconds between checks of another's hold, and between retries.
_LOOK_S: Final = 2.0
_STEP_S: Final = 0.2
_AGAIN_S: Final = 5.0
# Seconds of cluster failure before an unstarted run ends: one lost answer must not.
_PATIENCE_S: Final = 30.0
_SOON_S: Final = 1.0


class Takeover:
    """Obtains the hold on one run; without ``standby`` it waits only until another holder proves alive."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        backend: Backend,
        control: Control,
        say: Callable[[str], None],
        standby: bool,
        follow: Callable[[], AttemptMirror | None] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._backend = backend
        self._control = control
        self._say = say
        self._standby = standby
        self._follow = follow
        self._following: AttemptMirror | None = None
        self._said = ""

    def take(self, *, attempts: int, waits: Callable[[], None], cancelled: Callable[[], bool]) -> bool:
        """Holds the run. Returns False if this process is to release the run.

        ``waits`` is called while the cluster is unreachable; a cancel waits too.

        Raises:
            HeldElsewhere: Another supervisor lives; no cancel from here.
            EvidenceLost: The directory is an old copy.
            InfrastructureError: The cluster refuses or fails too long.
        """
        try:
            return self._take(attempts=attempts, waits=waits, cancelled=cancelled)
        finally:
            if self._following is not None:
                self._following.stop()

    def _take(self, *, attempts: int, waits: Callable[[], None], cancelled: Callable[[], bool]) -> bool:
        until = time.monotonic() + _PATIENCE_S
        while self._control.release_request is None:
            try:
                other = self._backend.hold(self._run_dir, attempts=attempts, lost=self._control.lose)
            except InfrastructureError as error:
                if not error.passing or not (attempts or time.monotonic() < until):
                    raise
                self._tell(f"the supervisor waits for the cluster: {error.message}")
                waits()
                self._control.wait(_AGAIN_S if attempts else _SOON_S)
            else:
                if other is None:
                    return True
                self._check_holder(other)
                # A dead holder cannot cancel: the wait continues until its death is certain.
                if other.alive and cancelled():
                    raise self._elsewhere(other, "so it can be cancelled only there")
                self._watch(time.monotonic() + _LOOK_S)
        return False

    def _watch(self, until: float) -> None:
        """Waits and mirrors the attempt meanwhile."""
        if self._standby and self._following is None:
            self._following = self._follow()
        while (
            self._following is not None
            and (left := until - time.monotonic()) > 0
            and self._control.release_request is None
        ):
            self._following.look()
            self._control.wait(min(_STEP_S, left))
        self._control.wait(until - time.monotonic())

    def _check_holder(self, other: HeldBy) -> None:
        if not other.who:
            return
        if other.alive and not self._standby:
            raise self._elsewhere(other, "so it cannot be supervised here")
        then = (
            "this process takes over when that one ends"
            if self._standby
            else "checking whether that process still runs"
        )
        self._tell(f"{other.who} supervises this run (for {other.since}); {then}")

    def _elsewhere(self, other: HeldBy, words: str) -> HeldElsewhere:
        run = self._run_dir.id
        return HeldElsewhere(
            f"run {run} is supervised by {other.who} (for {other.since}), {words}",
            hint=f"run the command there, or run rankfall attach {run} to take over when that supervisor ends",
        )

    def _tell(self, text: str) -> None:
        if text.partition(" (for ")[0] != self._said:
            self._said = text.partition(" (for ")[0]
            self._say(text)


def restore_attempts(run_dir: RunDir, *, attempts: Attempts, backend: Backend, run_store: BestEffortStore) -> None:
    """Stores attempts outside clusters that the database lost; the newest one may still run.

    Raises:
        EvidenceLost: An attempt cannot be planned again and is not to be cancelled.
    """
    if not run_dir.spec.writes_run_dir:
        return
    unknown = [row.attempt for row in salvage.attempts(run_dir) if row.attempt > attempts.newest]
    lost = {number: slots for number in unknown if (slots := salvage.begun_slots(run_dir, number))}
    for number, slots in lost.items():
        try:
            plan = _plan_again(run_dir, number, slots=slots, backend=backend)
        except RankfallError as error:
            if read_cancel(run_dir.path) is None:
                raise EvidenceLost(
                    f"{run_dir.db_path.name} of {run_dir.id} lost attempt {number}, "
                    f"which cannot be planned again: {error.message}",
                    hint=f"correct this and run the command again, or end the run: rankfall cancel {run_dir.id}",
                ) from error
            plan = _plan_to_stop(run_dir, number, slots=slots)
        for slot in plan.slots:
            start = salvage.newest_start(run_dir, number, slot.role, slot.slot)
            plan = plan.with_start(slot.slot, start) if start else plan
        attempts.restore(plan, started=salvage.started(run_dir, number) or time.time_ns())
    if lost:
        run_store.note(
            f"{run_dir.db_path.name} lost attempt{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}, restored from the "
            "folders of slots; verdicts and decisions are lost, so earlier restarts do not count"
        )


def _plan_again(run_dir: RunDir, number: int, *, slots: Sequence[SlotFacts], backend: Backend) -> Plan:
    """Plans a begun attempt with the slots that were started; its port is unknown."""
    spec = run_dir.whole_spec()
    begun = Counter(facts.role for facts in slots)
    sizes = {role: begun[role] or size for role, size in requested_sizes(run_dir.path, spec).items()}
    plan = backend.plan(sized(spec, sizes), run_dir, number, nnodes=within_bounds(spec, sizes))
    plan = plan.without([role for role in sizes if not begun[role]])
    return msgspec.structs.replace(plan, sizes=sizes, port=None)


def _plan_to_stop(run_dir: RunDir, number: int, *, slots: Sequence[SlotFacts]) -> Plan:
    """Plans only what stops these slots."""
    made = [
        SlotPlan(
            slot=facts.slot,
            role=facts.role or "",
            node=f"node{facts.slot}",
            argv=(),
            env={"RANKFALL_RECORD_DIR": str(run_dir.records_dir)},
            cwd=str(run_dir.path),
            slot_dir=str(run_dir.slot_dir(number, facts.role or "", facts.slot)),
            stream_dir=str(run_dir.stream_dir(number, facts.role or "", facts.slot)),
        )
        for facts in slots
    ]
    return Plan(attempt=number, launcher="exec", slots=tuple(made))
