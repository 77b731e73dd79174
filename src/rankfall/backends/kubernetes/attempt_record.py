"""What the run directory says of an attempt: its place in a cluster, its launch mark, the pod of each slot.

Asks no cluster. The mark is written when all objects exist and holds the UID of the workload: from then on
nothing is created for the attempt, and no other object of that name is taken for its own. A slot has ended
when its container has and its final output is stored.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan, slot_plan
from rankfall.backends.protocol import Life
from rankfall.evidence.cluster.pod_evidence import PodView
from rankfall.model import InfrastructureError, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.layout import pods_folder, replace_file
from rankfall.rundir.lease import make_folder, write_file


def cluster_of(plan: Plan) -> ClusterPlan:
    """Where in a cluster the attempt lives.

    Raises:
        InfrastructureError: it lives in none.
    """
    if plan.cluster is None:
        raise InfrastructureError(
            "the plan of this attempt names no cluster", hint="it was made by another backend; rankfall doctor"
        )
    return plan.cluster


def run_of(plan: Plan) -> RunDir:
    """The run that the attempt is of."""
    # slots/attempt-N/<role>-<slot> lies in the run's directory.
    return RunDir(Path(plan.slots[0].slot_dir).parents[2])


def is_submitted(run_dir: RunDir, attempt: int) -> bool:
    """Whether an attempt's objects were all created, by this process or another one."""
    return _mark(run_dir, attempt).exists()


def submitted_uid(run_dir: RunDir, attempt: int) -> str | None:
    """UID of the workload; None where none was launched, or its mark cannot be read."""
    try:
        found = decoding.decode(_mark(run_dir, attempt).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    uid = found.get("uid") if isinstance(found, dict) else None
    return uid if isinstance(uid, str) else None


def mark_submitted(run_dir: RunDir, attempt: int, *, uid: str, workload: str) -> None:
    """Set the mark.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        uid: of the workload.
        workload: its name.

    Raises:
        OSError: it cannot be written.
    """
    path = _mark(run_dir, attempt)
    make_folder(path.parent)
    # Whole or not at all: an empty one would say that it was made and not which.
    replace_file(path, msgspec.json.encode({"uid": uid, "object": workload, "at_ns": time.time_ns()}))


def mark_cleared(run_dir: RunDir, attempt: int) -> None:
    """Write down that Rankfall itself removes the attempt's objects.

    Raises:
        OSError: it cannot be written.
    """
    path = _mark(run_dir, attempt, "cleared")
    make_folder(path.parent)
    write_file(path, b"")


def is_cleared(run_dir: RunDir, attempt: int) -> bool:
    """Whether Rankfall itself removed the attempt's objects, or has begun to."""
    return _mark(run_dir, attempt, "cleared").exists()


def _mark(run_dir: RunDir, attempt: int, name: str = "submitted") -> Path:
    return pods_folder(run_dir.path, attempt) / f"{name}.json"


# How old the journal of pods may be that a slot is told by, seconds: less than a look takes.
_FRESH_S: Final = 0.01


class SlotPods:
    """Pods of a run's attempts; each journal is read on from where it was."""

    def __init__(self) -> None:
        self._views: dict[int, PodView] = {}
        self._read_at: dict[int, float] = {}

    def of(self, plan: Plan, slot: int) -> PodFact | None:
        """The pod of this start of the slot; None while the journal has none.

        Raises:
            KeyError: the plan has no such slot.
        """
        view = self._views.get(plan.attempt)
        if view is None:
            run_dir = run_of(plan)
            view = self._views[plan.attempt] = PodView(run_dir.path, attempt=plan.attempt)
            spec = run_dir.spec
            for one in plan.slots:
                if spec.restarts_alone(one.slot):
                    view.select_start(one.slot, one.instance)
        start = slot_plan(plan, slot).instance
        if start:
            view.select_start(slot, start)
            self._read_at.pop(plan.attempt, None)
        self._refreshed(plan.attempt, view)
        return view.pods().get(slot)

    def _refreshed(self, attempt: int, view: PodView) -> None:
        """Take in what is new; once for all slots that are asked for in one go."""
        now = time.monotonic()
        if now - self._read_at.get(attempt, -_FRESH_S) >= _FRESH_S:
            view.poll()
            self._read_at[attempt] = now


def life_of(fact: PodFact | None) -> Life:
    """How a slot stands whose pod this is; None = it has none yet."""
    if fact is None:
        return "absent"
    if fact.main is not None and fact.main.state == "terminated":
        return "ended" if fact.log != "open" else "running"
    if fact.overdue and not fact.over:
        return "dead"
    if fact.gone or fact.phase == "Failed":
        return "dead" if fact.log != "open" or fact.main is None else "running"
    return "running" if fact.main is not None and fact.main.state == "running" else "starting"
