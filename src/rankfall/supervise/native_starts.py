"""Plans of the gang starts that Kubernetes makes by itself: of the same objects, with the same names, so told apart by what their pods bear."""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.kube.labels import JOBSET_UID
from rankfall.observe.cluster.native_state import of_restart
from rankfall.store import RunDir

# Their pods bear the number of their set's restarts.
_SETS: Final = frozenset({"jobset", "trainjob"})


def first_start(plan: Plan) -> Plan:
    """A first plan that speaks of the first start of the gang alone: a set's later ones bear the same labels but for its own number."""
    place = plan.cluster
    if place is None or place.backend not in _SETS:
        return plan
    return msgspec.structs.replace(plan, cluster=msgspec.structs.replace(place, selector=of_restart(place.selector, 0)))


def next_start(plan: Plan, run_dir: RunDir, *, restarted: bool, gang: str = "") -> Plan:
    """The plan of the gang start that follows another one of the same objects.

    Args:
        plan: of the one before.
        run_dir: the run.
        restarted: its set started the gang again, and numbers its pods anew; false = it was suspended and resumed under the same number.
        gang: UID of the JobSet of a TrainJob that took the place of the one before, and counts its restarts from 0; empty = it is the same one.
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
