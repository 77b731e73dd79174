"""All workloads of one attempt looked at together, where each role may have one: whether somebody took one away, whether one is held back.

Only looks. What cannot be seen is an error, never an answer.
"""

from __future__ import annotations

from rankfall.backends.cluster.held import held_back
from rankfall.backends.plan import ClusterPlan
from rankfall.backends.protocol import HeldBack
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.resources import WORKLOADS


async def one_deleted(kube: Kube, place: ClusterPlan, *, uid: str) -> str | None:
    """Name of a workload that somebody deleted; None while all are there.

    Args:
        kube: an open client.
        place: of the attempt.
        uid: of the workload that owns the others: another one of its name is not it.

    Raises:
        KubeError: they cannot be seen now.
    """
    for name in place.workloads:
        try:
            found = await kube.get(WORKLOADS[place.backend], name, namespace=place.namespace)
        except ObjectNotFound:
            return name
        meta = found.get("metadata", {})
        if (name == place.object and meta.get("uid") != uid) or meta.get("deletionTimestamp"):
            return name
    return None


async def held_together(kube: Kube, place: ClusterPlan, *, uid: str) -> HeldBack:
    """What the workloads say of themselves. With several roles a queue may take the room of one of them: the gang is held back then.

    Args:
        kube: an open client.
        place: of the attempt.
        uid: of the workload that owns the others.

    Raises:
        KubeError: they cannot be seen now.
    """
    answer = HeldBack(state="free")
    for name in place.workloads:
        try:
            found = await kube.get(WORKLOADS[place.backend], name, namespace=place.namespace)
        except ObjectNotFound:
            return HeldBack(state="gone")
        mine = uid if name == place.object else None
        one = held_back({**found, "kind": WORKLOADS[place.backend].kind}, uid=mine)
        if one.state == "gone":
            return one
        answer = one if one.state == "held" else answer
    return answer
