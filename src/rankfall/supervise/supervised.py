"""One run from its first attempt to its end: start, watch, explain, decide, carry out. Resumable from the run directory alone.

What is about to be done is written before it is done, and every step can be done twice without harm: an attempt is begun in the store
before its slots are started, slots are started once by their own mark, a verdict equal to the stored one is no new version, a decision is
carried out by beginning the next attempt. So a supervisor that is killed anywhere and started again neither repeats nor forgets.
Only the environment is not in the directory: slots that a later supervisor starts inherit that one's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from rankfall.backends.protocol import Backend, Company
from rankfall.model import FINAL_STATES, Diagnosis, InfrastructureError, Outcome
from rankfall.store import RunDir, Writer
from rankfall.supervise.attempt import AttemptWatch
from rankfall.supervise.attempts import Attempts
from rankfall.supervise.blame import Blame
from rankfall.supervise.closing import Closing
from rankfall.supervise.control import Control, read_cancel
from rankfall.supervise.decisions import Decisions
from rankfall.supervise.events import Event, EventLog, sparing
from rankfall.supervise.following import Following
from rankfall.supervise.holding import Holding
from rankfall.supervise.late_evidence import LateEvidence
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.outcome import outcome_of
from rankfall.supervise.outside import OutsideRelease
from rankfall.supervise.planning import Planner, with_hint
from rankfall.supervise.showing import show_verdict
from rankfall.supervise.starting import start_failure
from rankfall.supervise.turn import Turns


class Supervised:
    """One run that Rankfall starts, restarts and ends.

    Args:
        run_dir: the run.
        writer: from its lease.
        on_event: called with each piece of news.
        control: to cancel, release or hand over from outside.
        backend: of its slots.
        on_lease: called once when this process holds the run.
        standby: wait for as long as another machine supervises the run.
    """

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
        self._ledger = Ledger(writer, on_gap=self._gap)
        self._control = control
        self._backend = backend
        self._say_wait = sparing(lambda text: self._events.say("waiting", text, at=time.time_ns()))
        self._planned: set[int] = set()
        self._attempts = Attempts(self._spec, writer=writer, ledger=self._ledger, events=self._events)
        self._turns = Turns(
            run_dir,
            attempts=self._attempts,
            ledger=self._ledger,
            events=self._events,
            control=control,
            wished=lambda: self._wish() is not None,
            outside=OutsideRelease(run_dir, backend=backend),
        )
        self._decisions = Decisions(
            self._spec,
            attempts=self._attempts,
            backend=backend,
            writer=writer,
            ledger=self._ledger,
            events=self._events,
            total_at=self._turns.total_at,
        )
        self._blame = Blame(backend, ledger=self._ledger, events=self._events, control=control, over=self._no_more)
        self._company = Company(say=self._wait_said, over=lambda: self._wish() is not None)
        self._planner = Planner(
            run_dir,
            backend=backend,
            ledger=self._ledger,
            say=self._gap,
            control=control,
            over=self._no_more,
            company=Company(say=self._wait_said, over=self._no_more),
        )
        self._closing = Closing(
            run_dir,
            ledger=self._ledger,
            events=self._events,
            control=control,
            attempts=self._attempts,
            decisions=self._decisions,
            planner=self._planner,
            say=self._gap,
        )
        self._late = LateEvidence(run_dir, attempts=self._attempts, decisions=self._decisions, backend=backend)
        self._holding = Holding(
            run_dir, backend=backend, control=control, say=self._wait_said, standby=standby, follow=self._follow
        )

    def to_end(self) -> Outcome:
        """Bring it to its end, or let go of it where that is wished; the outcome."""
        over = False
        try:
            outcome = self._to_end()
            over = outcome.state in FINAL_STATES
        finally:
            self._backend.let_go(over=over)
            self._backend.release()
        return outcome

    def _to_end(self) -> Outcome:
        end = self._closing.end
        state = self._writer.run().state
        if state in FINAL_STATES:
            self._ready()
            self._closing.again(state)
            return outcome_of(self._run_dir, self._writer)
        try:
            if not self._hold():
                return self._closing.between(cancelled=self._wish() == "cancel")
        except InfrastructureError as error:
            if self._attempts.newest:
                raise
            return end("failed", f"the run could not be begun: {with_hint(error)}")
        if self._attempts.newest:
            text = f"supervision resumed at attempt {self._attempts.newest}"
            self._events.say("resumed", text, at=time.time_ns())
        while True:
            number = self._attempts.newest
            row = self._attempts.row(number)
            if row is not None and row.ended is not None:
                if self._decisions.about(number) is None:
                    # Whether a failure repeats an earlier one depends on what is known of that by now.
                    self._look_late()
                # Here, and so once more after a kill: what was shown is not shown twice.
                plan, found = self._attempts.plan(number), self._attempts.diagnosis(number)
                show_verdict(self._backend, plan, found, spec=self._spec, say=self._gap)
                self._blame.tell(plan, found)
            if row is None or (row.ended is not None and self._decisions.goes_on(number)):
                if row is not None:
                    # Before the back-off, which goes on meanwhile: the taint has to be there before the next pods are.
                    self._blame.heard(self._attempts.plan(number), self._attempts.diagnosis(number))
                number += 1
                turn = self._turns.wait(number - 1, delay_s=self._decisions.delay_s(number - 1))
                if turn == "late":
                    return end("failed", f"the total deadline of {self._spec.deadlines.total_s:g} s is over")
                if turn == "gone":
                    return end("deleted", "somebody deleted it in the cluster while it was suspended")
                if turn == "wished":
                    return self._closing.between(cancelled=self._wish() == "cancel")
                self._look_late()
                if row is not None and not self._decisions.goes_on(number - 1):
                    return self._closing.after(number - 1)
                if not self._begin(number):
                    if self._wish() is not None:
                        return self._closing.between(cancelled=self._wish() == "cancel")
                    if self._planner.withdrawn is not None:
                        return self._closing.withdrawn(number - 1, self._planner.withdrawn)
                    return end("failed", f"attempt {number} could not be planned: {self._planner.refusal}")
            elif row.ended is not None:
                return self._closing.after(number)
            diagnosis = self._watch(number)
            if diagnosis is None:
                return self._closing.let_go("supervision let go of the run; its slots go on")
            self._attempts.conclude(number, diagnosis)

    def _hold(self) -> bool:
        """Become the run's only supervisor; false when something else was wished meanwhile."""
        held = self._holding.take(
            attempts=self._attempts.newest, waits=self._ready, cancelled=lambda: self._wish() == "cancel"
        )
        self._ready()
        return held

    def _follow(self) -> Following | None:
        """Follow the newest attempt, where it goes on."""
        plan = self._attempts.open_plan
        return (
            None
            if plan is None
            else Following(self._run_dir, plan=plan, backend=self._backend, ledger=self._ledger, events=self._events)
        )

    def _ready(self) -> None:
        """Tell once that this process takes care of the run."""
        tell, self._on_lease = self._on_lease, None
        if tell is not None:
            tell()

    # -- attempts

    def _begin(self, number: int) -> bool:
        """Plan an attempt and write it down; nothing runs yet."""
        plan = self._planner.plan(number, before=self._attempts.row(number - 1), exclude=self._nodes_to_avoid)
        if plan is None:
            return False
        self._planned.add(number)
        at = self._attempts.begin(plan)
        self._decisions.close()
        self._attempts.tell(plan, at=at)
        return True

    def _nodes_to_avoid(self) -> frozenset[str]:
        """By all that is known when the pods of the attempt before are gone: waiting for them may have taken long."""
        self._look_late()
        return self._decisions.avoided()

    def _look_late(self) -> None:
        """Take in evidence that came after verdicts were made, and report it to the nodes that it is about."""
        for number, found in self._late.look():
            plan = self._attempts.plan(number)
            show_verdict(self._backend, plan, found, spec=self._spec, say=self._gap)
            self._blame.tell(plan, found)

    def _no_more(self) -> bool:
        """Whether waiting for another attempt is of no use any more."""
        total_at = self._turns.total_at()
        return self._wish() is not None or (total_at is not None and time.time_ns() >= total_at)

    def _watch(self, number: int) -> Diagnosis | None:
        plan = self._attempts.plan(number)
        watch = AttemptWatch(
            self._run_dir,
            plan=plan,
            backend=self._backend,
            ledger=self._ledger,
            events=self._events,
            control=self._control,
            started=self._attempts.known(number).started or time.time_ns(),
            total_at=self._turns.total_at(),
            falls=self._decisions.falls,
            decide=partial(self._decisions.decide_alone, number),
            tell=lambda plan, found, slot, instance: self._blame.tell_of(plan, found, slot=slot, instance=instance),
        )
        settled = self._writer.diagnosis(number)
        asked = read_cancel(self._run_dir.path) is not None or self._turns.hold().suspended
        if number not in self._planned:
            self._backend.adopt(plan)
        if settled is None and not asked:
            try:
                self._backend.submit(plan, company=self._company)
            except InfrastructureError as error:
                if self._control.wish is not None:
                    return None
                if self._wish() is None:
                    watch.refused(start_failure(with_hint(error), attempt=number))
                else:
                    watch.without_the_rest()
        else:
            watch.without_the_rest()
        found = watch.run(settled=settled)
        self._attempts.replan(number, watch.plan)
        return found

    def _wish(self) -> str | None:
        if self._control.wish is not None:
            return self._control.wish
        return "cancel" if self._control.cancelled is not None or read_cancel(self._run_dir.path) else None

    def _gap(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns())

    def _wait_said(self, text: str) -> None:
        """What a launch, a removal or the hold of the run waits for: news, and the reason of the state that the run is in."""
        self._say_wait(text)
        state = self._writer.run().state
        if state not in FINAL_STATES:
            self._ledger.set_run(state, reason=text, at=time.time_ns())
