"""How one attempt ends: what was decided or wished about that, the stop that follows from it, and the diagnosis in the end.

What was decided first stands: a stop has one reason, and a verdict that is stored is not made again. Decides nothing itself: falls, wishes
and deadlines are seen elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import msgspec

from rankfall.backends.protocol import Backend
from rankfall.diagnose import stopped_by_wish
from rankfall.model import Case, Diagnosis
from rankfall.observe.strategies import diagnose_by
from rankfall.store import RunDir
from rankfall.store.incomplete import disk_trouble
from rankfall.store.resizes import ResizeRequest
from rankfall.supervise.attempts import tell_verdict
from rankfall.supervise.events import EventLog
from rankfall.supervise.followed import FOLLOWED_S
from rankfall.supervise.leaving import slots_text
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.resizing import resized_diagnosis
from rankfall.supervise.scene import Scene
from rankfall.supervise.settle import SettleWindow
from rankfall.supervise.starting import WAITS, start_failure
from rankfall.supervise.stopping import DEAF_S, Stopping
from rankfall.supervise.success import SuccessWatch

# How long slots may take to stop before the verdict is told without waiting for their last words.
_PATIENCE_S: Final = 0.7
# Between two reports of what a stop waits for.
_WAIT_S: Final = 5.0
_MAX_NODES: Final = 4
_MAX_LAST_LOOKS: Final = 100_000


class Ending:
    """The end of one attempt.

    Args:
        scene: what is known of the attempt.
        run_dir: the run.
        backend: ends its slots.
        ledger: takes verdicts.
        events: for viewers.
        success: whether the job is done.
        window: whether a fall is being looked at.

    Attributes:
        verdict: that was reached before all slots have ended; None = none was.
        cancelled: who cancelled the run, in words; None = nobody.
        suspended: who suspended it, likewise.
        resized: the wish for another size that it is stopped for.
    """

    def __init__(
        self,
        scene: Scene,
        *,
        run_dir: RunDir,
        backend: Backend,
        ledger: Ledger,
        events: EventLog,
        success: SuccessWatch,
        window: SettleWindow,
    ) -> None:
        self.verdict: Diagnosis | None = None
        self.cancelled: str | None = None
        self.suspended: str | None = None
        self.resized: ResizeRequest | None = None
        self._scene = scene
        self._run_dir = run_dir
        self._backend = backend
        self._ledger = ledger
        self._events = events
        self._success = success
        self._window = window
        self._stopping: Stopping | None = None
        self._said_early = False
        self._wait_due = 0.0

    @property
    def stopping(self) -> bool:
        """Whether the slots are being stopped."""
        return self._stopping is not None

    @property
    def decided(self) -> bool:
        """Whether it is decided that the attempt ends."""
        return self.stopping or self.verdict is not None

    @property
    def open(self) -> bool:
        """Whether neither that is decided nor a fall is being looked at."""
        return not self.decided and self._window.opened is None

    def case(self, *, hung: bool = False) -> Case:
        """Everything that is known by now, for a diagnosis."""
        return self._scene.case(cancelled=self.cancelled, done=self._success.reached, hung=hung)

    def stop(self, reason: str) -> None:
        """Stop all slots; the first reason stands."""
        if self._stopping is not None:
            return
        if self._scene.spec.elastic:
            self._scene.members.give_up_joining()
            self._scene.follow_members()
        plan = self._scene.plan
        self._events.say("stopping", f"stopping: {reason}", at=time.time_ns(), attempt=plan.attempt)
        grace = self._scene.spec.policies.grace_s
        self._stopping = Stopping(
            self._backend,
            plan,
            grace=grace,
            reason=reason,
            now=time.monotonic(),
            followed=lambda: self._scene.followed,
        )
        self._scene.beginning.over = True

    def step(self, running: Collection[int], *, clock: float) -> None:
        """Go on with the stop, while these slots run; monotonic seconds. Does nothing where none was begun."""
        if self._stopping is not None:
            self._stopping.step(running, now=clock)
            took = clock - self._stopping.began
            self._say_early(took)
            if running and took >= _PATIENCE_S and clock >= self._wait_due:
                self._wait_due = clock + _WAIT_S
                self._scene.wait(*self._waits_for(running, took), now=time.time_ns())

    def settle(self, found: Diagnosis, *, reason: str) -> None:
        """Store a verdict before the stop: what a supervisor that takes over would never see again is the standing still itself."""
        self.verdict = found
        self._scene.keeper.store(force=True)
        self._ledger.add_verdict(self._scene.plan.attempt, found)
        self.stop(reason)

    def so_far(self) -> Diagnosis:
        """The diagnosis of a failure that is being looked at, as if the slots that still run had been stopped."""
        return diagnose_by(self._scene.plan.strategy, msgspec.structs.replace(self.case(), ended=True))

    def conclude(self) -> Diagnosis:
        """All slots have ended: take in their last words and say how the attempt ended."""
        self._blame_the_disk()
        self._end_lost()
        self._scene.observer.hurry()
        for _ in range(_MAX_LAST_LOOKS):
            delta = self._scene.look()
            if not delta.bytes and not delta.changed and not delta.behind:
                break
        found = self._diagnosis(msgspec.structs.replace(self.case(), ended=True))
        self._scene.tell_troubles()
        self._scene.keeper.store(force=True)
        return found

    def _waits_for(self, running: Collection[int], took: float) -> tuple[str, str]:
        """What a stop waits for: its kind, and a text for people."""
        if self._stopping is None or not self._stopping.asked:
            return "logs", f"the stop waits until the logs of all containers are open, at most {FOLLOWED_S:g} s"
        nodes = sorted({s.node for s in self._scene.slots() if s.slot in running and s.node})
        where = f" on {', '.join(nodes[:_MAX_NODES])}" if nodes else ""
        grace = self._scene.spec.policies.grace_s
        if took < grace + DEAF_S:
            return "ends", f"waits for the end of {slots_text(running)}{where}, at most {grace:g} s from SIGTERM on"
        what = "their wrappers" if self._scene.plan.cluster is None else "what the platform says of their nodes"
        return "ends", f"{slots_text(running)}{where}: no end was reported; waits for {what}"

    def report(self, found: Diagnosis) -> None:
        """Store and report the verdict on an attempt that failed, before what only completes its record is waited for."""
        if found.verdict.state == "failed":
            attempt = self._scene.plan.attempt
            version = self._ledger.add_verdict(attempt, found)
            verdict = msgspec.structs.replace(found.verdict, version=version)
            tell_verdict(self._events, verdict, attempt=attempt)

    def _say_early(self, took: float) -> None:
        """The verdict is not kept waiting by slots that take their time to stop; what they still say makes a new version."""
        if self._said_early or self.cancelled or self.verdict or self._window.opened is None:
            return
        if took >= _PATIENCE_S:
            self._said_early = True
            self._scene.keeper.store(force=True)
            self._ledger.add_verdict(self._scene.plan.attempt, self.so_far())

    def _diagnosis(self, case: Case) -> Diagnosis:
        plan = self._scene.plan
        if self.suspended is not None:
            return stopped_by_wish(
                self.suspended,
                how="suspended",
                run=self._run_dir.id,
                attempt=plan.attempt,
                role=self._scene.spec.one_role,
            )
        if self.resized is not None:
            return resized_diagnosis(self.resized, run=self._run_dir.id, attempt=plan.attempt)
        found = self.verdict or diagnose_by(plan.strategy, case)
        cause = found.verdict.cause
        if found.verdict.state == "failed" and (cause.confidence != "proven" or cause.slug in WAITS):
            # Pods that a person deleted fall like others. Asked only where no cause of their own is proven.
            taken = self._backend.withdrawn(plan)
            if taken is not None:
                found = diagnose_by(plan.strategy, msgspec.structs.replace(case, cancelled=taken))
        return found

    def _end_lost(self) -> None:
        """A slot whose wrapper is gone may have left processes behind."""
        lost = [s.slot for s in self._scene.slots() if s.state == "lost"]
        if lost and self._backend.end(self._scene.plan, lost, grace=self._scene.spec.policies.grace_s):
            slots = ", ".join(map(str, lost))
            self._events.say("gap", f"ended what slot {slots} left behind", at=time.time_ns(), slots=lost)

    def _blame_the_disk(self) -> None:
        """A wrapper that could not come up where nothing can be written has a reason."""
        scene = self._scene
        if not scene.sheets.never_came() or scene.own_evidence or disk_trouble(self._run_dir.path) is None:
            return
        piece = start_failure(
            "No space left on device: no slot can be started in the run directory", attempt=scene.plan.attempt
        )
        scene.witness(piece)
