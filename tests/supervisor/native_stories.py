"""A cluster without a cluster: the workload's looks are told by a test, and its pods are what a test writes into the journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan
from rankfall.kube.errors import Unreachable
from rankfall.model import JobSpec, Outcome
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.cluster.workload_state import NativeState
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import Event
from rankfall.supervisor.supervise import supervise

CHANNEL = "t0k3n"
AT = "2026-11-21T19:00:00Z"
GOING = NativeState(phase="going", start="0/")
HELD = NativeState(phase="suspended")
AGAIN = NativeState(phase="going", start="1/", restarts=1)
DONE = NativeState(phase="succeeded", start="0/", reason="AllJobsCompleted", at=AT)
FELL = NativeState(phase="failed", start="0/", reason="FailedJobs", message="no more", at=AT)
AWAY = Unreachable("no answer")

Snapshot = NativeState | Exception | Callable[[], NativeState | None] | None


class Workload:
    """Answers in turn; the last answer stands."""

    def __init__(self, *looks: Snapshot) -> None:
        self.looks = list(looks)
        self.label = "jobset train-a1"
        self.selector = "a=b"
        self.uid = "w1"
        self.there: dict[str, str] = {}
        self.asked: list[str] = []
        self.removed = "gone"

    def look(self) -> NativeState | None:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(found, Exception):
            raise found
        return found() if callable(found) else found

    def pods(self, selector: str, *, gang: str = "", execution: int | None = None) -> dict[str, str]:
        assert selector.startswith("a=b")
        return dict(self.there)

    def hold(self, *, suspend: bool) -> bool:
        self.asked.append("suspend" if suspend else "resume")
        return self.looks[-1] is not None

    def remove(self, *, wait_s: float, say: Callable[[str], None]) -> str:
        assert wait_s > 0
        self.asked.append("remove")
        say("waits")
        return self.removed


class Cluster(ClusterBackend):
    """Plans and submits without asking anybody."""

    def __init__(
        self, workload: Workload, *, refusal: Exception | None = None, unplanned: Exception | None = None
    ) -> None:
        super().__init__()
        self.native = workload
        self.launched: list[int] = []
        self.cleared: list[int] = []
        self.refusal, self.unplanned = refusal, unplanned

    def plan(self, spec: JobSpec, run_dir: RunDir, attempt: int, **_: Any) -> Plan:
        if self.unplanned is not None:
            raise self.unplanned
        place = ClusterPlan(
            context="c",
            namespace="here",
            selector="a=b",
            container="main",
            token=CHANNEL,
            bases={"worker": 0},
            backend=spec.backend,
            object="train-a1",
        )
        slots = tuple(
            SlotPlan(
                slot=number,
                role="worker",
                node="",
                argv=(),
                env={},
                cwd="",
                slot_dir=str(run_dir.slot_dir(attempt, "worker", number)),
                stream_dir=str(run_dir.stream_dir(attempt, "worker", number)),
            )
            for number in range(spec.nnodes)
        )
        return Plan(attempt=attempt, launcher="exec", slots=slots, cluster=place, notes=("a note",))

    def submit(self, plan: Plan) -> tuple[int, ...]:
        if self.refusal is not None:
            raise self.refusal
        self.launched.append(plan.attempt)
        return tuple(slot.slot for slot in plan.slots)

    def workload(self, plan: Plan) -> Any:
        return self.native if self.launched or plan.attempt > 1 else None

    def sources(self, plan: Plan) -> tuple[()]:
        del plan
        return ()

    def clear(self, plan: Plan) -> None:
        self.cleared.append(plan.attempt)

    def release(self) -> None:
        self._pods._views.clear()


class Bench:
    """Unattended runs in one home."""

    def __init__(self, home: Path, *looks: Snapshot, **fields: Any) -> None:
        spec = {"command": ("x",), "nnodes": 2, "backend": "jobset", "unattended": True, "launcher": "exec"} | fields
        self.run = RunDir.create(msgspec.convert(spec, JobSpec), home=home)
        self.workload = Workload(*looks)
        self.cluster = Cluster(self.workload)
        self.events: list[Event] = []

    def pod(
        self, slot: int, *, code: int | None = None, attempt: int = 1, log: str = "complete", **fields: Any
    ) -> None:
        """One more look at the pod of a slot; without a code it runs."""
        main = ContainerFact(state="running", started=AT)
        if code is not None:
            main = ContainerFact(state="terminated", exit_code=code, started=AT, finished=AT)
        journal = JournalWriter(journal_path(self.run.path, attempt))
        fact = {
            "seen_ns": time.time_ns(),
            "name": f"p{slot}",
            "uid": f"u{attempt}{slot}",
            "slot": slot,
            "node": "n1",
            "phase": "Running",
        }
        journal.add(PodFact(main=main, log=log if code is not None else "open", **(fact | fields)))  # type: ignore[arg-type]
        journal.close()

    def record(self, *, control: Control | None = None) -> Outcome:
        return supervise(self.run, backend=self.cluster, on_event=self.events.append, control=control)

    def state(self) -> tuple[str, str | None]:
        with self.run.reader() as reader:
            row = reader.run()
        return row.state, row.reason

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]
