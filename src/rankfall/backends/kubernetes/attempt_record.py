"""Facts of an attempt in the run directory: place, launch mark, pod of each slot.

The mark holds the workload's UID and is written when all objects exist.
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
    """Attempt's place in a cluster.

    Raises:
        InfrastructureError: The plan names no cluster.
    """
    if plan.cluster is None:
        raise InfrastructureError(
            "the plan of this attempt names no cluster",
            hint="check with rankfall doctor; another backend created the attempt",
        )
    return plan.cluster


def run_of(plan: Plan) -> RunDir:
    """Run of the attempt."""
    return RunDir(Path(plan.slots[0].slot_dir).parents[2])


def is_submitted(run_dir: RunDir, attempt: int) -> bool:
    """True if any process created all of the attempt's objects."""
    return _mark(run_dir, attempt).exists()


def submitted_uid(run_dir: RunDir, attempt: int) -> str | None:
    """Workload's UID; None if not launched or unreadable."""
    try:
        found = decoding.decode(_mark(run_dir, attempt).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    uid = found.get("uid") if isinstance(found, dict) else None
    return uid if isinstance(uid, str) else None


def mark_submitted(run_dir: RunDir, attempt: int, *, uid: str, workload: str) -> None:
    """Writes the launch mark.

    Raises:
        OSError: The mark cannot be written.
    """
    path = _mark(run_dir, attempt)
    make_folder(path.parent)
    # Atomic: an empty mark would prove a launch without its UID.
    replace_file(path, msgspec.json.encode({"uid": uid, "object": workload, "at_ns": time.time_ns()}))


def mark_cleared(run_dir: RunDir, attempt: int) -> None:
    """Records that Rankfall itself removes the attempt's objects.

    Raises:
        OSError: The mark cannot be written.
    """
    path = _mark(run_dir, attempt, "cleared")
    make_folder(path.parent)
    write_file(path, b"")


def is_cleared(run_dir: RunDir, attempt: int) -> bool:
    """True if Rankfall removed the attempt's objects, or started to."""
    return _mark(run_dir, attempt, "cleared").exists()


def _mark(run_dir: RunDir, attempt: int, name: str = "submitted") -> Path:
    return pods_folder(run_dir.path, attempt) / f"{name}.json"


# Seconds of journal validity; less than one poll.
_FRESH_S: Final = 0.01


class SlotPods:
    """Pods of a run's attempts; each journal is read incrementally."""

    def __init__(self) -> None:
        self._views: dict[int, PodView] = {}
        self._read_at: dict[int, float] = {}

    def of(self, plan: Plan, slot: int) -> PodFact | None:
        """Pod of this start of the slot, or None.

        Raises:
            KeyError: No such slot.
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
        now = time.monotonic()
        if now - self._read_at.get(attempt, -_FRESH_S) >= _FRESH_S:
            view.poll()
            self._read_at[attempt] = now


def life_of(fact: PodFact | None) -> Life:
    """Slot's state from its pod; None = no pod yet."""
    if fact is None:
        return "absent"
    if fact.main is not None and fact.main.state == "terminated":
        return "ended" if fact.log != "open" else "running"
    if fact.overdue and not fact.over:
        return "dead"
    if fact.gone or fact.phase == "Failed":
        return "dead" if fact.log != "open" or fact.main is None else "running"
    return "running" if fact.main is not None and fact.main.state == "running" else "starting"
