"""Looks at the workload of one start of a gang, and judges whether this start is over and how.

It is over when the workload says so by its terminal condition, when the workload has begun another one, stands suspended, or is gone. That the
workload cannot be seen is no state of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.kube.errors import KubeError
from rankfall.model import StoreError, decoding
from rankfall.observe.cluster.native_state import NativeState, dated, same_start
from rankfall.observe.cluster.places import pods_folder
from rankfall.observe.cluster.workload_facts import end_of, first_gang, workload_facts
from rankfall.store import RunDir
from rankfall.store.fs import make_folder
from rankfall.store.home import replace_file
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.native_pods import LOOK_S, StartPods

if TYPE_CHECKING:
    # It brings the client along.
    from rankfall.backends.cluster.workload import Workload

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


class WorkloadLook:
    """Looks at the workload of one start.

    Args:
        run_dir: the run.
        plan: of this start.
        workload: that starts it.
        pods: of this start.
        ledger: takes what could not be written.
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
        ledger: Ledger,
        say: Callable[[str], None],
    ) -> None:
        self._run = run_dir.path
        self._attempt = plan.attempt
        self._gang = plan.cluster.gang if plan.cluster else ""
        self._restarts = plan.cluster.restart if plan.cluster else 0
        self._workload = workload
        self._pods = pods
        self._ledger = ledger
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
        self._due = time.monotonic() + LOOK_S
        self._pods.gang = self.gang
        try:
            found = self._workload.look()
            begun = found is None or found.over or bool(self._pods.now())
        except KubeError as error:
            self._due = time.monotonic() + _AGAIN_S
            if error.message != self._unanswered:
                self._unanswered = error.message
                self._say(f"{self._workload.shown} cannot be seen: {error.message}; it is asked again")
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
            self._ledger.note(f"which start attempt {self._attempt} is could not be written: {error}"[:_MAX_NOTE])


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
