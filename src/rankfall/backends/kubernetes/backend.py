"""The Kubernetes backend: slots as pods of an Indexed Job, a JobSet or a TrainJob.

Holds the state between calls; pods are read from the run directory. Repeated calls create no second object.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar

from rankfall.backends.kubernetes.attempt_control import MessageRelay, clear, give_up, request_stacks, submit, suspend
from rankfall.backends.kubernetes.attempt_record import (
    SlotPods,
    cluster_of,
    is_cleared,
    is_submitted,
    life_of,
    mark_cleared,
    mark_submitted,
    run_of,
    submitted_uid,
)
from rankfall.backends.kubernetes.manifests.request import Compiled
from rankfall.backends.kubernetes.planning import check_fields, compiled_for, offer_to, place_for, planned
from rankfall.backends.kubernetes.run_lease import RunLease
from rankfall.backends.kubernetes.verdict_annotation import annotate
from rankfall.backends.kubernetes.workload import (
    Workload,
    attempt_suspension,
    deleted_workload,
    gang_of,
    how_expired,
    set_size,
)
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.backends.protocol import Cancellation, HeldBy, Life, Source, SuspensionState
from rankfall.kube.auth.kubeconfig import Place, access_of
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.loop_thread import EventLoopThread
from rankfall.kube.resources import LEASES, NODES
from rankfall.model import JobSpec, Verdict
from rankfall.model.errors import EvidenceLost
from rankfall.model.jobspec.sizes import sized
from rankfall.model.node_health.records import ANNOTATION, CONDITION, NodeHealth, decode_health
from rankfall.model.node_health.run_verdicts import (
    CONTROLLER_NAMESPACE,
    LEASE,
    NAMESPACE,
    VERDICTS_ANNOTATION,
    NodeAnswer,
    RunVerdict,
    RunVerdicts,
    answer_of,
    decode_verdicts,
    encode_verdicts,
)
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import Stop, abandoned, mark_stop
from rankfall.verdict.diagnose import CAUSAL

# A busy Node changes every few seconds.
_TRIES: Final = 8


async def report_to_node(kube: Kube, node: str, verdict: RunVerdict) -> str | None:
    """Writes the verdict onto its Node once; returns a message on failure, else None. Repeatable."""
    try:
        for _ in range(_TRIES):
            item = await kube.get(NODES, node)
            held = _verdicts(item)
            if any(each.id == verdict.id for each in held.verdicts):
                return None
            body = {"metadata": {"annotations": {VERDICTS_ANNOTATION: encode_verdicts(held.with_one(verdict))}}}
            version = str(item["metadata"]["resourceVersion"])
            try:
                await kube.patch(NODES, node, body, kind="merge", subresource="status", resource_version=version)
            except Conflict:
                continue
            return None
    except ObjectNotFound:
        return f"node {node} no longer exists, so it was not reported as the cause of this run's failure"
    except KubeError as error:
        return f"cannot report node {node} as the cause of this run's failure: {error.message}"
    return f"cannot report node {node} as the cause of this run's failure: other clients changed it {_TRIES} times meanwhile"


async def node_report_answer(kube: Kube, node: str, verdict: RunVerdict, *, namespace: str) -> NodeAnswer:
    """Answer of the controller in ``namespace`` to a verdict.

    Raises:
        KubeError: The server does not answer now.
    """
    try:
        item = await kube.get(NODES, node)
    except ObjectNotFound:
        return NodeAnswer(state="noted", text=f"node {node} no longer exists")
    found = answer_of(_record(item), verdict, condition=_condition(item))
    if found.state == "waiting" and not await _controlled(kube, namespace):
        return NodeAnswer(state="none")
    return found


async def _controlled(kube: Kube, namespace: str) -> bool:
    """True if a controller holds its lease: it runs, or ran until a moment ago."""
    try:
        lease = await kube.get(LEASES, LEASE, namespace=namespace)
    except (ObjectNotFound, Forbidden):
        return False
    return bool((lease.get("spec") or {}).get("holderIdentity"))


def _verdicts(item: dict[str, Any]) -> RunVerdicts:
    text = (item["metadata"].get("annotations") or {}).get(VERDICTS_ANNOTATION)
    try:
        return RunVerdicts() if not isinstance(text, str) else decode_verdicts(text)
    except EvidenceLost:
        # The controller reports it; its earlier answer is in the node's record.
        return RunVerdicts()


def _record(item: dict[str, Any]) -> NodeHealth | None:
    text = (item["metadata"].get("annotations") or {}).get(ANNOTATION)
    try:
        return None if not isinstance(text, str) else decode_health(text)
    except EvidenceLost:
        return None


def _condition(item: dict[str, Any]) -> str:
    conditions = (item.get("status") or {}).get("conditions") or ()
    found = [each for each in conditions if isinstance(each, dict) and each.get("type") == CONDITION]
    return "; ".join(f"{each.get('reason')}: {each.get('message')}" for each in found)


_T = TypeVar("_T")


# Longest delay of a stop by a full disk, seconds.
_UNMARKED_S: Final = 10.0


class ClusterBackend:
    """Backend of one run's successive attempts on Kubernetes."""

    strategy = CAUSAL.name
    avoids_nodes = True

    def __init__(self) -> None:
        self._loop_thread: EventLoopThread | None = None
        self._compiled: dict[int, Compiled] = {}
        self._pods = SlotPods()
        self._hold: RunLease | None = None
        self._unmarked_since: float | None = None

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """Plans an attempt; queries the server's capabilities, creates nothing.

        Raises:
            Refused: Backend or server cannot run this job.
            SpecError: Overrides or flags contradict the job.
            KubeError: The cluster is unreachable.
        """
        place = place_for(spec, access_of(spec.kubernetes), exclude=exclude)
        compiled = self._compile(spec, run_dir, attempt, place=place, nnodes=nnodes)
        return planned(spec, run_dir, attempt, place=place, compiled=compiled, strategy=self.strategy)

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Tries once to take the run's Lease, then renews it; returns None, or the other supervisor.

        Raises:
            EvidenceLost: The directory is an old copy.
            KubeError: The Lease is unreadable or not writable.
        """
        section = run_dir.spec.kubernetes
        access = access_of(section)
        loop_thread = self._connected(section)
        held = self._hold
        if held is None:
            held = self._hold = RunLease(run_dir, namespace=access.namespace, lost=lost)
        other = loop_thread.call(lambda kube: held.step(kube, attempts=attempts))
        if other is None:
            loop_thread.start(held.keep)
        return other

    def let_go(self, *, over: bool) -> None:
        """Releases the Lease; if the run is ``over``, removes it unless objects of the run still exist."""
        held, self._hold = self._hold, None
        if held is not None and self._loop_thread is not None:
            self._loop_thread.call(lambda kube: held.let_go(kube, over=over))

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        """Creates the attempt's objects; returns all slots, none if already submitted.

        Raises:
            Abandoned: Canceled; the next call finds the objects.
            InfrastructureError: Creation failed, or another user removed the objects.
        """
        place, run_dir = cluster_of(plan), run_of(plan)
        if is_submitted(run_dir, plan.attempt):
            # If missing, another user removed them.
            return ()
        compiled = self._compiled.get(plan.attempt) if not plan.left_out else None
        if compiled is None:
            spec = sized(run_dir.whole_spec(), plan.sizes)
            nnodes = plan.sizes.get(spec.role, len(plan.slots)) if spec.elastic else None
            compiled = self._compile(spec, run_dir, plan.attempt, place=place, nnodes=nnodes, left_out=plan.left_out)
        relay, hold = MessageRelay(cancellation), self._hold
        done = self._connected(place).call(
            lambda kube: submit(kube, plan, compiled, hold=hold, say=relay.say), meanwhile=relay.meanwhile
        )
        mark_submitted(run_dir, plan.attempt, uid=done.uid, workload=place.object)
        return tuple(slot.slot for slot in plan.slots)

    def adopt(self, plan: Plan) -> None:
        """Does nothing: all state is in the cluster."""

    def start_again(self, plan: Plan, slot: int) -> None:
        """Does nothing: the platform replaces the pod."""

    def life(self, plan: Plan, slot: int) -> Life:
        """Slot's state; dead if abandoned without a pod."""
        fact = self._pods.of(plan, slot)
        if fact is None and slot in abandoned(run_of(plan).path, plan.attempt):
            return "dead"
        return life_of(fact)

    def alive(self, plan: Plan, slot: int) -> bool:
        """True if the slot's container is starting or running."""
        return self.life(plan, slot) in {"starting", "running"}

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """Returns None: the pod journal has the exit code."""
        del plan, slot
        return None

    def stop(self, plan: Plan, slots: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Suspends the workloads: pods get SIGTERM and their grace time."""
        del grace
        place, run_dir = cluster_of(plan), run_of(plan)
        if self._hold is not None and not self._hold.firm():
            try:
                self._call(plan, self._hold.write)
            except KubeError:
                # Another process may supervise the run; the next poll retries.
                return ()
        try:
            mark_stop(run_dir.path, plan.attempt, Stop(at_ns=time.time_ns(), reason=reason))
        except OSError:
            # Without the mark this SIGTERM counts as another sender's, so a full disk delays the stop for a while.
            self._unmarked_since = self._unmarked_since or time.monotonic()
            if time.monotonic() - self._unmarked_since < _UNMARKED_S:
                return ()
        try:
            self._call(plan, lambda kube: suspend(kube, place))
        except KubeError:
            return ()
        return tuple(sorted(slots))

    def request_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
        """Requests stacks, which arrive as records; none without the right to exec."""
        place = cluster_of(plan)
        facts = {slot: self._pods.of(plan, slot) for slot in slots}
        pods = {slot: fact.name for slot, fact in facts.items() if fact is not None and not fact.gone}
        try:
            return self._call(plan, lambda kube: request_stacks(kube, place, pods))
        except KubeError:
            return ()

    def end(self, plan: Plan, slots: Collection[int], *, grace: float) -> int:
        """Records slots as abandoned if their stop is old enough; kills no process, so returns 0.

        A slot without a pod, or on a node that does not report, is abandoned immediately.
        """
        del grace
        facts = {slot: self._pods.of(plan, slot) for slot in slots}
        absent = [slot for slot, fact in facts.items() if fact is None or fact.unheard]
        with contextlib.suppress(OSError):
            give_up(run_of(plan), plan.attempt, slots, absent=absent)
        return 0

    def resizes(self, plan: Plan) -> bool:
        """True for an Indexed Job whose torchruns start a new round after pod changes."""
        return cluster_of(plan).backend == "job" and plan.rdzv == "c10d"

    def resize(self, plan: Plan) -> bool:
        """Patches the Job to the plan's size and returns True; the Job's controller creates and deletes pods.

        Raises:
            InfrastructureError: No answer or refusal.
        """
        place, run_dir = cluster_of(plan), run_of(plan)
        uid = submitted_uid(run_dir, plan.attempt)
        size = plan.sizes[run_dir.spec.role]
        self._call(plan, lambda kube: set_size(kube, name=place.object, namespace=place.namespace, uid=uid, size=size))
        return True

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Attempt's pods as the only source."""
        return (Source(kind="pods", path=str(run_of(plan).path), pods=cluster_of(plan)),)

    def workload(self, plan: Plan) -> Workload | None:
        """Launched object that Kubernetes controls, or None."""
        place = cluster_of(plan)
        uid = submitted_uid(run_of(plan), place.named or plan.attempt)
        return None if uid is None else Workload(self._connected(place), place=place, uid=uid)

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """Message if another user deleted the workload, else None.

        Rankfall itself deletes a workload only after the attempt's end.
        """
        place, run_dir, number = cluster_of(plan), run_of(plan), plan.attempt
        uid = submitted_uid(run_dir, number)
        if uid is None or is_cleared(run_dir, number):
            return None
        gang, expires = gang_of(run_dir, number), run_dir.spec.ttl_s is not None and place.backend != "trainjob"
        try:
            gone = self._call(plan, lambda kube: deleted_workload(kube, place, uid=uid, gang=gang, expires=expires))
        except KubeError:
            if surely:
                raise
            return None
        if gone is None:
            return None
        if gone.expired:
            return how_expired(run_dir, number, uid=uid, label=gone.label, surely=surely)
        return f"{gone.label} was deleted in the cluster"

    def show(self, plan: Plan, verdict: Verdict) -> str | None:
        """Publishes a verdict as annotation and Event; returns a message on failure, else None."""
        place = cluster_of(plan)
        uid = submitted_uid(run_of(plan), place.named or plan.attempt)
        if uid is None:
            return None
        try:
            return self._call(plan, lambda kube: annotate(kube, place, uid=uid, verdict=verdict, at=time.time_ns()))
        except KubeError as error:
            return f"cannot write the verdict to {place.backend} {place.object}: {error.message}"

    def report_node(self, plan: Plan, node: str, verdict: RunVerdict) -> str | None:
        """Writes a verdict onto its Node; returns a message on failure, else None."""
        try:
            return self._call(plan, lambda kube: report_to_node(kube, node, verdict))
        except KubeError as error:
            return f"cannot report node {node} as the cause of this run's failure: {error.message}"

    def answered(self, plan: Plan, node: str, verdict: RunVerdict) -> NodeAnswer:
        """Answer of the node health controller.

        Raises:
            KubeError: The cluster does not answer.
        """
        namespace = os.environ.get(CONTROLLER_NAMESPACE) or NAMESPACE
        return self._call(plan, lambda kube: node_report_answer(kube, node, verdict, namespace=namespace))

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """Workload's suspension; None if not launched or unreadable."""
        place = cluster_of(plan)
        uid = submitted_uid(run_of(plan), plan.attempt)
        if uid is None:
            return None
        try:
            return self._call(plan, lambda kube: attempt_suspension(kube, place, uid=uid))
        except KubeError:
            return None

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
        """Deletes the attempt's objects and waits for its pods' end: gangs never overlap.

        Raises:
            Abandoned: The caller canceled.
            InfrastructureError: Objects remain; names the cause.
        """
        relay, hold, place = MessageRelay(cancellation), self._hold, cluster_of(plan)
        # From here a missing workload proves nothing.
        mark_cleared(run_of(plan), plan.attempt)
        self._connected(place).call(lambda kube: clear(kube, plan, hold=hold, relay=relay), meanwhile=relay.meanwhile)

    def release(self) -> None:
        """Closes the connection to the cluster."""
        if self._loop_thread is not None:
            self._loop_thread.close()
            self._loop_thread = None

    def _compile(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        place: ClusterPlan,
        nnodes: int | None,
        left_out: Collection[str] = (),
    ) -> Compiled:
        served = offer_to(self._connected(place), spec, run_dir)
        compiled = self._compiled[attempt] = compiled_for(
            served,
            spec,
            run_dir,
            attempt,
            place=place,
            nnodes=nnodes,
            left_out=left_out,
            strategy=self.strategy,
        )
        check_fields(served, compiled.objects, backend=spec.backend)
        return compiled

    def _connected(self, place: Place) -> EventLoopThread:
        if self._loop_thread is None:
            self._loop_thread = EventLoopThread(lambda: Kube(access_of(place)))
        return self._loop_thread

    def _call(self, plan: Plan, work: Callable[[Kube], Awaitable[_T]]) -> _T:
        return self._connected(cluster_of(plan)).call(work)
