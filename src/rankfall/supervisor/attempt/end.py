"""Ends one attempt: user requests, the stop, the final diagnosis.

The first reason remains. A cancel does not replace a failure that came before it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import msgspec

from rankfall.backends.protocol import Backend, PlatformEnd, StepBackend
from rankfall.model import Case, Diagnosis, RankFacts, SlotFacts
from rankfall.rundir import RunDir
from rankfall.rundir.incomplete import disk_trouble
from rankfall.rundir.requests import ResizeRequest
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attempt.completion import SettleWindow, SuccessWatch
from rankfall.supervisor.attempt.view import AttemptScope
from rankfall.supervisor.attempt_facts import WAITS, BadEnd, start_failure
from rankfall.supervisor.attempt_table import announce_verdict
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.external_suspension import ExternalSuspension
from rankfall.supervisor.requests import (
    Control,
    read_cancel,
    read_suspension,
    requested_before_end,
    resized_diagnosis,
    unmet,
)
from rankfall.supervisor.run_events import EventLog
from rankfall.supervisor.stopping import FORCE_AFTER_S, LOGS_OPEN_TIMEOUT_S, Stopping, slots_text
from rankfall.verdict.diagnose import stopped_on_request

# Seconds before the verdict is reported without slow slots' last lines.
_PATIENCE_S: Final = 0.7
# Seconds between two reports of a stop.
_WAIT_S: Final = 5.0
_MAX_NODES: Final = 4
_MAX_FINAL_POLLS: Final = 100_000
# A failure shortly before a cancel may come from the same signal, as systemd sends it to all processes of a service.
_SAME_SIGNAL_NS: Final = 1_000_000_000
# Ends by a signal that a cancel explains as well.
_SIGNALLED: Final = frozenset({"cancelled", "external_signal", "preempted", "unknown", "walltime_or_requeue"})


class AttemptEnd:
    """Stops one attempt and makes its diagnosis.

    ``verdict`` is the diagnosis before all slots ended; ``cancelled`` and ``suspended`` are texts about the user; all
    None without one.
    """

    def __init__(
        self,
        scope: AttemptScope,
        *,
        run_dir: RunDir,
        backend: Backend,
        run_store: BestEffortStore,
        events: EventLog,
        success: SuccessWatch,
        window: SettleWindow,
    ) -> None:
        self.verdict: Diagnosis | None = None
        self.cancelled: str | None = None
        self._cancel_slug = "cancelled"
        self._cancelled_at: int | None = None
        self._failed_first = False
        self.suspended: str | None = None
        self.resized: ResizeRequest | None = None
        self._scope = scope
        self._run_dir = run_dir
        self._backend = backend
        self._run_store = run_store
        self._events = events
        self._success = success
        self._window = window
        self._stopping: Stopping | None = None
        self._early_verdict_stored = False
        self._wait_due = 0.0

    @property
    def stopping(self) -> bool:
        """True if the slots are being stopped."""
        return self._stopping is not None

    @property
    def decided(self) -> bool:
        """True if the attempt is to end."""
        return self.stopping or self.verdict is not None

    @property
    def open(self) -> bool:
        """True if the attempt is not to end and no settle window is open."""
        return not self.decided and self._window.opened is None

    def case(self, *, hung: bool = False) -> Case:
        """Returns the current case, for a diagnosis."""
        cancelled = None if self._failed_first else self.cancelled
        case = self._scope.case(cancelled=cancelled, done=self._success.reached, hung=hung)
        return msgspec.structs.replace(case, cancel_slug=self._cancel_slug)

    def cancel(self, text: str, *, at: int | None = None) -> None:
        """Stops all slots on a user's request, or for the platform that ends the job by a signal to this process.

        ``at``: time of the request in nanoseconds since the epoch, if known. A stop after a failure continues.
        """
        end = self._platform_end()
        if end is not None:
            text, self._cancel_slug = end.text, end.slug
        elif self.stopping:
            self._failed_first = True
        else:
            self._cancelled_at = at
        self.cancelled = text
        self.stop(text)

    def _platform_end(self) -> PlatformEnd | None:
        return self._backend.end_reason(self._scope.plan) if isinstance(self._backend, StepBackend) else None

    def stop(self, reason: str) -> None:
        """Stops all slots; the first reason remains."""
        if self._stopping is not None:
            return
        if self._scope.spec.elastic:
            self._scope.members.give_up_joining()
            self._scope.apply_membership()
        plan = self._scope.plan
        self._events.say("stopping", f"stopping: {reason}", at=time.time_ns(), attempt=plan.attempt)
        grace = self._scope.spec.policies.grace_s
        self._stopping = Stopping(
            self._backend,
            plan,
            grace=grace,
            reason=reason,
            now=time.monotonic(),
            followed=lambda: self._scope.followed,
        )
        self._scope.startup.over = True

    def step(self, running: Collection[int], *, clock: float) -> None:
        """Continues a begun stop while these slots run; ``clock`` in monotonic seconds."""
        if self._stopping is not None:
            self._stopping.step(running, now=clock)
            took = clock - self._stopping.began
            self._store_early_verdict(took)
            if running and took >= _PATIENCE_S and clock >= self._wait_due:
                self._wait_due = clock + _WAIT_S
                self._scope.wait(*self._waits_for(running, took), now=time.time_ns())

    def settle(self, found: Diagnosis, *, reason: str) -> None:
        """Stores a verdict before the stop: a later supervisor could not observe the hang again."""
        self.verdict = found
        self._scope.writer.store(force=True)
        self._run_store.add_verdict(self._scope.plan.attempt, found)
        self.stop(reason)

    def so_far(self) -> Diagnosis:
        """Returns the diagnosis of the failure under examination, as if the running slots had been stopped."""
        return diagnose_by(self._scope.plan.strategy, msgspec.structs.replace(self.case(), ended=True))

    def conclude(self) -> Diagnosis:
        """Reads the last output and returns the final diagnosis; all slots have ended."""
        self._report_full_disk()
        self._end_lost()
        self._scope.observer.shorten_grace()
        for _ in range(_MAX_FINAL_POLLS):
            delta = self._scope.look()
            if not delta.bytes and not delta.changed and not delta.behind:
                break
        self._report_wrapper_error()
        found = self._diagnosis(msgspec.structs.replace(self.case(), ended=True))
        self._scope.announce_problems()
        self._scope.writer.store(force=True)
        return found

    def _waits_for(self, running: Collection[int], took: float) -> tuple[str, str]:
        """Kind and the user text of the condition that a stop waits for."""
        if self._stopping is None or not self._stopping.asked:
            return (
                "logs",
                f"the stop waits until the logs of all containers are open, for at most {LOGS_OPEN_TIMEOUT_S:g} s",
            )
        nodes = sorted({s.node for s in self._scope.slots() if s.slot in running and s.node})
        where = f" on {', '.join(nodes[:_MAX_NODES])}" if nodes else ""
        grace = self._scope.spec.policies.grace_s
        if took < grace + FORCE_AFTER_S:
            return "ends", f"waits for the end of {slots_text(running)}{where}, at most {grace:g} s after SIGTERM"
        what = "their wrappers" if self._scope.plan.cluster is None else "the platform's report on their nodes"
        return "ends", f"{slots_text(running)}{where}: no end reported yet; waits for {what}"

    def report(self, found: Diagnosis) -> None:
        """Stores and reports the verdict on a failed attempt before waiting for data that only completes its record."""
        if found.verdict.state == "failed":
            attempt = self._scope.plan.attempt
            version = self._run_store.add_verdict(attempt, found)
            verdict = msgspec.structs.replace(found.verdict, version=version)
            announce_verdict(self._events, verdict, attempt=attempt)

    def _store_early_verdict(self, took: float) -> None:
        """Stores a verdict while slots are slow to stop; later output makes a new version."""
        if self._early_verdict_stored or self.cancelled or self.verdict or self._window.opened is None:
            return
        if took >= _PATIENCE_S:
            self._early_verdict_stored = True
            self._scope.writer.store(force=True)
            self._run_store.add_verdict(self._scope.plan.attempt, self.so_far())

    def _diagnosis(self, case: Case) -> Diagnosis:
        plan = self._scope.plan
        if self.suspended is not None:
            return stopped_on_request(
                self.suspended,
                how="suspended",
                run=self._run_dir.id,
                attempt=plan.attempt,
                role=self._scope.spec.one_role,
            )
        if self.resized is not None:
            return resized_diagnosis(self.resized, run=self._run_dir.id, attempt=plan.attempt)
        found = self.verdict or self._failure_before_cancel(case) or diagnose_by(plan.strategy, case)
        cause = found.verdict.cause
        if found.verdict.state == "failed" and (cause.confidence != "proven" or cause.slug in WAITS):
            # Slurm may end the steps and leave this process more time.
            end = self._platform_end()
            # Pods that a person deleted fail like others.
            taken = end.text if end is not None else self._backend.deleted_externally(plan)
            if taken is not None:
                slug = end.slug if end is not None else "cancelled"
                case = msgspec.structs.replace(case, cancelled=taken, cancel_slug=slug)
                found = diagnose_by(plan.strategy, case)
        return found

    def _failure_before_cancel(self, case: Case) -> Diagnosis | None:
        """Diagnosis of an attempt that had ended by itself, or failed, clearly before its cancel; else None."""
        if case.cancelled is None or self._cancelled_at is None:
            return None
        if self._success.see(case.slots, case.ranks, now=time.time_ns()) != "open":
            return None
        bad = self._scope.members.bad(case.slots, case.ranks)
        if requested_before_end(self._cancelled_at - _SAME_SIGNAL_NS, case.slots, case.ranks, bad=bad):
            return None
        found = diagnose_by(self._scope.plan.strategy, msgspec.structs.replace(case, cancelled=None))
        return None if found.verdict.state == "failed" and found.verdict.cause.slug in _SIGNALLED else found

    def _end_lost(self) -> None:
        """Ends processes that a slot without a wrapper may have left behind."""
        lost = [s.slot for s in self._scope.slots() if s.state == "lost"]
        if lost and self._backend.end(self._scope.plan, lost, grace=self._scope.spec.policies.grace_s):
            slots = ", ".join(map(str, lost))
            self._events.say("gap", f"ended leftover processes of slot {slots}", at=time.time_ns(), slots=lost)

    def _report_full_disk(self) -> None:
        """Adds a full disk as the reason why no wrapper could start."""
        scope = self._scope
        if not scope.slot_states.never_came() or scope.own_evidence or disk_trouble(self._run_dir.path) is None:
            return
        piece = start_failure(
            "No space left on device: no slot can be started in the run directory", attempt=scope.plan.attempt
        )
        scope.add_own_evidence(piece)

    def _report_wrapper_error(self) -> None:
        """Adds the error of a wrapper that could not start all of its ranks, if no rank failed."""
        error = self._scope.slot_states.wrapper_error()
        if error is None or self._scope.own_evidence:
            return
        case = self.case()
        begun = len({r.rank for r in case.ranks})
        failed = any(r.state == "ended" and (r.signal is not None or r.exit_code) for r in case.ranks)
        if failed or case.world_size is None or begun >= case.world_size:
            return
        piece = start_failure(error, attempt=self._scope.plan.attempt)
        # The job may write to the file.
        self._scope.add_own_evidence(msgspec.structs.replace(piece, trust="job"))


class RequestWatch:
    """Applies user requests to one attempt."""

    def __init__(
        self,
        scope: AttemptScope,
        *,
        attempt_end: AttemptEnd,
        run_dir: RunDir,
        control: Control,
        events: EventLog,
        outside: ExternalSuspension,
        success: SuccessWatch,
        window: SettleWindow,
        started: int,
    ) -> None:
        self._scope = scope
        self._attempt_end = attempt_end
        self._run_dir = run_dir
        self._control = control
        self._events = events
        self._outside = outside
        self._success = success
        self._window = window
        self._started = started

    def look(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        """Checks all user requests once; ``bad`` are the ends that count as failures."""
        self.look_for_cancel()
        if not self._attempt_end.open or self._success.reached:
            return
        hold = read_suspension(self._run_dir.path, initially=self._scope.spec.suspend)
        if hold.stops(self._started, slots, ranks, bad=bad):
            self._attempt_end.suspended = hold.text
            self._attempt_end.stop(hold.text)
            return
        self._check_resize(slots, ranks, bad)

    def check_external_suspension(
        self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd], *, last: bool
    ) -> None:
        """Checks for a suspension in the cluster; ``last``: no later check follows."""
        if self._attempt_end.decided or self._success.reached:
            return
        found = self._outside.began(slots, ranks, bad=bad, last=last)
        if found is not None:
            self._attempt_end.suspended = found.text
            self._window.close()
            self._attempt_end.stop(found.text)

    def look_for_cancel(self) -> None:
        """Stops all slots if the run is canceled."""
        for number in self._control.take_signals():
            self._events.say("signal", f"signal {number}", at=time.time_ns(), signal=number)
        if self._attempt_end.cancelled is not None:
            return
        request = read_cancel(self._run_dir.path)
        if request is not None:
            self._attempt_end.cancel(request.text, at=request.at or None)
        elif self._control.cancelled is not None:
            text = f"cancelled: {self._control.cancelled}".rstrip(": ")
            self._attempt_end.cancel(text, at=self._control.cancelled_at)

    def _check_resize(self, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], bad: frozenset[BadEnd]) -> None:
        """Resizes in place if possible; otherwise stops the attempt."""
        members = self._scope.members
        request = unmet(self._run_dir, members.sizes)
        if request is None or not requested_before_end(request.at, slots, ranks, bad=bad):
            return
        if members.takes(request):
            members.begin(request, now=time.time_ns())
            self._scope.apply_membership()
        else:
            self._attempt_end.resized = request
            attempt = self._scope.plan.attempt
            self._events.say("resize", request.text, at=time.time_ns(), attempt=attempt, nodes=request.nodes)
            self._attempt_end.stop(f"another size: {request.text}")
