"""One run from its first attempt to its end: start, watch, explain, decide, carry out. Resumable from the run directory alone.

What is about to be done is written before it is done, and every step can be done twice without harm: an attempt is begun in the store
before its slots are started, slots are started once by their own mark, a verdict equal to the stored one is no new version, a decision is
carried out by beginning the next attempt. So a supervisor that is killed anywhere and started again neither repeats nor forgets.
Only the environment is not in the directory: slots that a later supervisor starts inherit that one's.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, Company
from rankfall.backends.registry import backend_for, native_of
from rankfall.decide import RootFacts, decide
from rankfall.model import (
    FINAL_STATES,
    Case,
    Decision,
    Diagnosis,
    InfrastructureError,
    Outcome,
    StoreError,
)
from rankfall.model.times import rfc3339
from rankfall.store import AttemptRow, DecisionRow, FallRow, RunDir, Writer
from rankfall.supervise.attempt import AttemptWatch
from rankfall.supervise.control import Control, read_cancel, signals_to
from rankfall.supervise.events import Event, EventLog
from rankfall.supervise.expiry import needed, spawn
from rankfall.supervise.following import Following
from rankfall.supervise.history import past_falls
from rankfall.supervise.holding import Holding
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.outcome import outcome_of, released
from rankfall.supervise.outside import OutsideRelease
from rankfall.supervise.planning import Planner
from rankfall.supervise.resizing import RESIZED
from rankfall.supervise.root import root_facts, root_facts_of
from rankfall.supervise.starting import start_failure
from rankfall.supervise.turn import Turns

if TYPE_CHECKING:
    from rankfall.supervise.unattended import Unattended

_NS: Final = 1_000_000_000
_JITTER: Final = 0.25
_RETRIES: Final = frozenset({"retry", "retry_elsewhere", "resize"})


def supervise(
    run_dir: RunDir,
    *,
    on_event: Callable[[Event], None] | None = None,
    control: Control | None = None,
    backend: Backend | None = None,
    wait: float = 0.0,
    handle_signals: bool = False,
    on_lease: Callable[[], None] | None = None,
    standby: bool = False,
) -> Outcome:
    """Bring a run to its end, from wherever it stands.

    Args:
        run_dir: the run.
        on_event: called in this thread with each piece of news; must be quick.
        control: to cancel, release or hand over from outside.
        backend: by default the one that the run's spec names.
        wait: seconds to wait for another supervisor to let go.
        handle_signals: SIGINT and SIGTERM become ``signal`` events, SIGHUP hands the run over; in the main thread only.
        on_lease: called once when this process holds the run.
        standby: wait for as long as another machine supervises the run, and take over when it is gone.

    Returns:
        The outcome; with state ``running`` when this process let go of the run.

    Raises:
        LockHeld: another process supervises the run.
        HeldElsewhere: another machine does.
        Refused: this version has no such backend.
        StoreError: the run directory cannot be read or written at all.
    """
    chosen = backend or backend_for(run_dir.spec)
    own = control or Control()
    try:
        with signals_to(own) if handle_signals else contextlib.nullcontext():
            with run_dir.lease(wait=wait) as writer:
                run = _of(
                    run_dir,
                    writer=writer,
                    on_event=on_event,
                    control=own,
                    backend=chosen,
                    on_lease=on_lease,
                    standby=standby,
                )
                outcome = run.to_end()
            if own.wish == "hand_over" and not run_dir.spec.unattended and outcome.state not in FINAL_STATES:
                from rankfall.supervise.detach import spawn_detached  # noqa: PLC0415 - detach starts this very module

                spawn_detached(run_dir)
            return outcome
    finally:
        if control is None:
            own.close()


def _of(
    run_dir: RunDir,
    *,
    writer: Writer,
    on_event: Callable[[Event], None] | None,
    control: Control,
    backend: Backend,
    on_lease: Callable[[], None] | None,
    standby: bool,
) -> _Run | Unattended:
    """Who brings a run to its end; one that its platform ends by itself is only recorded."""
    if not run_dir.spec.unattended:
        return _Run(
            run_dir,
            writer=writer,
            on_event=on_event,
            control=control,
            backend=backend,
            on_lease=on_lease,
            standby=standby,
        )
    from rankfall.supervise.unattended import Unattended  # noqa: PLC0415 - loads the client of Kubernetes

    # Nobody decides about such a run, so any number of machines may record it.
    if on_lease is not None:
        on_lease()
    return Unattended(run_dir, writer=writer, on_event=on_event, control=control, backend=native_of(backend))


class _Run:
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
        self._attempts: dict[int, AttemptRow] = {row.attempt: row for row in writer.attempts()}
        self._verdicts: dict[int, Diagnosis] = {}
        self._planned: set[int] = set()
        self._decisions: dict[int, DecisionRow] = {row.attempt: row for row in writer.decisions()}
        # Of slots alone, over all attempts; whoever watches an attempt adds to it.
        self._falls: list[FallRow] = writer.falls()
        self._turns = Turns(
            run_dir,
            ledger=self._ledger,
            events=self._events,
            control=control,
            wished=lambda: self._wish() is not None,
            outside=OutsideRelease(run_dir, backend=backend),
        )

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

        self._holding = Holding(
            run_dir, backend=backend, control=control, say=self._wait_said, standby=standby, follow=self._follow
        )

    def to_end(self) -> Outcome:
        over = False
        try:
            outcome = self._to_end()
            over = outcome.state in FINAL_STATES
        finally:
            self._backend.let_go(over=over)
            self._backend.release()
        return outcome

    def _to_end(self) -> Outcome:
        if self._writer.run().state in FINAL_STATES:
            self._ready()
            self._close_decisions()
            return outcome_of(self._run_dir, self._writer)
        try:
            if not self._hold():
                return self._stopped_between()
        except InfrastructureError as error:
            if self._attempts:
                raise
            return self._end("failed", f"the run could not be begun: {error.message}")
        if self._attempts:
            self._events.say("resumed", f"supervision resumed at attempt {max(self._attempts)}", at=time.time_ns())
        while True:
            number = max(self._attempts, default=0)
            row = self._attempts.get(number)
            if row is None or (row.ended is not None and self._goes_on(number)):
                number += 1
                turn = self._wait_for_turn(number - 1)
                if turn == "late":
                    return self._end("failed", f"the total deadline of {self._spec.deadlines.total_s:g} s is over")
                if turn == "gone":
                    return self._end("deleted", "somebody deleted it in the cluster while it was suspended")
                if turn == "wished":
                    return self._stopped_between()
                if not self._begin(number):
                    if self._wish() is not None:
                        return self._stopped_between()
                    return self._end("failed", f"attempt {number} could not be planned: {self._planner.refusal}")
            elif row.ended is not None:
                return self._finish(number)
            diagnosis = self._watch(number)
            if diagnosis is None:
                why = self._control.lost or "supervision let go of the run; its slots go on"
                self._events.say("released", why, at=time.time_ns())
                return released(self._run_dir, attempts=number)
            self._conclude(number, diagnosis)

    def _hold(self) -> bool:
        """Become the run's only supervisor; false when something else was wished meanwhile."""
        held = self._holding.take(
            attempts=max(self._attempts, default=0), waits=self._ready, cancelled=lambda: self._wish() == "cancel"
        )
        self._ready()
        return held

    def _follow(self) -> Following | None:
        """Follow the newest attempt, where it goes on."""
        row = self._attempts.get(max(self._attempts, default=0))
        if row is None or row.ended is not None:
            return None
        plan = Plan.of_row(row.plan, self._spec)
        return Following(self._run_dir, plan=plan, backend=self._backend, ledger=self._ledger, events=self._events)

    def _ready(self) -> None:
        """Tell once that this process takes care of the run."""
        tell, self._on_lease = self._on_lease, None
        if tell is not None:
            tell()

    # -- attempts

    def _begin(self, number: int) -> bool:
        """Plan an attempt and write it down; nothing runs yet."""
        plan = self._planner.plan(number, before=self._attempts.get(number - 1), exclude=self._avoided())
        if plan is None:
            return False
        now = time.time_ns()
        self._planned.add(number)
        self._attempts[number] = AttemptRow(attempt=number, started=now, plan=plan.row())
        self._ledger.begin_attempt(number, at=now, plan=plan.row())
        self._ledger.set_run("starting", reason=f"attempt {number}", at=now)
        self._close_decisions()
        self._events.say(
            "attempt",
            f"attempt {number}: {plan.size_text(self._spec)}",
            at=now,
            attempt=number,
            launcher=plan.launcher,
            rdzv=plan.rdzv,
            port=plan.port,
        )
        for change in plan.changes:
            self._events.say("resize", f"now {change.text}", at=now, attempt=number, nodes=change.nodes, done=True)
        for note in plan.notes:
            self._events.say("launcher", note, at=now, attempt=number, launcher=plan.launcher)
        return True

    def _no_more(self) -> bool:
        """Whether waiting for another attempt is of no use any more."""
        total_at = self._turns.total_at(self._first())
        return self._wish() is not None or (total_at is not None and time.time_ns() >= total_at)

    def _avoided(self) -> frozenset[str]:
        """Nodes that a decision of this run keeps the next attempts off."""
        found = set()
        for number, row in self._decisions.items():
            diagnosis = self._diagnosis(number)
            if row.decision.action == "retry_elsewhere" and diagnosis is not None and diagnosis.verdict.node:
                found.add(diagnosis.verdict.node)
        return frozenset(found)

    def _watch(self, number: int) -> Diagnosis | None:
        row = self._attempts[number]
        plan = Plan.of_row(row.plan, self._spec)
        watch = AttemptWatch(
            self._run_dir,
            plan=plan,
            backend=self._backend,
            ledger=self._ledger,
            events=self._events,
            control=self._control,
            started=row.started or time.time_ns(),
            total_at=self._turns.total_at(self._first()),
            falls=self._falls,
            decide=partial(self._decide_alone, number),
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
                    watch.refused(start_failure(error.message, attempt=number))
                else:
                    watch.without_the_rest()
        else:
            watch.without_the_rest()
        found = watch.run(settled=settled)
        self._attempts[number] = msgspec.structs.replace(self._attempts[number], plan=watch.plan.row())
        return found

    def _conclude(self, number: int, diagnosis: Diagnosis) -> None:
        """Write down the verdict, then the end of the attempt, then the decision as intent."""
        verdict = diagnosis.verdict
        paused = verdict.state in {"suspended", "restarting"}
        if not paused and verdict.state != "succeeded":
            version = self._ledger.add_verdict(number, diagnosis)
            verdict = msgspec.structs.replace(verdict, version=version)
            diagnosis = msgspec.structs.replace(diagnosis, verdict=verdict)
            where = (
                "all ranks" if verdict.scope == "all" else "no rank" if verdict.rank is None else f"rank {verdict.rank}"
            )
            place = f" on {verdict.node}" if verdict.node else ""
            self._events.say(
                "verdict",
                f"{verdict.cause.slug} ({verdict.cause.confidence}), {where}{place}",
                at=time.time_ns(),
                attempt=number,
                slug=verdict.cause.slug,
                confidence=verdict.cause.confidence,
                rank=verdict.rank,
                node=verdict.node,
                version=version,
            )
        if not paused:
            self._verdicts[number] = diagnosis
        now = time.time_ns()
        # What the run does next is no state of an attempt that is over.
        state = RESIZED if verdict.state == "restarting" else verdict.state
        self._ledger.end_attempt(number, at=now, state=state)
        self._attempts[number] = msgspec.structs.replace(self._attempts[number], ended=now, state=state)

    # -- decisions

    def _diagnosis(self, number: int) -> Diagnosis | None:
        return self._verdicts.get(number) or self._writer.diagnosis(number)

    def _goes_on(self, number: int) -> bool:
        """Whether another attempt follows this ended one; decides when nobody did."""
        if self._attempts[number].state in {"suspended", RESIZED}:
            return True
        diagnosis = self._diagnosis(number)
        if self._attempts[number].state == "succeeded" or diagnosis is None:
            return False
        row = self._decisions.get(number)
        if row is None:
            row = self._decide(number, diagnosis)
        return row.decision.action in _RETRIES

    def _decide(self, number: int, diagnosis: Diagnosis) -> DecisionRow:
        made = self._made_alone(number, diagnosis)
        if made is None:
            facts = root_facts(self._writer, attempt=number, diagnosis=diagnosis)
            made = self._made(number, diagnosis, facts)
        now = time.time_ns()
        decision = msgspec.structs.replace(made, at=rfc3339(now))
        found = self._ledger.add_decision(number, decision)
        row = DecisionRow(id=found or 0, attempt=number, decision=decision)
        self._decisions[number] = row
        self._say_decision(number, decision, at=now)
        return row

    def _made(self, number: int, diagnosis: Diagnosis, facts: RootFacts, *, slot: int | None = None) -> Decision:
        """A decision about an attempt, or about a slot that fell alone in it."""
        total_at = self._turns.total_at(self._first())
        left = (total_at - time.time_ns()) / _NS if total_at is not None else None
        decision = decide(
            diagnosis,
            spec=self._spec,
            history=past_falls(
                self._writer, before=number, decisions=self._decisions, verdicts=self._verdicts, falls=self._falls
            ),
            facts=facts,
            # Whoever starts one slot again alone takes the nodes as they are.
            other_nodes=self._backend.avoids_nodes and slot is None,
            time_left=left,
            slot=slot,
        )
        if decision.delay_s:
            jitter = 1 + _JITTER * random.random()  # noqa: S311 - spreads retries, guards nothing
            decision = msgspec.structs.replace(decision, delay_s=decision.delay_s * jitter)
        return decision

    def _decide_alone(self, number: int, diagnosis: Diagnosis, case: Case, slot: int) -> Decision:
        """What to do about a slot that fell alone in this attempt."""
        decision = self._made(number, diagnosis, root_facts_of(case, diagnosis), slot=slot)
        return msgspec.structs.replace(decision, at=rfc3339(time.time_ns()))

    def _made_alone(self, number: int, diagnosis: Diagnosis) -> Decision | None:
        """What was decided already about the slot whose fall ended this attempt; None where none did."""
        for row in reversed(self._falls):
            if row.attempt == number and not row.fall.again and _same(row.fall.diagnosis, diagnosis):
                return row.fall.only_decision
        return None

    def _say_decision(self, number: int, decision: Decision, *, at: int) -> None:
        self._events.say(
            "decision",
            f"{decision.action}: {decision.because}",
            at=at,
            attempt=number,
            action=decision.action,
            rule=decision.rule,
            budget=decision.budget,
            left=decision.left,
            delay_s=round(decision.delay_s, 3),
        )

    def _close_decisions(self) -> None:
        """Mark as done what has been carried out: every decision about an attempt that another one or the run's end followed."""
        for row in self._decisions.values():
            if row.done_at is None:
                now = time.time_ns()
                self._ledger.decision_done(row, at=now)
                self._decisions[row.attempt] = msgspec.structs.replace(row, done_at=now)
        self._close_falls()

    def _close_falls(self) -> None:
        """Those about slots alone: that nothing follows, or that the start of another attempt has carried out for the whole gang."""
        newest = max(self._attempts, default=0)
        for place, row in enumerate(self._falls):
            if row.done_at is None and (not row.fall.again or row.attempt < newest):
                now = time.time_ns()
                self._ledger.decision_done(row, at=now)
                self._falls[place] = msgspec.structs.replace(row, done_at=now)

    def _wait_for_turn(self, after: int) -> Literal["now", "wished", "late", "gone"]:
        """Wait until the attempt behind ``after`` may begin."""
        row = self._decisions.get(after)
        ended = (self._attempts[after].ended or time.time_ns()) if after else 0
        due = ended + (round(row.decision.delay_s * _NS) if row else 0)
        before = Plan.of_row(self._attempts[after].plan, self._spec) if after else None
        return self._turns.wait(after + 1, due=due, first=self._first(), before=before)

    def _first(self) -> int | None:
        """When the first attempt began, nanoseconds since the epoch."""
        return min((row.started for row in self._attempts.values() if row.started is not None), default=None)

    def _wish(self) -> str | None:
        if self._control.wish is not None:
            return self._control.wish
        return "cancel" if self._control.cancelled is not None or read_cancel(self._run_dir.path) else None

    def _stopped_between(self) -> Outcome:
        """No attempt runs and a wish came."""
        if self._wish() != "cancel":
            why = self._control.lost or "supervision let go of the run between two attempts"
            self._events.say("released", why, at=time.time_ns())
            return released(self._run_dir, attempts=max(self._attempts, default=0))
        request = read_cancel(self._run_dir.path)
        reason = request.text if request else f"cancelled: {self._control.cancelled}".rstrip(": ")
        return self._end("cancelled", reason)

    # -- the end

    def _finish(self, number: int) -> Outcome:
        state = self._attempts[number].state
        if state == "succeeded":
            return self._end("succeeded", None)
        if state == "cancelled":
            request = read_cancel(self._run_dir.path)
            if request is None and self._control.cancelled is None:
                return self._end("deleted", "somebody deleted it in the cluster")
            return self._end("cancelled", request.text if request else "cancelled")
        row = self._decisions.get(number)
        return self._end("failed", row.decision.because if row else "no verdict was reached")

    def _end(self, final: Literal["succeeded", "failed", "cancelled", "deleted"], reason: str | None) -> Outcome:
        now = time.time_ns()
        self._ledger.set_run(final, reason=reason, at=now)
        self._close_decisions()
        self._ledger.flush()
        newest = max(self._attempts, default=0)
        outcome = outcome_of(
            self._run_dir, self._writer, state=final, diagnosis=self._diagnosis(newest) if newest else None
        )
        self._events.say(
            "ended",
            f"run {self._run_dir.id} {final}",
            at=now,
            state=final,
            code=outcome.code,
            origin=outcome.exit_origin,
        )
        self._derive()
        self._ledger.flush()
        if final in {"cancelled", "deleted"} and newest:
            self._planner.remove(self._attempts[newest])
        elif newest and needed(self._run_dir):
            self._expire()
        return outcome

    def _expire(self) -> None:
        """Leave somebody behind who removes what the platform does not."""
        try:
            spawn(self._run_dir)
        except InfrastructureError as error:
            self._ledger.note(error.message)
            self._gap(f"{error.message}; {error.hint}")
            self._ledger.flush()

    def _derive(self) -> None:
        """Files made for reading; the run does not depend on them."""
        from rankfall.store.derived import write_derived  # noqa: PLC0415 - only at the end of a run

        try:
            write_derived(self._run_dir)
        except (OSError, StoreError) as error:
            self._ledger.note(f"the files per rank could not be written: {error}"[:500])

    def _gap(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns())

    def _wait_said(self, text: str) -> None:
        """What a launch, a removal or the hold of the run waits for: news, and the reason of the state that the run is in."""
        now = time.time_ns()
        self._events.say("waiting", text, at=now)
        state = self._writer.run().state
        if state not in FINAL_STATES:
            self._ledger.set_run(state, reason=text, at=now)


def _same(one: Diagnosis, other: Diagnosis) -> bool:
    """Whether two diagnoses are one, whatever version and decision stand in them."""
    verdict = msgspec.structs.replace(other.verdict, version=one.verdict.version, decision=one.verdict.decision)
    return one == msgspec.structs.replace(other, verdict=verdict)
