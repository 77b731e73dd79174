"""Launches an unattended run once, then records every start.

Kubernetes alone decides; only leftovers of a killed launch are deleted. Each start of the gang is an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.backends.protocol import Backend, NativeBackend
from rankfall.backends.registry import backend_for, native_of
from rankfall.collect.stores.record_store import record_store_of
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.kube.object_fields import JOBSET_UID
from rankfall.model import (
    FINAL_STATES,
    Decision,
    Diagnosis,
    InfrastructureError,
    Outcome,
    RankfallError,
    RunState,
)
from rankfall.model.timestamps import rfc3339
from rankfall.rundir import AttemptRow, DecisionRow, RunDir, Writer
from rankfall.rundir.cluster.workload_state import of_restart
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt_facts import WAITS, start_failure
from rankfall.supervisor.attempt_table import announce_verdict
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.outcome import begin, done, last_words, outcome_of, pending_cleanup, released, write_files
from rankfall.supervisor.platform_reports import NodeReporter, show_verdict
from rankfall.supervisor.requests import Control, read_cancel, read_suspension
from rankfall.supervisor.run_events import Event, EventLog
from rankfall.supervisor.stopping import mark_logs_open
from rankfall.supervisor.unattended.failures import ended_before_deletion, fallen
from rankfall.supervisor.unattended.monitor import Ended, GangMonitor
from rankfall.supervisor.unattended.workload_poller import POLL_INTERVAL_S, gang_of_start
from rankfall.verdict.diagnose import stopped_on_request

if TYPE_CHECKING:
    from rankfall.backends.kubernetes.workload import Workload

# Pods of these have their set's restart number.
_SETS: Final = frozenset({"jobset", "trainjob"})


def first_start(plan: Plan) -> Plan:
    """Limits a first plan to the first start; later ones differ in restart number."""
    place = plan.cluster
    if place is None or place.backend not in _SETS:
        return plan
    return msgspec.structs.replace(plan, cluster=msgspec.structs.replace(place, selector=of_restart(place.selector, 0)))


def next_start(plan: Plan, run_dir: RunDir, *, restarted: bool, gang: str = "") -> Plan:
    """Returns the plan of the next gang start with the same objects.

    ``restarted`` False: suspended and resumed. ``gang``: UID of a TrainJob's new JobSet, or empty.
    """
    place = plan.cluster
    number = plan.attempt + 1
    return msgspec.structs.replace(
        plan,
        attempt=number,
        notes=(),
        cluster=None if place is None else _of_start(place, plan.attempt, restarted=restarted, gang=gang),
        slots=tuple(
            msgspec.structs.replace(
                slot,
                slot_dir=str(run_dir.slot_dir(number, slot.role, slot.slot)),
                stream_dir=str(run_dir.stream_dir(number, slot.role, slot.slot)),
            )
            for slot in plan.slots
        ),
    )


def _of_start(place: ClusterPlan, attempt: int, *, restarted: bool, gang: str) -> ClusterPlan:
    restart, marks = 0 if gang else place.restart + restarted, place.marks
    if gang and marks is not None:
        marks = msgspec.structs.replace(marks, owner=(JOBSET_UID, gang), since="")
    return msgspec.structs.replace(
        place,
        restart=restart,
        gang=gang or place.gang,
        marks=marks,
        named=place.named or attempt,
        apart=(*place.apart, attempt),
        selector=of_restart(place.selector, restart) if place.backend in _SETS else place.selector,
    )


_RULE: Final = "native"
_RESTARTED: Final = "{shown} restarted the gang, as its failure policy requires"


class Unattended:
    """Records one unattended run.

    Without ``stay`` only past events are recorded, with ``lines`` also current pods and lines.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        writer: Writer,
        on_event: Callable[[Event], None] | None,
        control: Control,
        backend: NativeBackend,
        stay: bool = True,
        lines: bool = False,
    ) -> None:
        self._run_dir = run_dir
        self._spec = run_dir.spec
        self._writer = writer
        self._events = EventLog(run_dir.path, on_event)
        self._run_store = BestEffortStore(writer, on_gap=self._gap)
        self._control = control
        self._backend = backend
        self._stay = stay
        self._lines = lines
        self._attempts: dict[int, AttemptRow] = {row.attempt: row for row in writer.attempts()}
        # The platform restarts the gang at any time.
        self._node_reporter = NodeReporter(
            backend, run_store=self._run_store, events=self._events, control=control, over=lambda: True
        )

    def to_end(self) -> Outcome:
        """Records the run until it ends or this process releases it.

        Raises:
            RankfallError: The launch failed.
        """
        try:
            return self._to_end()
        finally:
            self._backend.release()

    def launch(self) -> None:
        """Creates the run's objects; finally closes the connection to the cluster.

        Raises:
            RankfallError: As :meth:`to_end`.
        """
        try:
            if self._writer.run().state not in FINAL_STATES:
                self._launched()
        finally:
            self._backend.release()

    def _to_end(self) -> Outcome:
        if self._writer.run().state in FINAL_STATES:
            if pending_cleanup(self._run_dir) == "files":
                write_files(self._run_dir, self._run_store)
                self._run_store.flush()
            return outcome_of(self._run_dir, self._writer)
        workload = self._launched()
        if workload is None:
            return self._end_deleted("the run was never launched")
        while True:
            number = max(self._attempts)
            row = self._attempts[number]
            if row.ended is not None:
                now = self._resumed(workload) if row.state == "suspended" else "goes on"
                gang = self._next_gang(number, workload) if now == "goes on" else now
                if gang is None or now == "left":
                    return released(self._run_dir, attempts=number)
                if now == "gone":
                    return self._end_deleted(self._taken(workload))
                self._again(number, gang)
                continue
            plan = Plan.of_row(row.plan, self._spec)
            watch = GangMonitor(
                self._run_dir,
                plan=plan,
                backend=self._backend,
                workload=workload,
                run_store=self._run_store,
                events=self._events,
                control=self._control,
            )
            ended = watch.run(stay=self._stay, lines=self._lines)
            if ended is None:
                return released(self._run_dir, attempts=number)
            outcome = self._conclude(number, ended, workload)
            if outcome is not None:
                return outcome

    # -- launch

    def _launched(self) -> Workload | None:
        """Workload, created if missing; None if the run was canceled first."""
        if not self._attempts:
            if read_cancel(self._run_dir.path) is not None:
                return None
            try:
                self._begin(first_start(self._backend.plan(self._run_dir.whole_spec(), self._run_dir, 1)))
            except RankfallError as error:
                self._end("failed", f"the run could not be planned: {error.in_one_line}")
                raise
        plan = Plan.of_row(self._attempts[1].plan, self._spec)
        found = self._backend.workload(plan)
        if found is not None:
            return found
        if read_cancel(self._run_dir.path) is not None:
            # Objects of a killed launch have Rankfall's marks.
            self._backend.clear(plan)
            return None
        try:
            self._backend.submit(plan)
        except InfrastructureError as error:
            self._refused(error)
            raise
        return self._backend.workload(plan)

    def _refused(self, error: InfrastructureError) -> None:
        piece = start_failure(error.in_one_line, attempt=1)
        self._run_store.add_evidence(1, (piece,))
        case = AttemptObserver(
            self._run_dir,
            spec=self._spec,
            attempt=1,
            record_store=record_store_of(self._run_dir, self._spec, attempt=1),
        ).case()
        found = diagnose_by(self._spec.strategy, msgspec.structs.replace(case, evidence=(piece,), ended=True))
        self._close_attempt(1, found)
        self._end("failed", f"the run could not be launched: {error.in_one_line}")

    def _begin(self, plan: Plan) -> None:
        now = time.time_ns()
        self._attempts[plan.attempt] = AttemptRow(attempt=plan.attempt, started=now, plan=plan.row())
        self._run_store.begin_attempt(plan.attempt, at=now, plan=plan.row())
        self._run_store.set_run("starting", reason=None, at=now)
        self._events.say(
            "attempt",
            f"attempt {plan.attempt}: {len(plan.slots)} slots, unattended: Kubernetes alone decides",
            at=now,
            attempt=plan.attempt,
            launcher=plan.launcher,
        )
        for note in plan.notes:
            self._events.say("launcher", note, at=now, attempt=plan.attempt, launcher=plan.launcher)

    def _again(self, number: int, gang: str) -> None:
        """Stores the next start; pod labels distinguish starts with equal names."""
        row = self._attempts[number]
        restart = row.state != "suspended"
        self._begin(next_start(Plan.of_row(row.plan, self._spec), self._run_dir, restarted=restart, gang=gang))

    def _next_gang(self, number: int, workload: Workload) -> str | None:
        """UID of a TrainJob's new JobSet, empty if unchanged, or None on a release."""
        place = Plan.of_row(self._attempts[number].plan, self._spec).cluster
        before = gang_of_start(self._run_dir, place, attempt=number) if place is not None else ""
        if not before:
            return ""
        while self._control.release_request is None:
            try:
                state = workload.look()
            except InfrastructureError as error:
                self._gap(f"cannot read {workload.label}: {error.message}; trying again")
            else:
                return "" if state is None or state.gang == before else state.gang
            self._control.wait(POLL_INTERVAL_S)
        return None

    def _resumed(self, workload: Workload) -> Literal["goes on", "gone", "left"]:
        """Waits for a suspended run; ``left`` on a release."""
        # Without pods no log can be missed.
        mark_logs_open(self._run_dir, max(self._attempts))
        while self._control.release_request is None:
            try:
                state = workload.look()
            except InfrastructureError as error:
                self._gap(f"cannot read {workload.label}: {error.message}; trying again")
            else:
                self._run_dir.mark_seen()
                if state is None or state.deleting:
                    return "gone"
                if state.phase != "suspended":
                    return "goes on"
                self._run_store.set_run("suspended", reason=self._hold(), at=time.time_ns())
            if not self._stay:
                break
            self._control.wait(POLL_INTERVAL_S)
        return "left"

    # -- the end of a start

    def _conclude(self, number: int, ended: Ended, workload: Workload) -> Outcome | None:
        """Outcome if the run ended; None if another start follows."""
        found = self._diagnosis(number, ended, workload)
        state = self._close_attempt(number, found)
        if ended.how == "held":
            self._run_store.set_run("suspended", reason=self._hold(), at=time.time_ns())
            how = "" if self._run_dir.foreign is not None else f"; to continue: rankfall resume {self._run_dir.id}"
            self._events.say("suspended", f"{self._hold()}{how}", at=time.time_ns())
            return None
        if ended.how == "again":
            self._decided(number, self._replaced(ended, workload) or _RESTARTED.format(shown=workload.label))
            return None
        if ended.state is not None and ended.how == "over":
            reason = f"{ended.state.reason or ended.state.phase}: {ended.state.message or ''}".rstrip(": ")
            if ended.case.denied:
                reason = f"{reason}, but a worker left an error file"
            return self._end(
                "succeeded" if state == "succeeded" else "failed", None if state == "succeeded" else reason
            )
        if state == "succeeded":
            return self._end("succeeded", None)
        if state == "failed":
            # Its verdict and exit code remain.
            return self._end("failed", self._taken(workload))
        return self._end_deleted(self._taken(workload))

    def _diagnosis(self, number: int, ended: Ended, workload: Workload) -> Diagnosis:
        case, request = ended.case, read_cancel(self._run_dir.path)
        strategy = Plan.of_row(self._attempts[number].plan, self._spec).strategy
        if ended.how == "held":
            return stopped_on_request(
                self._hold(), how="suspended", run=self._run_dir.id, attempt=number, role=self._spec.one_role
            )
        done = ended.state is not None and ended.state.phase == "succeeded"
        if ended.how == "gone" and request is None:
            # Complete before the removal.
            done = bool(case.slots) and all(one.state == "ended" and one.exit_code == 0 for one in case.slots)
        if done and not case.denied:
            return diagnose_by(strategy, msgspec.structs.replace(case, succeeded=True))
        if ended.how == "gone" and request is not None:
            return diagnose_by(strategy, msgspec.structs.replace(case, cancelled=request.text))
        state = ended.state if ended.how == "over" and not case.denied else None
        found = fallen(case, state=state, label=workload.label, strategy=strategy, unseen=ended.unseen)
        taken = self._taken(workload) if ended.how == "gone" else self._replaced(ended, workload)
        cause = found.verdict.cause
        if taken is None or (cause.confidence == "proven" and cause.slug not in WAITS):
            return found
        # What had failed before the deletion remains the cause.
        slot = found.verdict.slot
        if cause.slug != "unknown" and ended_before_deletion(self._run_dir.path, attempt=number, slot=slot):
            return found
        return diagnose_by(strategy, msgspec.structs.replace(case, cancelled=taken))

    def _replaced(self, ended: Ended, workload: Workload) -> str | None:
        """Text about a deleted and recreated gang of this start, or None."""
        if ended.how != "again" or ended.state is None or ended.state.gang in {"", ended.gang}:
            return None
        return f"the jobset of {workload.label} was deleted in the cluster, and its controller created a new one"

    def _taken(self, workload: Workload) -> str:
        ttl = self._spec.ttl_s
        seen = "while this process recorded it" if self._stay else "and no process recorded its end"
        if self._run_dir.foreign is not None:
            return f"{workload.label} no longer exists: it was deleted, {seen}"
        own = f", or its time to live of {ttl} s after its end has passed" if ttl is not None else ""
        return f"{workload.label} no longer exists: it was deleted{own}, {seen}"

    def _close_attempt(self, number: int, found: Diagnosis) -> str:
        verdict = found.verdict
        if verdict.state not in {"succeeded", "suspended"}:
            version = self._run_store.add_verdict(number, found)
            updated = msgspec.structs.replace(found, verdict=msgspec.structs.replace(verdict, version=version))
            announce_verdict(self._events, updated.verdict, attempt=number)
            plan = Plan.of_row(self._attempts[number].plan, self._spec)
            show_verdict(self._backend, plan, updated, spec=self._spec, say=self._gap)
            self._node_reporter.tell(plan, updated)
        now = time.time_ns()
        self._run_store.end_attempt(number, at=now, state=verdict.state)
        self._attempts[number] = msgspec.structs.replace(self._attempts[number], ended=now, state=verdict.state)
        return verdict.state

    def _decided(self, number: int, because: str) -> None:
        """Stores the decision that Kubernetes made: it has restarted the gang."""
        now = time.time_ns()
        decision = Decision(action="retry", rule=_RULE, because=because, at=rfc3339(now))
        found = self._run_store.add_decision(number, decision)
        self._run_store.decision_done(DecisionRow(id=found or 0, attempt=number, decision=decision), at=now)
        self._events.say("decision", f"retry: {because}", at=now, attempt=number, action="retry", rule=_RULE)

    def _hold(self) -> str:
        """Text of the newest suspension request since the newest attempt began."""
        since = self._attempts[max(self._attempts)].started or 0
        hold = read_suspension(self._run_dir.path, initially=self._spec.suspend)
        asked = [one for one in hold.requests if one.what == "suspend" and one.at >= since]
        if asked:
            return asked[-1].text
        return hold.text if hold.suspended else "suspended in the cluster, by a queue or a user"

    def _end_deleted(self, words: str) -> Outcome:
        """Ends a run without workload: canceled if requested, else deleted."""
        request = read_cancel(self._run_dir.path)
        return self._end("cancelled", request.text) if request is not None else self._end("deleted", words)

    def _end(self, final: RunState, reason: str | None) -> Outcome:
        now = time.time_ns()
        begin(self._run_dir)
        self._run_store.set_run(final, reason=reason, at=now)
        return last_words(self._run_dir, run_store=self._run_store, events=self._events, state=final, at=now)

    def _gap(self, text: str) -> None:
        self._events.say("gap", text, at=time.time_ns())


def launch(run_dir: RunDir, *, backend: Backend | None = None) -> None:
    """Creates an unattended run's objects; idempotent.

    Raises:
        LockHeld: Another process launches or records the run.
        RankfallError: The launch failed; the run has ended.
    """
    control = Control()
    try:
        with run_dir.lease() as writer:
            native = native_of(backend or backend_for(run_dir.spec))
            Unattended(run_dir, writer=writer, on_event=None, control=control, backend=native).launch()
    finally:
        control.close()


def refresh_unattended(
    run_dir: RunDir,
    *,
    backend: Backend | None = None,
    lines: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> None:
    """Updates an unrecorded unattended run: state and, after its end, all data.

    ``lines``: reads current pods and lines too.

    Raises:
        LockHeld: Another process records the run.
        RankfallError: Cluster or run directory not accessible.
    """
    control = Control()
    try:
        with run_dir.lease() as writer:
            native = native_of(backend or backend_for(run_dir.spec))
            Unattended(
                run_dir, writer=writer, on_event=on_event, control=control, backend=native, stay=False, lines=lines
            ).to_end()
            done(run_dir)
    finally:
        control.close()
