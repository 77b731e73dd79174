"""Launches, stops and removes one attempt; requests stacks.

Nothing is created before the Lease is renewed. Slots are never force-deleted: their processes could overlap with the
next attempt's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

from rankfall.backends.kubernetes.attempt_record import cluster_of, run_of, submitted_uid
from rankfall.backends.kubernetes.copy.workspace import upload_code
from rankfall.backends.kubernetes.lifecycle.errors import RetryBudget, Say
from rankfall.backends.kubernetes.lifecycle.launch import Launched, launch
from rankfall.backends.kubernetes.lifecycle.ownership import owner_reference
from rankfall.backends.kubernetes.lifecycle.remove import Removed, remove
from rankfall.backends.kubernetes.lifecycle.wait_gone import pods_of
from rankfall.backends.kubernetes.manifests.request import Compiled
from rankfall.backends.kubernetes.run_lease import NOTE_ATTEMPT, RunLease
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.backends.protocol import Cancellation
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound
from rankfall.kube.exec.session import execute
from rankfall.kube.resources import WORKLOADS
from rankfall.model import InfrastructureError
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import abandon, read_stop
from rankfall.rundir.requests import who

# Newest messages without a listener.
_MOST: Final = 200


class MessageRelay:
    """Passes messages of one call from any thread to its caller; ``last`` is the newest."""

    def __init__(self, cancellation: Cancellation | None) -> None:
        self.last = ""
        self._cancellation = cancellation
        self._lines: deque[str] = deque(maxlen=_MOST)

    def say(self, text: str) -> None:
        """Queues a message; may be called from any thread."""
        self.last = text
        self._lines.append(text)

    def meanwhile(self) -> bool:
        """Passes on queued messages; True if the caller canceled the call."""
        if self._cancellation is None:
            return False
        while self._lines:
            self._cancellation.say(self._lines.popleft())
        return self._cancellation.over()


# Seconds for a launch.
_LAUNCH_S: Final = 300.0


async def submit(kube: Kube, plan: Plan, compiled: Compiled, *, hold: RunLease | None, say: Say) -> Launched:
    """Creates the attempt's objects or finds existing ones; ``hold``: the supervisor's Lease, None without one.

    Raises:
        InfrastructureError: Creation failed, or another user removed the objects.
    """
    place, run_dir = cluster_of(plan), run_of(plan)
    objects, number = compiled.objects, compiled.workload
    others = len(objects) - compiled.others
    resource = WORKLOADS[place.backend]
    if hold is not None:
        patience = RetryBudget(until=time.monotonic() + _LAUNCH_S, say=say)
        await hold.write_with_retries(kube, patience, notes={NOTE_ATTEMPT: str(plan.attempt)})
    if run_dir.spec.code_folders:
        await upload_code(kube, run_dir, namespace=place.namespace, say=say)
    done = await launch(
        kube,
        objects[number],
        objects[number + 1 : others],
        first=objects[:number],
        others=objects[others:],
        resource=resource,
        request_token=compiled.request_token,
        hold=not compiled.release,
        replace=run_dir.replaces and plan.attempt == 1,
        wait_s=_LAUNCH_S,
        say=say,
        owner=who(),
    )
    if hold is not None:
        meta = {"name": place.object, "uid": done.uid}
        workload = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        # The next renewal repeats it.
        with contextlib.suppress(KubeError):
            await hold.write(kube, owners=[owner_reference(workload)])
    return done


# Seconds per pod.
_EXEC_S: Final = 10.0
_AT_ONCE: Final = 16
_CONTROL_SCRIPT: Final = (
    'for p in "${RANKFALL_PYTHON:-python3}" python3 python; do'
    ' command -v "$p" >/dev/null 2>&1 || continue; "$p" /rankfall/inside.pyz tell "$@" || exit 3; echo told; exit 0;'
    " done; exit 3"
)


async def request_stacks(kube: Kube, place: ClusterPlan, pods: Mapping[int, str]) -> tuple[int, ...]:
    """Requests stacks; returns the slots that received the request."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(slot: int, pod: str) -> int | None:
        async with gate:
            try:
                found = await execute(
                    kube,
                    pod,
                    ["sh", "-c", _CONTROL_SCRIPT, "rankfall", "stacks"],
                    container=place.container,
                    namespace=place.namespace,
                    timeout=_EXEC_S,
                )
            except KubeError:
                return None
        # Exit code 0 can also mean a lost connection between API server and kubelet.
        return slot if found.stdout.endswith(b"told\n") else None

    answers = await asyncio.gather(*(one(slot, pod) for slot, pod in pods.items()))
    return tuple(slot for slot in answers if slot is not None)


# Seconds beyond the grace time: many times the kubelet's margin.
_UNRESPONSIVE_S: Final = 60.0
_NS: Final = 1_000_000_000


async def suspend(kube: Kube, place: ClusterPlan) -> None:
    """Suspends the workloads: pods get SIGTERM and their grace time.

    Raises:
        KubeError: Refused or no answer; repeatable.
    """
    for name in place.workloads:
        with contextlib.suppress(ObjectNotFound):
            await kube.patch(
                WORKLOADS[place.backend],
                name,
                {"spec": {"suspend": True}},
                namespace=place.namespace,
                kind="merge",
            )


def give_up(run_dir: RunDir, attempt: int, slots: Collection[int], *, absent: Collection[int] = ()) -> None:
    """Records slots as abandoned if their stop is old enough; ``absent`` slots have no pod.

    Raises:
        OSError: The record cannot be written.
    """
    stop = read_stop(run_dir.path, attempt)
    patience = run_dir.spec.policies.grace_s + _UNRESPONSIVE_S
    if stop is not None:
        overdue = time.time_ns() - stop.at_ns > patience * _NS
        abandon(run_dir.path, attempt, slots if overdue else absent)


# Seconds for an ended attempt's objects to disappear.
_CLEAR_S: Final = 300.0


async def clear(kube: Kube, plan: Plan, *, hold: RunLease | None, relay: MessageRelay) -> None:
    """Deletes the attempt's objects and waits until its pods are deleted.

    Raises:
        InfrastructureError: Objects remain; names the cause.
    """
    place, run_dir = cluster_of(plan), run_of(plan)
    # The launch may have been killed before its mark; Rankfall's marks then decide.
    uid = submitted_uid(run_dir, plan.attempt)
    if hold is not None:
        await hold.write_with_retries(kube, RetryBudget(until=time.monotonic() + _CLEAR_S, say=relay.say), owners=[])
    answer = await _removed(kube, place, uid=uid, say=relay.say)
    if answer != "gone":
        raise InfrastructureError(
            f"attempt {plan.attempt} of {run_dir.id} still runs: {relay.last or place.object}",
            hint=f"check its pods: kubectl get pods -n {place.namespace} -l {place.selector}",
        )


async def _removed(kube: Kube, place: ClusterPlan, *, uid: str | None, say: Say) -> Removed:
    answer: Removed = "gone"
    # The first workload owns the others and goes last.
    for name in reversed(place.workloads):
        own = name == place.object
        answer = await remove(
            kube,
            resource=WORKLOADS[place.backend],
            name=name,
            namespace=place.namespace,
            uid=uid if own else None,
            pods_selector=place.selector if own else f"{place.selector},{pods_of(WORKLOADS['job'], name)}",
            wait_s=_CLEAR_S,
            say=say,
        )
        if answer != "gone":
            break
    return answer
