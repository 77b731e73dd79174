"""All workloads of one attempt looked at together, where each role may have one: whether somebody took one away, whether one is held back.

Only looks. What cannot be seen is an error, never an answer.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from rankfall.backends.cluster.held import held_back
from rankfall.backends.cluster.ownership import deleting, finished, uid_of
from rankfall.backends.plan import ClusterPlan
from rankfall.backends.protocol import HeldBack
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.resources import JOBSETS, WORKLOADS
from rankfall.observe.cluster.journal import JournalReader, journal_path
from rankfall.observe.cluster.podfacts import stamp_ns
from rankfall.observe.cluster.workload_facts import first_gang, workload_facts
from rankfall.store import RunDir

# How long the watch of a workload may be behind a request for it, seconds; and how far a node's clock may be off that an end is dated by.
_BEHIND_S: Final = 3.0
_STEP_S: Final = 0.05
_CLOCK_S: Final = 120
_NS: Final = 1_000_000_000


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is deleted.

    Attributes:
        shown: as ``job train-33196f-a1``.
        expired: it is gone altogether, and its own time to live may have removed it.
    """

    shown: str
    expired: bool = False


async def one_deleted(kube: Kube, place: ClusterPlan, *, uid: str, gang: str, expires: bool) -> Deleted | None:
    """A workload that is deleted or on its way out; None while all are there.

    Args:
        kube: an open client.
        place: of the attempt.
        uid: of the workload that owns the others: another one of its name is not it.
        gang: UID of the JobSet whose pods were the attempt's, of a TrainJob; empty = it is not known.
        expires: a finished one is removed by its own time to live, which is no deletion by somebody.

    Raises:
        KubeError: they cannot be seen now.
    """
    for name in place.workloads:
        shown = f"{place.backend} {name}"
        try:
            found = await kube.get(WORKLOADS[place.backend], name, namespace=place.namespace)
        except ObjectNotFound:
            return Deleted(shown=shown, expired=expires)
        if name == place.object and uid_of(found) != uid:
            return Deleted(shown=shown, expired=expires)
        if deleting(found) and not (expires and finished(found)):
            return Deleted(shown=shown)
    if gang:
        sets = await kube.list(JOBSETS, namespace=place.namespace, fields=f"metadata.name={place.object}")
        if not any(uid_of(item) == gang and not deleting(item) for item in sets.items):
            return Deleted(shown=f"jobset {place.object} of {place.backend} {place.object}")
    return None


def gang_of(run_dir: RunDir, attempt: int) -> str:
    """UID of the JobSet whose pods were this attempt's, of a TrainJob; empty where it is not known."""
    return first_gang(workload_facts(run_dir.path, attempt))


def how_expired(run_dir: RunDir, attempt: int, *, uid: str, shown: str, surely: bool) -> str | None:
    """What is said of a workload with a time to live that is gone; None where that removed it.

    Its watch saw the last state of it. Where nobody watched, only a time to live that cannot be over yet proves a deletion by somebody.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        uid: of the workload.
        shown: names it.
        surely: None too where it may have been removed by its time to live.
    """
    until = time.monotonic() + (0.0 if surely else _BEHIND_S)
    while True:
        fact = workload_facts(run_dir.path, attempt).get(uid)
        if fact is None or fact.gone or fact.state.over or time.monotonic() >= until:
            break
        time.sleep(_STEP_S)
    if fact is not None and fact.state.over:
        return None
    ttl = run_dir.spec.ttl_s or 0
    pods = JournalReader.read(journal_path(run_dir.path, attempt)).values()
    ended = max((stamp_ns(pod.main.finished) or 0 for pod in pods if pod.main is not None), default=0)
    # It ends after the last of its pods.
    lasts = ended > 0 and time.time_ns() < ended + (ttl - _CLOCK_S) * _NS
    if lasts or (fact is not None and fact.gone and not fact.vanished):
        return f"{shown} was deleted in the cluster"
    if surely:
        return None
    return (
        f"{shown} is not there any more: somebody deleted it, or it had ended and its time to live of {ttl} s was over"
    )


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
