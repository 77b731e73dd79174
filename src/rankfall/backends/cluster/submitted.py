"""What is known of an attempt without asking its cluster: where it was planned, its run directory, and the mark of its launch.

The mark is set when all objects are there, and bears the UID of the workload: from then on nothing is created for the attempt, and no other
object of that name is taken for its own.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.model import InfrastructureError, decoding
from rankfall.observe.cluster.places import pods_folder
from rankfall.store import RunDir
from rankfall.store.fs import make_folder, write_file
from rankfall.store.home import replace_file


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
