"""An attempt's workloads: state, suspension, external deletion, size, release and removal.

Acts on objects by UID. An unreadable object is an error, never "gone".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from rankfall.backends.kubernetes.lifecycle.errors import Say
from rankfall.backends.kubernetes.lifecycle.ownership import deleting, finished, label, suspended, uid_of
from rankfall.backends.kubernetes.lifecycle.remove import Removed, remove
from rankfall.backends.kubernetes.manifests.refusals import QUEUE_LABEL
from rankfall.backends.plan import ClusterPlan
from rankfall.backends.protocol import SuspensionState
from rankfall.collect.pods.workload_states import pods_of_gang
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, ObjectNotFound
from rankfall.kube.loop_thread import EventLoopThread
from rankfall.kube.object_fields import JOBSET_NAME
from rankfall.kube.resources import JOBS, JOBSETS, PODS, WORKLOADS
from rankfall.kube.secret import excerpt
from rankfall.model import InfrastructureError
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import stamp_ns
from rankfall.rundir.cluster.workload_state import (
    NativeState,
    first_gang,
    native_state,
    of_restart,
    with_job_of_set,
    workload_facts,
)


def suspension_state(item: dict[str, Any], *, uid: str | None) -> SuspensionState:
    """Suspension of an object; another ``uid`` means deleted, None = unknown."""
    if uid not in {None, uid_of(item)} or deleting(item):
        return SuspensionState(state="gone")
    queue = excerpt(label(item, QUEUE_LABEL))
    if finished(item) or not suspended(item):
        return SuspensionState(state="free", queue=queue)
    return SuspensionState(state="held", since=_since(item), queue=queue)


def _since(item: Mapping[str, Any]) -> int | None:
    status = item.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("type") == "Suspended" and one.get("status") == "True":
            try:
                return round(datetime.fromisoformat(str(one.get("lastTransitionTime"))).timestamp()) * 1_000_000_000
            except (ValueError, OverflowError):
                return None
    return None


# Seconds: lag of the watch, error of a clock.
_BEHIND_S: Final = 3.0
_STEP_S: Final = 0.05
_CLOCK_S: Final = 120
_NS: Final = 1_000_000_000


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted workload.

    Attributes:
        label: Name, as ``job train-33196f-a1``.
        expired: True if its time to live may explain it.
    """

    label: str
    expired: bool = False


async def deleted_workload(kube: Kube, place: ClusterPlan, *, uid: str, gang: str, expires: bool) -> Deleted | None:
    """Deleted or terminating workload; None if all exist.

    ``gang`` is the UID of a TrainJob's JobSet, ``expires`` True with a time to live.

    Raises:
        KubeError: Unreadable now.
    """
    for name in place.workloads:
        label = f"{place.backend} {name}"
        try:
            found = await kube.get(WORKLOADS[place.backend], name, namespace=place.namespace)
        except ObjectNotFound:
            return Deleted(label=label, expired=expires)
        if name == place.object and uid_of(found) != uid:
            return Deleted(label=label, expired=expires)
        if deleting(found) and not (expires and finished(found)):
            return Deleted(label=label)
    if gang:
        sets = await kube.list(JOBSETS, namespace=place.namespace, fields=f"metadata.name={place.object}")
        if not any(uid_of(item) == gang and not deleting(item) for item in sets.items):
            return Deleted(label=f"jobset {place.object} of {place.backend} {place.object}")
    return None


def gang_of(run_dir: RunDir, attempt: int) -> str:
    """UID of a TrainJob's JobSet with this attempt's pods, or empty."""
    return first_gang(workload_facts(run_dir.path, attempt))


def how_expired(run_dir: RunDir, attempt: int, *, uid: str, label: str, surely: bool) -> str | None:
    """Message about a workload that no longer exists; None if its time to live removed it.

    ``surely``: None also if the time to live may have removed it. The watch recorded the workload's last state.
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
    # The workload ends after its last pod.
    lasts = ended > 0 and time.time_ns() < ended + (ttl - _CLOCK_S) * _NS
    if lasts or (fact is not None and fact.gone and not fact.vanished):
        return f"{label} was deleted in the cluster"
    if surely:
        return None
    return f"{label} no longer exists: it was deleted, or its time to live of {ttl} s after its end has passed"


async def attempt_suspension(kube: Kube, place: ClusterPlan, *, uid: str) -> SuspensionState:
    """Suspension of the workloads; one suspended role suspends the gang.

    Raises:
        KubeError: Unreadable now.
    """
    answer = SuspensionState(state="free")
    for name in place.workloads:
        try:
            found = await kube.get(WORKLOADS[place.backend], name, namespace=place.namespace)
        except ObjectNotFound:
            return SuspensionState(state="gone")
        mine = uid if name == place.object else None
        one = suspension_state({**found, "kind": WORKLOADS[place.backend].kind}, uid=mine)
        if one.state == "gone":
            return one
        answer = one if one.state == "held" else answer
    return answer


# Each status update changes the version.
_TRIES: Final = 8


async def set_size(kube: Kube, *, name: str, namespace: str, uid: str | None, size: int) -> None:
    """Sets a Job's number of pods, unless the Job already has it.

    Raises:
        InfrastructureError: The Job changes too fast, or the server refuses.
    """
    for _ in range(_TRIES):
        try:
            found = await kube.get(JOBS, name, namespace=namespace)
        except ObjectNotFound:
            # Other code handles it.
            return
        meta, spec = found["metadata"], found.get("spec", {})
        if meta.get("uid") != uid or (spec.get("completions"), spec.get("parallelism")) == (size, size):
            return
        version = str(meta["resourceVersion"])
        body: list[dict[str, Any]] = [
            {"op": "replace", "path": "/spec/parallelism", "value": size},
            {"op": "replace", "path": "/spec/completions", "value": size},
        ]
        try:
            await kube.patch(JOBS, name, body, namespace=namespace, kind="json", resource_version=version)
        except (Conflict, ObjectNotFound):
            continue
        return
    raise InfrastructureError(
        f"Job {name} changes too often to be resized",
        hint="find the other client that writes to it: kubectl get -w",
    )


class Workload:
    """The workload of one launch.

    Attributes:
        uid: UID of the launched object.
        label: Workload name.
        selector: Label selector of its pods in all gang starts.
    """

    def __init__(self, loop_thread: EventLoopThread, *, place: ClusterPlan, uid: str) -> None:
        self._loop_thread = loop_thread
        self._place = place
        self.uid = uid
        self.label = f"{place.backend} {place.object}"
        self.selector = of_restart(place.selector, None)

    def look(self) -> NativeState | None:
        """State; None if the workload does not exist.

        Raises:
            KubeError: The workload is unreadable now.
        """
        return self._loop_thread.look(self._look)

    def pods(self, selector: str, *, gang: str = "", execution: int | None = None) -> dict[str, str]:
        """Pod phases by UID; with ``gang`` only of one JobSet, with ``execution`` only of one start of it.

        Raises:
            KubeError: Unreadable now.
        """
        return self._loop_thread.look(lambda kube: self._pods(kube, selector, gang, execution))

    def hold(self, *, suspend: bool) -> bool:
        """Suspends or releases the workload; False if it does not exist.

        Raises:
            KubeError: Refused or no answer.
        """
        return self._loop_thread.call(lambda kube: self._hold(kube, suspend=suspend))

    def remove(self, *, wait_s: float, say: Say) -> Removed:
        """Deletes the workload and waits up to ``wait_s`` seconds for it and its pods.

        Raises:
            KubeError: A permanent error: 401, 403.
        """
        place = self._place
        return self._loop_thread.call(
            lambda kube: remove(
                kube,
                resource=WORKLOADS[place.backend],
                name=place.object,
                namespace=place.namespace,
                uid=self.uid,
                pods_selector=self.selector,
                wait_s=wait_s,
                say=say,
            )
        )

    async def _look(self, kube: Kube) -> NativeState | None:
        place = self._place
        try:
            found = await kube.get(WORKLOADS[place.backend], place.object, namespace=place.namespace)
        except ObjectNotFound:
            return None
        if uid_of(found) != self.uid:
            return None
        inner = await self._inner(kube) if place.backend == "trainjob" else None
        # An object read by name lacks its kind.
        state = native_state({**found, "kind": WORKLOADS[place.backend].kind}, inner=inner)
        if state.phase != "failed" or place.backend == "job":
            return state
        return with_job_of_set(
            state, (await kube.list(JOBS, namespace=place.namespace, labels=f"{JOBSET_NAME}={place.object}")).items
        )

    async def _inner(self, kube: Kube) -> dict[str, Any] | None:
        """TrainJob's JobSet, or None; lists JobSets, because a removal needs that right too."""
        place = self._place
        for found in (
            await kube.list(JOBSETS, namespace=place.namespace, fields=f"metadata.name={place.object}")
        ).items:
            owners = found.get("metadata", {}).get("ownerReferences") or ()
            if any(owner.get("uid") == self.uid for owner in owners):
                return found
        return None

    async def _pods(self, kube: Kube, selector: str, gang: str, execution: int | None) -> dict[str, str]:
        found = await kube.list(PODS, namespace=self._place.namespace, labels=selector)
        place = self._place
        items = await pods_of_gang(
            kube, found.items, gang, place.object, namespace=place.namespace, execution=execution
        )
        return {uid_of(item): str(item.get("status", {}).get("phase")) for item in items}

    async def _hold(self, kube: Kube, *, suspend: bool) -> bool:
        place = self._place
        body = {"metadata": {"uid": self.uid}, "spec": {"suspend": suspend}}
        try:
            # Makes the server refuse another object.
            await kube.patch(WORKLOADS[place.backend], place.object, body, namespace=place.namespace, kind="merge")
        except (ObjectNotFound, Conflict):
            return False
        return True
