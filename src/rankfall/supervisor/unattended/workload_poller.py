"""Polls the workload and pods of one gang start, and derives its end.

An unreachable API is no state. Pods come from the journal, else from the API.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.kube.errors import KubeError
from rankfall.model import RankFacts, RunState, SlotFacts, StoreError, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.workload_state import NativeState, dated, end_of, first_gang, same_start, workload_facts
from rankfall.rundir.layout import pods_folder, replace_file
from rankfall.rundir.lease import make_folder
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import read_suspension

if TYPE_CHECKING:
    from rankfall.backends.kubernetes.workload import Workload

#: Seconds between polls of the API.
POLL_INTERVAL_S: Final = 2.0
# Seconds for pod logs after the start's end and grace time.
_STORE_S: Final = 60.0
_MAX_LISTED: Final = 8


class StartPods:
    """Pods of one start; ``gang`` limits them to a JobSet's UID, or is empty."""

    def __init__(self, run_dir: RunDir, plan: Plan, *, workload: Workload, run_store: BestEffortStore) -> None:
        self.gang = plan.cluster.gang if plan.cluster else ""
        self._plan = plan
        self._workload = workload
        self._run_store = run_store
        self._grace_s = run_dir.spec.policies.grace_s
        self._journal = JournalReader(journal_path(run_dir.path, plan.attempt))
        self._apart = {
            uid
            for number in (plan.cluster.apart if plan.cluster else ())
            for uid in JournalReader.read(journal_path(run_dir.path, number))
        }
        # Next listing after the end, and deadline for logs; monotonic.
        self._listed = 0.0
        self._there: set[str] | None = None
        self._until: float | None = None

    @property
    def seen(self) -> Mapping[str, PodFact]:
        """Pods in the journal by UID, as of the last :meth:`poll`."""
        return self._journal.pods

    def poll(self) -> None:
        """Reads new journal entries."""
        self._journal.poll()

    def now(self) -> dict[str, str]:
        """Returns the phases of present and past pods by UID.

        Raises:
            KubeError: Unfollowed pods, and the API fails.
        """
        self.poll()
        place = self._plan.cluster
        if place is None or self.seen:
            return {uid: fact.phase for uid, fact in self.seen.items()}
        found = self._workload.pods(place.selector, gang=self.gang)
        return {uid: phase for uid, phase in found.items() if uid not in self._apart}

    def stored(self, *, listed: bool) -> bool:
        """True if all logs are stored or timed out; call after the end.

        ``listed``: the collector knows all pods, also deleted ones.
        """
        clock = time.monotonic()
        if clock >= self._listed:
            self._list(clock)
        self.poll()
        if self._there is None or self._until is None:
            return False
        left = sorted(fact.name for fact in self.seen.values() if not fact.over or fact.log == "open")
        unseen = self._there - self.seen.keys()
        if not left and not unseen and listed:
            return True
        if clock < self._until:
            return False
        if not left and not unseen:
            return True
        words = ", ".join([*left[:_MAX_LISTED], *([f"{len(unseen)} never listed"] if unseen else [])])
        self._run_store.note(
            f"attempt {self._plan.attempt}: the logs of some pods could not be read completely: {words}"
        )
        return True

    def _list(self, clock: float) -> None:
        self._listed = clock + POLL_INTERVAL_S
        place = self._plan.cluster
        try:
            self._there = set()
            if place is not None:
                number = next((fact.execution for fact in self.seen.values() if fact.execution is not None), None)
                found = self._workload.pods(place.selector, gang=self.gang, execution=number)
                self._there = found.keys() - self._apart
        except KubeError:
            # Waiting for an unreachable API loses nothing.
            self._there, self._until = None, None
        else:
            self._until = self._until or clock + self._grace_s + _STORE_S


# Seconds between retries without answer.
_AGAIN_S: Final = 5.0
_MAX_NOTE: Final = 500

How = Literal["over", "again", "held", "gone"]
"""``over``: the workload ended too; ``again``: another start continues; ``held``: suspended; ``gone``: no workload
exists.
"""


# Seconds that a watch may lag behind a request.
_BEHIND_S: Final = 3.0


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The workload start of an attempt, with ``start`` and ``gang`` of ``NativeState``; written on first sight."""

    start: str
    gang: str = ""


class WorkloadPoller:
    """Polls the workload of one start.

    Attributes:
        seen: Last state, or None.
        how: End of this start; None while it continues.
    """

    def __init__(
        self,
        run_dir: RunDir,
        plan: Plan,
        *,
        workload: Workload,
        pods: StartPods,
        run_store: BestEffortStore,
        say: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._run = run_dir.path
        self._attempt = plan.attempt
        self._gang = plan.cluster.gang if plan.cluster else ""
        self._restarts = plan.cluster.restart if plan.cluster else 0
        self._workload = workload
        self._pods = pods
        self._run_store = run_store
        self._say = say
        self._file = pods_folder(run_dir.path, plan.attempt) / "start.json"
        self._started = _read(self._file)
        # Next query, monotonic.
        self._due = 0.0
        self._unanswered = ""
        # First found gone, monotonic.
        self._gone_at: float | None = None
        self.seen: NativeState | None = None
        self.how: How | None = None

    @property
    def begun(self) -> bool:
        """True if this or an earlier process observed the workload running, so that its start is identified."""
        return self._started is not None

    @property
    def gang(self) -> str:
        """UID of the TrainJob's JobSet whose pods this start has; empty while unknown."""
        known = self._gang or (self._started.gang if self._started is not None else "")
        return known or first_gang(workload_facts(self._run, self._attempt))

    def ask(self) -> None:
        """Queries the workload if due and this start is not over."""
        if self.how is not None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + POLL_INTERVAL_S
        self._pods.gang = self.gang
        try:
            found = self._workload.look()
            begun = found is None or found.over or bool(self._pods.now())
        except KubeError as error:
            self._due = time.monotonic() + _AGAIN_S
            if error.message != self._unanswered:
                self._unanswered = error.message
                self._say(f"cannot read {self._workload.label}: {error.message}; trying again")
            return
        self._unanswered = ""
        self._run_dir.mark_seen()
        if found is None:
            found = self._watched()
            if found is None and not self._missed():
                self._due = time.monotonic()
                return
        self.how = self._judge(found, begun=begun)
        self.seen = found

    def _watched(self) -> NativeState | None:
        """Workload's end that the watch recorded, or None.

        Its time to live may have removed the workload before a poll.
        """
        uid = self._workload.uid
        return end_of(workload_facts(self._run, self._attempt), uid) if uid else None

    def _missed(self) -> bool:
        """True if the watch will record no more of the workload."""
        clock = time.monotonic()
        self._gone_at = self._gone_at if self._gone_at is not None else clock
        fact = workload_facts(self._run, self._attempt).get(self._workload.uid)
        return fact is None or fact.gone or clock >= self._gone_at + _BEHIND_S

    def _judge(self, found: NativeState | None, *, begun: bool) -> How | None:
        if found is None or (found.deleting and not found.over):
            return "gone"
        if found.gang and found.gang != (self.gang or found.gang):
            # Trainer recreated the deleted JobSet.
            return "again"
        if found.restarts != self._restarts:
            return "again"
        if found.phase == "going" and found.start:
            if self._started is not None and begun and self._is_another(self._started.start, found.start):
                # Suspended and released meanwhile.
                return "held"
            if self._started is None or (self._started.start != found.start and dated(found.start)):
                self._mark(Started(start=found.start, gang=self.gang or found.gang))
        if found.over:
            return "over"
        # Its pods may not exist any more; an earlier process may have recorded the start.
        return "held" if found.phase == "suspended" and (begun or self._started is not None) else None

    def _is_another(self, known: str, found: str) -> bool:
        """True for another start of the gang; a start whose date became known late is the same while its pods exist."""
        if not same_start(known, found):
            return True
        pods = self._pods.seen.values()
        return dated(found) and not dated(known) and bool(pods) and all(fact.gone for fact in pods)

    def _mark(self, started: Started) -> None:
        self._started = started
        try:
            make_folder(self._file.parent)
            replace_file(self._file, msgspec.json.encode(started))
        except (OSError, StoreError) as error:
            self._run_store.note(f"could not store the pods' start of attempt {self._attempt}: {error}"[:_MAX_NOTE])


def gang_of_start(run_dir: RunDir, place: ClusterPlan, *, attempt: int) -> str:
    """Returns the UID of a start's JobSet, or empty."""
    started = _read(pods_folder(run_dir.path, attempt) / "start.json")
    known = place.gang or (started.gang if started is not None else "")
    return known or first_gang(workload_facts(run_dir.path, attempt))


def _read(path: Path) -> Started | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Started)
    except (OSError, msgspec.DecodeError):
        return None


class RunStateUpdater:
    """Writes the run's state when it changes; ``phases`` raises ``KubeError``."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        run_store: BestEffortStore,
        waits: Callable[[], str | None],
        phases: Callable[[], dict[str, str]],
    ) -> None:
        self._run_dir = run_dir
        self._spec = run_dir.spec
        self._run_store = run_store
        self._waits = waits
        self._phases = phases
        self._written: tuple[RunState, str | None] | None = None

    def show(
        self,
        state: NativeState,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        *,
        begun: bool,
        fed: bool,
        now: int,
    ) -> None:
        """Writes the current state; ``fed``: a process follows the pods."""
        current = self._state(state, slots, ranks, begun=begun, fed=fed)
        if current != self._written:
            self._written = current
            self._run_store.set_run(current[0], reason=current[1], at=now)

    def _state(
        self, state: NativeState, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, begun: bool, fed: bool
    ) -> tuple[RunState, str | None]:
        if state.phase == "suspended":
            queue = self._spec.kubernetes.queue
            if queue is not None and not begun:
                return "queued", f"waits for queue {queue}"
            hold = read_suspension(self._run_dir.path, initially=self._spec.suspend)
            since = f" since {state.at}" if state.at else ""
            return "suspended", hold.text if hold.suspended else f"suspended in the cluster{since}"
        most = self._spec.policies.max_restarts
        restarted = f"attempt {state.restarts + 1} of {most + 1}" if state.restarts else None
        if ranks or any(facts.state in {"running", "ended"} for facts in slots):
            return "running", restarted
        if not fed and any(phase in {"Running", "Succeeded"} for phase in self._phases_now().values()):
            return "running", restarted
        return ("restarting" if restarted else "starting"), restarted or self._waits()

    def _phases_now(self) -> dict[str, str]:
        try:
            return self._phases()
        except KubeError:
            return {}
