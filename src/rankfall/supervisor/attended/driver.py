"""Drives a run that Rankfall restarts.

Each step is written first and repeatable. A stored final state ends the run. Slots inherit the environment of their
supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from rankfall.backends.protocol import Backend, Cancellation
from rankfall.model import FINAL_STATES, Diagnosis, InfrastructureError, Outcome, RunState
from rankfall.rundir import RunDir, Writer
from rankfall.supervisor.attempt.monitor import AttemptMonitor
from rankfall.supervisor.attempt_facts import start_failure
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.attended.decisions import Decisions, LateEvidence
from rankfall.supervisor.attended.next_attempt import Planner, RestartSchedule
from rankfall.supervisor.attended.takeover import AttemptMirror, Takeover, restore_attempts
from rankfall.supervisor.attended.ttl import needed, spawn
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.external_suspension import ExternalRelease
from rankfall.supervisor.outcome import begin, last_words, outcome_of, pending_cleanup, released, write_files
from rankfall.supervisor.platform_reports import NodeReporter, show_verdict
from rankfall.supervisor.requests import Control, read_cancel
from rankfall.supervisor.run_events import Event, EventLog, sparing

FinalState = Literal["succeeded", "failed", "cancelled", "deleted"]


class RunEnd:
    """Ends one run."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        run_store: BestEffortStore,
        events: EventLog,
        control: Control,
        attempts: Attempts,
        decisions: Decisions,
        planner: Planner,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._run_store = run_store
        self._events = events
        self._control = control
        self._attempts = attempts
        self._decisions = decisions
        self._planner = planner
        self._say = say

    def after(self, number: int) -> Outcome:
        """Ends the run after its last attempt, ``number``."""
        state = self._attempts.known(number).state
        if state == "succeeded":
            return self.end("succeeded", None)
        if state == "cancelled":
            request = read_cancel(self._run_dir.path)
            if request is None and self._control.cancelled is None:
                found = self._attempts.diagnosis(number)
                decisive = found.verdict.decisive if found is not None else None
                reason = decisive.line if decisive is not None else "its workload was deleted in the cluster"
                by_platform = found is not None and found.verdict.cause.slug != "cancelled"
                return self.end("cancelled" if by_platform else "deleted", reason)
            return self.end("cancelled", request.text if request else "cancelled")
        decision = self._decisions.about(number)
        return self.end("failed", decision.because if decision else "no verdict was reached")

    def deleted_externally(self, number: int, text: str) -> Outcome:
        """Ends the run after its workload was deleted between attempts; the verdict remains."""
        return self.end("failed" if self._attempts.known(number).state == "failed" else "deleted", text)

    def between(self, *, cancelled: bool) -> Outcome:
        """Ends or releases the run on a request while no attempt runs."""
        if not cancelled:
            return self.let_go("the supervisor released the run between two attempts")
        request = read_cancel(self._run_dir.path)
        reason = request.text if request else f"cancelled: {self._control.cancelled}".rstrip(": ")
        return self.end("cancelled", reason)

    def let_go(self, words: str) -> Outcome:
        """Releases the run; ``words`` is the message if no other process took it over."""
        self._events.say("released", self._control.lost or words, at=time.time_ns())
        return released(self._run_dir, attempts=self._attempts.newest)

    def end(self, final: FinalState, reason: str | None) -> Outcome:
        """Ends the run for this reason."""
        now = time.time_ns()
        begin(self._run_dir)
        self._run_store.set_run(final, reason=reason, at=now)
        self._decisions.end(because=reason)
        newest = self._attempts.newest
        outcome = last_words(
            self._run_dir,
            run_store=self._run_store,
            events=self._events,
            state=final,
            at=now,
            diagnosis=self._attempts.diagnosis(newest) if newest else None,
        )
        self._leave(final)
        return outcome

    def again(self, final: RunState) -> None:
        """Completes the end of a run whose process was killed after it stored the state ``final``."""
        self._decisions.end(because=self._run_store.writer.run().reason)
        left = pending_cleanup(self._run_dir)
        if left == "files":
            write_files(self._run_dir, self._run_store)
        if left is not None:
            self._leave(final)
        self._run_store.flush()

    def _leave(self, final: RunState) -> None:
        """Removes the run's objects from the platform if nothing else does."""
        newest = self._attempts.newest
        if final in {"cancelled", "deleted"} and newest:
            self._planner.remove(self._attempts.known(newest))
        elif newest and needed(self._run_dir):
            self._expire()

    def _expire(self) -> None:
        """Starts a process that removes the objects that the platform does not."""
        try:
            spawn(self._run_dir)
        except InfrastructureError as error:
            self._run_store.note(error.message)
            self._say(error.in_one_line)
            self._run_store.flush()


class Supervised:
    """Starts, restarts and ends one run; ``standby`` waits for another machine's supervisor."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        writer: Writer,
        on_event: Callable[[Event], None] | None,
        control: Control,
        backend: Backend,
        on_lease: Callable[[], None] | None,
        standby: bool,
    ) -> None:
        self._on_lease = on_lease
        self._run_dir = run_dir
        self._spec = run_dir.spec
        self._writer = writer
        self._events = EventLog(run_dir.path, on_event)
        self._run_store = BestEffortStore(writer, on_gap=self._gap)
        self._control = control
        self._backend = backend
        self._say_wait = sparing(lambda text: self._events.say("waiting", text, at=time.time_ns()))
        self._planned: set[int] = set()
        self._attempts = Attempts(self._spec, writer=writer, run_store=self._run_store, events=self._events)
        self._turns = RestartSchedule(
            run_dir,
            attempts=self._attempts,
            run_store=self._run_store,
            events=self._events,
            control=control,
            requested=lambda: self._request() is not None,
            outside=ExternalRelease(run_dir, backend=backend),
        )
        self._decisions = Decisions(
            self._spec,
            attempts=self._attempts,
            backend=backend,
            writer=writer,
            run_store=self._run_store,
            events=self._events,
            total_at=self._turns.total_at,
        )
        self._node_reporter = NodeReporter(
            backend, run_store=self._run_store, events=self._events, control=control, over=self._no_more
        )
        self._cancellation = Cancellation(say=self._announce_wait_reason, over=lambda: self._request() is not None)
        self._planner = Planner(
            run_dir,
            backend=backend,
            run_store=self._run_store,
            say=self._gap,
            control=control,
            over=self._no_more,
            cancellation=Cancellation(say=self._announce_wait_reason, over=self._no_more),
        )
        self._run_end = RunEnd(
            run_dir,
            run_store=self._run_store,
            events=self._events,
            control=control,
            attempts=self._attempts,
            decisions=self._decisions,
            planner=self._planner,
            say=self._gap,
        )
        self._late = LateEvidence(run_dir, attempts=self._attempts, decisions=self._decisions, backend=backend)
        self._takeover = Takeover(
            run_dir,
            backend=backend,
            control=control,
            say=self._announce_wait_reason,
            standby=standby,
            follow=self._follow,
        )

    def to_end(self) -> Outcome:
        """Runs until the run ends or is released, and returns the outcome."""
        over = False
        try:
            outcome = self._to_end()
            over = outcome.state in FINAL_STATES
        finally:
            self._backend.let_go(over=over)
            self._backend.release()
        return outcome

    def _to_end(self) -> Outcome:
        end = self._run_end.end
        state = self._writer.run().state
        if state in FINAL_STATES:
            self._ready()
            self._run_end.again(state)
            return outcome_of(self._run_dir, self._writer)
        restore_attempts(self._run_dir, attempts=self._attempts, backend=self._backend, run_store=self._run_store)
        try:
            if not self._hold():
                return self._run_end.between(cancelled=self._request() == "cancel")
        except InfrastructureError as error:
            if self._attempts.newest:
                raise
            return end("failed", f"the run could not start: {error.in_one_line}")
        if self._attempts.newest:
            text = f"supervision resumed at attempt {self._attempts.newest}"
            self._events.say("resumed", text, at=time.time_ns())
        while True:
            number = self._attempts.newest
            row = self._attempts.row(number)
            if row is not None and row.ended is not None:
                if self._decisions.about(number) is None:
                    # All evidence decides if a failure repeats an earlier one.
                    self._find_late_evidence()
                # Also after a kill: shown reports are not repeated.
                plan, found = self._attempts.plan(number), self._attempts.diagnosis(number)
                show_verdict(self._backend, plan, found, spec=self._spec, say=self._gap)
                self._node_reporter.tell(plan, found)
            if row is None or (row.ended is not None and self._decisions.goes_on(number)):
                if row is not None:
                    # Before the back-off: the taint must precede the next pods.
                    self._node_reporter.heard(self._attempts.plan(number), self._attempts.diagnosis(number))
                number += 1
                start_at = self._turns.wait(number - 1, delay_s=self._decisions.delay_s(number - 1))
                if start_at == "late":
                    return end("failed", f"the total deadline of {self._spec.deadlines.total_s:g} s has passed")
                if start_at == "gone":
                    return end("deleted", "its workload was deleted in the cluster while the run was suspended")
                if start_at == "requested":
                    return self._run_end.between(cancelled=self._request() == "cancel")
                self._find_late_evidence()
                if row is not None and not self._decisions.goes_on(number - 1):
                    return self._run_end.after(number - 1)
                if not self._begin(number):
                    if self._request() is not None:
                        return self._run_end.between(cancelled=self._request() == "cancel")
                    if self._planner.deleted_externally is not None:
                        return self._run_end.deleted_externally(number - 1, self._planner.deleted_externally)
                    return end("failed", f"attempt {number} could not be planned: {self._planner.refusal}")
            elif row.ended is not None:
                return self._run_end.after(number)
            diagnosis = self._watch(number)
            if diagnosis is None:
                return self._run_end.let_go("the supervisor released the run; its slots continue")
            self._attempts.conclude(number, diagnosis)

    def _hold(self) -> bool:
        """Makes this process the run's only supervisor. Returns False on another request meanwhile."""
        held = self._takeover.take(
            attempts=self._attempts.newest, waits=self._ready, cancelled=lambda: self._request() == "cancel"
        )
        self._ready()
        return held

    def _follow(self) -> AttemptMirror | None:
        """Mirrors the newest attempt if it has not ended; else returns None."""
        plan = self._attempts.open_plan
        return (
            None
            if plan is None
            else AttemptMirror(
                self._run_dir, plan=plan, backend=self._backend, run_store=self._run_store, events=self._events
            )
        )

    def _ready(self) -> None:
        tell, self._on_lease = self._on_lease, None
        if tell is not None:
            tell()

    # -- attempts

    def _begin(self, number: int) -> bool:
        """Plans and stores an attempt before anything runs; False if there is no plan."""
        plan = self._planner.plan(number, before=self._attempts.row(number - 1), exclude=self._nodes_to_avoid)
        if plan is None:
            return False
        self._planned.add(number)
        at = self._attempts.begin(plan)
        self._decisions.close()
        self._attempts.tell(plan, at=at)
        return True

    def _nodes_to_avoid(self) -> frozenset[str]:
        """Nodes to avoid, updated after the possibly long wait for old pods."""
        self._find_late_evidence()
        return self._decisions.avoided()

    def _find_late_evidence(self) -> None:
        """Reads evidence newer than the verdicts and reports it to the affected nodes."""
        for number, found in self._late.look():
            plan = self._attempts.plan(number)
            show_verdict(self._backend, plan, found, spec=self._spec, say=self._gap)
            self._node_reporter.tell(plan, found)

    def _no_more(self) -> bool:
        """True if waiting for another attempt is useless."""
        total_at = self._turns.total_at()
        return self._request() is not None or (total_at is not None and time.time_ns() >= total_at)

    def _watch(self, number: int) -> Diagnosis | None:
        plan = self._attempts.plan(number)
        watch = AttemptMonitor(
            self._run_dir,
            plan=plan,
            backend=self._backend,
            run_store=self._run_store,
            events=self._events,
            control=self._control,
            started=self._attempts.known(number).started or time.time_ns(),
            total_at=self._turns.total_at(),
            falls=self._decisions.falls,
            decide=partial(self._decisions.decide_for_slot, number),
            tell=lambda plan, found, slot, instance: self._node_reporter.report_slot_failure(
                plan, found, slot=slot, instance=instance
            ),
        )
        settled = self._writer.diagnosis(number)
        asked = read_cancel(self._run_dir.path) is not None or self._turns.hold().suspended
        if number not in self._planned:
            self._backend.adopt(plan)
        if settled is None and not asked:
            try:
                self._backend.submit(plan, cancellation=self._cancellation)
            except InfrastructureError as error:
                if self._control.release_request is not None:
                    return None
                if self._request() is None:
                    watch.refused(start_failure(error.in_one_line, attempt=number))
                else:
                    watch.give_up_unstarted()
        else:
            watch.give_up_unstarted()
        found = watch.run(settled=settled)
        self._attempts.replan(number, watch.plan)
        return found

    def _request(self) -> str | None:
        if self._control.release_request is not None:
            return self._control.release_request
        return "cancel" if self._control.cancelled is not None or read_cancel(self._run_dir.path) else None

    def _gap(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns())

    def _announce_wait_reason(self, text: str) -> None:
        self._say_wait(text)
        state = self._writer.run().state
        if state not in FINAL_STATES:
            self._run_store.set_run(state, reason=text, at=time.time_ns())
