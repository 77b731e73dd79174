"""Watches one attempt from its first slot to its diagnosis.

The run directory holds all state to resume. Polling takes at most a tenth of this process's time.
"""

from __future__ import annotations

import time
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.evidence.attempt.observer import Delta
from rankfall.model import Diagnosis, Evidence, InfrastructureError, RankFacts, SlotFacts, StoreError, Verdict
from rankfall.rundir import RunDir, SlotFailureRow
from rankfall.rundir.incomplete import is_deleted
from rankfall.supervisor.attempt.completion import SettleWindow, Standing, SuccessWatch, Survival, is_final
from rankfall.supervisor.attempt.end import AttemptEnd, RequestWatch
from rankfall.supervisor.attempt.slot_restarts import Decide, SlotRestarts, Tell
from rankfall.supervisor.attempt.timeouts import TimeoutWatch
from rankfall.supervisor.attempt.view import AttemptScope
from rankfall.supervisor.attempt_facts import BadEnd, bad_ends, start_failure
from rankfall.supervisor.attempt_table import announce_verdict
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.external_suspension import ExternalSuspension
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import EventLog
from rankfall.supervisor.stopping import mark_jobset_stop, slots_text, wait_until_left

# Seconds between polls: failure or stop, rank start, running.
_FAST_S: Final = 0.02
_START_S: Final = 0.05
_SLOW_S: Final = 0.15
# Polls take a tenth of the time, about once a second.
_SPARING: Final = 9.0
_SELDOM_S: Final = 1.0


class AttemptMonitor:
    """Watches one attempt of one run.

    ``decide`` decides about slots that restart alone, ``tell`` reports these decisions. ``total_at``: total deadline in
    nanoseconds since the epoch, None without one.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        plan: Plan,
        backend: Backend,
        run_store: BestEffortStore,
        events: EventLog,
        control: Control,
        started: int,
        total_at: int | None = None,
        falls: list[SlotFailureRow],
        decide: Decide,
        tell: Tell,
    ) -> None:
        self._run_dir = run_dir
        self._backend = backend
        self._events = events
        self._control = control
        outside = ExternalSuspension(run_dir, plan=plan, backend=backend)
        self._scope = AttemptScope(
            run_dir,
            plan=plan,
            backend=backend,
            run_store=run_store,
            events=events,
            outside=outside,
            started=started,
            unseen=control.unseen,
        )
        self._spec = self._scope.spec
        self._slot_restarts = SlotRestarts(
            plan,
            alone=self._spec.alone,
            falls=falls,
            backend=backend,
            observer=self._scope.observer,
            slot_states=self._scope.slot_states,
            writer=self._scope.writer,
            run_store=run_store,
            events=events,
            decide=decide,
            tell=tell,
            grace=self._spec.policies.grace_s,
        )
        self._scope.replan(self._slot_restarts.plan)
        self._survival = Survival(least=self._spec.nnodes, strategy=plan.strategy)
        self._success = SuccessWatch(self._spec.success, launcher=plan.launcher, head=self._spec.head_slot)
        self._window = SettleWindow(self._spec.policies)
        self._attempt_end = AttemptEnd(
            self._scope,
            run_dir=run_dir,
            backend=backend,
            run_store=run_store,
            events=events,
            success=self._success,
            window=self._window,
        )
        self._request_watch = RequestWatch(
            self._scope,
            attempt_end=self._attempt_end,
            run_dir=run_dir,
            control=control,
            events=events,
            outside=outside,
            success=self._success,
            window=self._window,
            started=started,
        )
        self._timeouts = TimeoutWatch(
            self._scope,
            attempt_end=self._attempt_end,
            run=run_dir.id,
            backend=backend,
            control=control,
            events=events,
            window=self._window,
            started=started,
            total_at=total_at,
        )
        self._draining = False
        # Last change of the window at the last diagnosis.
        self._weighed_at: float | None = None
        # A cancel interrupts reading, except during a stop.
        self._scope.observer.interrupt_by(lambda: control.asked and not self._attempt_end.stopping)

    @property
    def plan(self) -> Plan:
        """Current plan of the attempt; slots may have joined or left."""
        return self._scope.plan

    def run(self, *, settled: Diagnosis | None = None) -> Diagnosis | None:
        """Watches the attempt to its end; returns None if this process released the run.

        With ``settled``, an earlier supervisor's verdict, slots are only stopped.
        """
        self._attempt_end.verdict = settled
        self._scope.start()
        over = False
        try:
            began = time.monotonic()
            while not self._look():
                if self.plan.cluster is None and is_deleted(self._run_dir.path):
                    self._outlive_run_dir()
                if self._control.release_request is not None:
                    self._scope.writer.store(force=True)
                    return None
                self._control.wait(self._pause(time.monotonic() - began))
                began = time.monotonic()
            found = self._attempt_end.conclude()
            # While the collector stores the last states of pods; lost slots never report one.
            self._attempt_end.report(found)
            lost = {facts.slot for facts in self._scope.slots() if facts.state == "lost"}
            slots = [
                one.slot for one in self.plan.slots if one.slot not in lost and not self._slot_restarts.waits(one.slot)
            ]
            wait_until_left(self.plan, slots, backend=self._backend, control=self._control, wait=self._scope.wait)
            over = self._control.release_request is None
            return found
        finally:
            self._scope.stop(over=over)

    def _outlive_run_dir(self) -> None:
        """Waits for the ends of the slots without their files, or until the files are back; a cancel ends them.

        Raises:
            StoreError: Nothing of the run can be stored, and its slots have ended.
        """
        path, grace = self._run_dir.path, self._spec.policies.grace_s
        text = f"{path} was deleted: nothing more is recorded; the run ends with its ranks"
        self._events.say("gap", text, at=time.time_ns(), attempt=self.plan.attempt)
        slots = [one.slot for one in self.plan.slots]
        while is_deleted(path):
            left = [slot for slot in slots if self._backend.alive(self.plan, slot)]
            if left and self._control.cancelled is not None:
                self._backend.end(self.plan, left, grace=grace)
            elif not left or self._control.release_request is not None:
                goes_on = f"; {slots_text(left)}: without a supervisor from now on" if left else ""
                raise StoreError(
                    f"the run directory {path} was deleted during the run, so no record explains its end{goes_on}",
                    hint="start the run again, with RANKFALL_HOME in a folder that nothing cleans up",
                )
            self._control.wait(_SLOW_S)

    def refused(self, evidence: Evidence) -> None:
        """Records a slot that could not be started; the attempt ends with this cause."""
        self._scope.add_own_evidence(evidence)
        self.give_up_unstarted()
        self._attempt_end.stop("a slot could not be started")

    def give_up_unstarted(self) -> None:
        """Counts slots that have not started as lost, because they will not start any more."""
        self._scope.slot_states.give_up_unstarted()

    # -- one poll

    def _look(self) -> bool:
        """Polls everything once. Returns True if all slots have ended."""
        scope, attempt_end = self._scope, self._attempt_end
        now, clock = time.time_ns(), time.monotonic()
        self._stop_at_once(clock)
        scope.announce_problems()
        delta = scope.poll(now)
        scope.startup.tell(now)
        self._advance_membership(clock)
        slots, ranks = scope.slots(), scope.ranks()
        if not attempt_end.stopping:
            mark_jobset_stop(self._run_dir.path, self.plan, slots)
        judged = attempt_end.open
        if judged:
            # A slot that failed alone and may restart has not ended.
            slots, announced = self._slot_restarts.masked(slots), slots
        else:
            announced = slots
        standing: Standing = "open"
        if judged or self._success.reached:
            standing = self._success.see(slots, ranks, evidence=delta.evidence, now=now)
        if (
            judged
            and standing == "open"
            and self._spec.elastic
            and self._is_done_without_late_ones(slots, ranks, now=now)
        ):
            standing = "reached"
            announced = slots = scope.slots()
        scope.attempt_events.quiet = standing == "reached"
        scope.take(delta, announced, ranks, now=now)
        scope.writer.store()
        bad = frozenset[BadEnd]()
        if standing == "open":
            bad = scope.members.bad(slots, ranks)
        self._request_watch.look(slots, ranks, bad)
        left = {s.slot for s in slots if s.state not in {"ended", "lost"}}
        fallen = bad if announced is slots else bad_ends(announced, ranks, launcher=self.plan.launcher)
        if fallen or not left:
            self._request_watch.check_external_suspension(announced, ranks, fallen, last=not left)
        if judged and not attempt_end.stopping and standing != "reached":
            self._restart_slots(announced, ranks, bad, changed=delta.changed, clock=clock)
        left -= {slot for slot in left if attempt_end.stopping and self._slot_restarts.waits(slot)}
        departing = scope.members.departing
        if not left:
            if not departing:
                return True
            attempt_end.stop("the gang has ended")
        if attempt_end.stopping:
            attempt_end.step(left | departing, clock=clock)
        elif attempt_end.verdict is not None:
            attempt_end.stop("the attempt's verdict was reached before")
        elif standing == "reached":
            self._drain(now)
        else:
            self._judge(delta, slots, ranks, bad, now=now, clock=clock)
        return False

    def _stop_at_once(self, clock: float) -> None:
        """Stops all slots of a canceled run before anything is read, because reading may take long."""
        if self._attempt_end.stopping:
            return
        self._request_watch.look_for_cancel()
        if self._attempt_end.stopping:
            running = {s.slot for s in self._scope.slots() if s.state not in {"ended", "lost"}}
            running -= {slot for slot in running if self._slot_restarts.waits(slot)}
            self._attempt_end.step(running | self._scope.members.departing, clock=clock)

    def _judge(
        self,
        delta: Delta,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        bad: frozenset[BadEnd],
        *,
        now: int,
        clock: float,
    ) -> None:
        """Decides whether a failure, a deadline or a hang ends the attempt."""
        if self._spec.elastic and not bad:
            # torchrun itself stopped for a new round.
            self._window.close()
            self._scope.waited(now=now)
        self._window.see(clock, failed=bool(bad), changed=delta.changed)
        final = self._weigh(clock, now=now)
        if self._window.over(clock) or final is not None:
            self._request_watch.check_external_suspension(slots, ranks, bad, last=True)
            if not self._attempt_end.stopping:
                if final is not None:
                    announce_verdict(self._events, final, attempt=self.plan.attempt)
                self._close_window(slots, ranks, bad)
        else:
            self._timeouts.look(delta, slots, ranks, now=now)

    def _weigh(self, clock: float, *, now: int) -> Verdict | None:
        """Verdict if it is final, else None and reports the wait; examines each change once."""
        if not self._window.quiet(clock) or self._window.last_change() == self._weighed_at:
            return None
        self._weighed_at = self._window.last_change()
        verdict = self._attempt_end.so_far().verdict
        if is_final(verdict) and not self._spec.elastic:
            return verdict
        self._scope.wait("evidence", self._window.waits_for(verdict), now=now)
        return None

    def _restart_slots(
        self,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        bad: frozenset[BadEnd],
        *,
        changed: bool,
        clock: float,
    ) -> None:
        """Restarts slots that failed alone; a needed slot without restart fails the attempt."""

        def halted() -> bool:
            fallen = bad_ends(slots, ranks, launcher=self.plan.launcher)
            self._request_watch.check_external_suspension(slots, ranks, fallen, last=True)
            return self._attempt_end.stopping

        try:
            self._slot_restarts.look(slots, changed=changed, clock=clock, halted=halted)
        except InfrastructureError as error:
            self.refused(start_failure(error.message, attempt=self.plan.attempt))
            return
        if not self._spec.elastic:
            self._scope.replan(self._slot_restarts.plan)
        final = self._slot_restarts.final
        if final is not None and any(kind == "slot" and slot in self._slot_restarts.down for kind, slot, _ in bad):
            self._attempt_end.settle(final, reason="a part of the job failed that cannot be restarted")

    def _close_window(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        if self._spec.elastic:
            members, clock = self._scope.members, time.monotonic()
            changing = members.changing(slots, ranks, bad)
            answer = self._survival.weigh(self._attempt_end.case, slots, ranks, bad=bad, changing=changing, clock=clock)
            if answer == "waits":
                return
            if answer == "goes_on":
                members.outlive(bad, now=time.time_ns())
                self._scope.apply_membership()
                self._window.close()
                self._scope.waited(now=time.time_ns())
                return
        self._attempt_end.stop("another part of the job failed")

    # -- elastic gangs, and jobs that finish before all slots have ended

    def _advance_membership(self, clock: float) -> None:
        if self._spec.elastic:
            self._scope.members.step(clock)
            self._scope.apply_membership()

    def _is_done_without_late_ones(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> bool:
        late = self._success.see_surplus(slots, ranks, least=self._spec.nnodes, now=now)
        if late:
            self._scope.members.surplus(late, now=now)
            self._scope.apply_membership()
        return bool(late)

    def _drain(self, now: int) -> None:
        if not self._draining:
            self._draining = True
            wait = self._success.drain_s
            text = f"done: {self._success.because}; the other slots have {wait:g} s to finish"
            self._events.say("success", text, at=now, attempt=self.plan.attempt)
        if self._success.drained(now):
            self._attempt_end.stop(f"the job has succeeded: {self._success.because}")

    def _pause(self, took: float) -> float:
        """Seconds until the next poll; a poll of thousands of slots ``took`` 0.1 s."""
        if self._attempt_end.stopping or self._window.opened is not None:
            return max(_FAST_S, min(took, _SLOW_S))
        if self._slot_restarts.busy:
            return _START_S
        return max(_SLOW_S if self._scope.startup.running else _START_S, min(_SPARING * took, _SELDOM_S))
