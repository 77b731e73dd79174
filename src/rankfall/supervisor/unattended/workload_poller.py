"""Polls the workload and the pods of one start of a gang, and derives whether it is over and the run's state.

A start is over when the workload has a terminal condition, began another start, is suspended, or is gone;
an API that does not answer is no state. Pods come from the journal, or from the API where nobody followed
the start.
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

#: Between two looks at the API, seconds.
POLL_INTERVAL_S: Final = 2.0
# How long after a start's end the logs of its pods may take, beside their grace time, once the API answers.
_STORE_S: Final = 60.0
_MAX_LISTED: Final = 8


class StartPods:
    """Pods of one start.

    Args:
        run_dir: the run.
        plan: of this start.
        workload: that made them.
        run_store: takes what could not be had.

    Attributes:
        gang: UID of the JobSet of a TrainJob whose pods alone count; empty = all do.
    """

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
        # When they are listed next after the end, and until when their logs may take then, by the monotonic clock.
        self._listed = 0.0
        self._there: set[str] | None = None
        self._until: float | None = None

    @property
    def seen(self) -> Mapping[str, PodFact]:
        """Those in the journal, by UID, as of the last :meth:`poll`."""
        return self._journal.pods

    def poll(self) -> None:
        """Take in what the journal has got since."""
        self._journal.poll()

    def now(self) -> dict[str, str]:
        """Phases by UID of those that are there now, and of those that were.

        Raises:
            KubeError: nobody followed them, and the API cannot be asked.
        """
        self.poll()
        place = self._plan.cluster
        if place is None or self.seen:
            return {uid: fact.phase for uid, fact in self.seen.items()}
        found = self._workload.pods(place.selector, gang=self.gang)
        return {uid: phase for uid, phase in found.items() if uid not in self._apart}

    def stored(self) -> bool:
        """Whether the logs of all that can still be had are stored, or have had their time: asked when the start is over."""
        clock = time.monotonic()
        if clock >= self._listed:
            self._list(clock)
        self.poll()
        if self._there is None or self._until is None:
            return False
        left = sorted(fact.name for fact in self.seen.values() if not fact.over or fact.log == "open")
        unseen = self._there - self.seen.keys()
        if not left and not unseen:
            return True
        if clock < self._until:
            return False
        words = ", ".join([*left[:_MAX_LISTED], *([f"{len(unseen)} that nobody saw"] if unseen else [])])
        self._run_store.note(
            f"attempt {self._plan.attempt}: the logs of some pods could not be had to their end: {words}"
        )
        return True

    def _list(self, clock: float) -> None:
        self._listed = clock + POLL_INTERVAL_S
        place = self._plan.cluster
        try:
            self._there = set()
            if place is not None:
                self._there = self._workload.pods(place.selector, gang=self.gang).keys() - self._apart
        except KubeError:
            # Nothing is lost by waiting for an API that does not answer.
            self._there, self._until = None, None
        else:
            self._until = self._until or clock + self._grace_s + _STORE_S


# Between two looks while nobody answers, seconds.
_AGAIN_S: Final = 5.0
_MAX_NOTE: Final = 500

How = Literal["over", "again", "held", "gone"]
"""``over``: with its workload; ``again``: another start goes on; ``held``: suspended; ``gone``: the workload is not there any more."""


# How long the watch of a workload may be behind a request that says that it is gone, seconds.
_BEHIND_S: Final = 3.0


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Which start of the workload an attempt is, as ``NativeState`` has ``start`` and ``gang``: written when it is first seen."""

    start: str
    gang: str = ""


class WorkloadPoller:
    """Looks at the workload of one start.

    Args:
        run_dir: the run.
        plan: of this start.
        workload: that starts it.
        pods: of this start.
        run_store: takes what could not be written.
        say: takes why the workload cannot be seen, in words.

    Attributes:
        seen: the workload as it was seen last; None before the first look, and when it is gone.
        how: how this start ended; None while it goes on.
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
        # When it is asked for next, by the monotonic clock.
        self._due = 0.0
        self._unanswered = ""
        # When it was first found gone, by the monotonic clock.
        self._gone_at: float | None = None
        self.seen: NativeState | None = None
        self.how: How | None = None

    @property
    def begun(self) -> bool:
        """Whether it is known which start of the workload this is: it was seen to go on, now or by an earlier process."""
        return self._started is not None

    @property
    def gang(self) -> str:
        """UID of the JobSet of a TrainJob whose pods this start has; empty while it is not known."""
        known = self._gang or (self._started.gang if self._started is not None else "")
        return known or first_gang(workload_facts(self._run, self._attempt))

    def ask(self) -> None:
        """Look at the workload, where it is time to and this start is not known to be over."""
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
                self._say(f"{self._workload.label} cannot be seen: {error.message}; it is asked again")
            return
        self._unanswered = ""
        if found is None:
            found = self._watched()
            if found is None and not self._missed():
                self._due = time.monotonic()
                return
        self.how = self._judge(found, begun=begun)
        self.seen = found

    def _watched(self) -> NativeState | None:
        """How a workload ended that is gone by now, where its watch saw that: its time to live may have removed it at once."""
        uid = self._workload.uid
        return end_of(workload_facts(self._run, self._attempt), uid) if uid else None

    def _missed(self) -> bool:
        """Whether the watch of the workload has nothing more to say: it saw it go, never saw it, or had its time."""
        clock = time.monotonic()
        self._gone_at = self._gone_at if self._gone_at is not None else clock
        fact = workload_facts(self._run, self._attempt).get(self._workload.uid)
        return fact is None or fact.gone or clock >= self._gone_at + _BEHIND_S

    def _judge(self, found: NativeState | None, *, begun: bool) -> How | None:
        """Whether this start is over, and how."""
        if found is None or (found.deleting and not found.over):
            return "gone"
        if found.gang and found.gang != (self.gang or found.gang):
            # Somebody deleted its JobSet, and Trainer made another one.
            return "again"
        if found.restarts != self._restarts:
            return "again"
        if found.phase == "going" and found.start:
            if self._started is not None and begun and self._is_another(self._started.start, found.start):
                # Under the same number it was suspended and released meanwhile.
                return "held"
            if self._started is None or (self._started.start != found.start and dated(found.start)):
                self._mark(Started(start=found.start, gang=self.gang or found.gang))
        if found.over:
            return "over"
        # Its pods may be gone already; that it had begun is then known from whoever looked before.
        return "held" if found.phase == "suspended" and (begun or self._started is not None) else None

    def _is_another(self, known: str, found: str) -> bool:
        """Whether the workload has begun another start. One that gets its date late is the same as long as its pods are there."""
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
            self._run_store.note(f"which start attempt {self._attempt} is could not be written: {error}"[:_MAX_NOTE])


def gang_of_start(run_dir: RunDir, place: ClusterPlan, *, attempt: int) -> str:
    """UID of the JobSet of a TrainJob whose pods a start has or had; empty while it is not known."""
    started = _read(pods_folder(run_dir.path, attempt) / "start.json")
    known = place.gang or (started.gang if started is not None else "")
    return known or first_gang(workload_facts(run_dir.path, attempt))


def _read(path: Path) -> Started | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Started)
    except (OSError, msgspec.DecodeError):
        return None


class RunStateUpdater:
    """Writes the run's state when it has changed.

    Args:
        run_dir: the run.
        run_store: of the run's lease.
        waits: why slots do not begin, in the platform's words.
        phases: of the pods by UID, by the API where nobody follows them; raises ``KubeError``.
    """

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
        """Write the state as it is.

        Args:
            state: of the workload.
            slots: fact sheets of the attempt.
            ranks: as slots.
            begun: the workload was seen to go on before.
            fed: somebody follows the pods, so the sheets tell.
            now: nanoseconds since the epoch.
        """
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
            return "suspended", hold.text if hold.suspended else None
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
