"""A foreign job as a backend: reports pods and state, and refuses every change."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import NoReturn

import msgspec

from rankfall.backends.foreign.objects import RESOURCES, state_of
from rankfall.backends.foreign.targets import made_set, may_exec
from rankfall.backends.kubernetes.attempt_record import cluster_of, run_of
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan
from rankfall.backends.protocol import Cancellation, HeldBy, Life, Source, SuspensionState
from rankfall.collect.pods.workload_states import pods_of_gang
from rankfall.kube.auth.kubeconfig import access_of
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.loop_thread import EventLoopThread
from rankfall.kube.resources import PODS
from rankfall.model import JobSpec, Refused
from rankfall.model.foreign import Foreign
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.workload_state import NativeState
from rankfall.verdict.diagnose import CAUSAL


class ForeignWorkload:
    """The object of one foreign job."""

    def __init__(self, loop_thread: EventLoopThread, *, foreign: Foreign) -> None:
        self._loop_thread = loop_thread
        self._foreign = foreign
        self.uid = foreign.uid
        self.label = f"{foreign.kind} {foreign.name}"

    def look(self) -> NativeState | None:
        """Object's state; None if the object does not exist.

        Raises:
            KubeError: The object is unreadable now.
        """
        return self._loop_thread.look(self._look)

    def pods(self, selector: str, *, gang: str = "", execution: int | None = None) -> dict[str, str]:
        """Pod phases by UID; with ``gang`` only of one JobSet, with ``execution`` only of one start of it.

        Raises:
            KubeError: The pods are unreadable now.
        """
        return self._loop_thread.look(lambda kube: self._pods(kube, selector, gang, execution))

    async def _look(self, kube: Kube) -> NativeState | None:
        foreign = self._foreign
        resource = RESOURCES[foreign.kind]
        try:
            found = await kube.get(resource, foreign.name, namespace=foreign.namespace)
        except ObjectNotFound:
            return None
        if found.get("metadata", {}).get("uid") != foreign.uid:
            return None
        inner = await made_set(kube, found, namespace=foreign.namespace) if foreign.kind == "trainjob" else None
        # An object read by name lacks its kind.
        return state_of(foreign.kind, {**found, "kind": resource.kind}, inner=inner)

    async def _pods(self, kube: Kube, selector: str, gang: str, execution: int | None) -> dict[str, str]:
        foreign = self._foreign
        found = await kube.list(
            PODS, namespace=foreign.namespace, labels=selector or None, fields=foreign.fields or None
        )
        mine = [
            item
            for item in await pods_of_gang(
                kube, found.items, gang, foreign.name, namespace=foreign.namespace, execution=execution
            )
            if gang
            or foreign.marks.mine(item["metadata"].get("labels") or {}, item["metadata"].get("creationTimestamp"))
        ]
        return {str(item["metadata"].get("uid")): str((item.get("status") or {}).get("phase")) for item in mine}


class ForeignBackend:
    """Backend of one foreign job."""

    strategy = CAUSAL.name
    avoids_nodes = False

    def __init__(self) -> None:
        self._loop_thread: EventLoopThread | None = None

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """Location of the job's pods without any request."""
        del nnodes, exclude
        foreign = _foreign(run_dir)
        firsts = [0, *accumulate(foreign.slots.values())]
        place = ClusterPlan(
            backend=foreign.kind,
            object=foreign.name,
            namespace=foreign.namespace,
            context=foreign.context,
            kubeconfig=foreign.kubeconfig,
            selector=foreign.selector,
            fields=foreign.fields,
            container="",
            # No pod has it, so no line is a record.
            token=secrets.token_hex(16),
            bases=dict(zip(foreign.slots, firsts, strict=False)),
            marks=foreign.marks,
        )
        return Plan(
            attempt=attempt,
            launcher="torchrun" if foreign.launcher == "torchrun" else "exec",
            slots=tuple(
                SlotPlan(
                    slot=number,
                    role=spec.role_of(number),
                    node="",
                    argv=(),
                    env={},
                    cwd="",
                    slot_dir=str(run_dir.slot_dir(attempt, spec.role_of(number), number)),
                    stream_dir=str(run_dir.stream_dir(attempt, spec.role_of(number), number)),
                )
                for number in range(spec.slot_count)
            ),
            strategy=spec.strategy or self.strategy,
            cluster=place,
        )

    def workload(self, plan: Plan) -> ForeignWorkload:
        """Job's object."""
        foreign = _foreign(run_of(plan))
        if self._loop_thread is None:
            self._loop_thread = EventLoopThread(lambda: Kube(access_of(foreign)))
        return ForeignWorkload(self._loop_thread, foreign=foreign)

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Job's pods as the only source."""
        run_dir = run_of(plan)
        pods = msgspec.structs.replace(cluster_of(plan), look_inside=may_exec(run_dir))
        return (Source(kind="pods", path=str(run_dir.path), pods=pods),)

    def release(self) -> None:
        """Closes the connection to the cluster."""
        if self._loop_thread is not None:
            self._loop_thread.close()
            self._loop_thread = None

    def life(self, plan: Plan, slot: int) -> Life:
        """Returns ``absent``: the job has no records that could show more."""
        del plan, slot
        return "absent"

    def alive(self, plan: Plan, slot: int) -> bool:
        """Returns False: there is no wrapper."""
        del plan, slot
        return False

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """Returns None: the pod journal has the exit code."""
        del plan, slot
        return None

    def adopt(self, plan: Plan) -> None:
        """Does nothing: there is nothing to take over."""

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """Returns None: the recorder detects it."""
        del plan, surely
        return None

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """Returns None: the recorder detects it."""
        del plan
        return None

    def resizes(self, plan: Plan) -> bool:
        """Returns False: Rankfall never resizes a foreign job."""
        del plan
        return False

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Refuses to supervise the job."""
        del attempts, lost
        _refuse(run_dir, "held")

    def let_go(self, *, over: bool) -> None:
        """Does nothing: the job has no supervisor."""

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        """Refuses to start the job."""
        del cancellation
        _refuse(run_of(plan), "started")

    def start_again(self, plan: Plan, slot: int) -> None:
        """Refuses to restart a slot."""
        del slot
        _refuse(run_of(plan), "started again")

    def stop(self, plan: Plan, slots: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Refuses to stop slots."""
        del slots, grace, reason
        _refuse(run_of(plan), "stopped")

    def request_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
        """Returns no slots: there is no recorder."""
        del plan, slots
        return ()

    def end(self, plan: Plan, slots: Collection[int], *, grace: float) -> int:
        """Refuses to kill slots."""
        del slots, grace
        _refuse(run_of(plan), "ended")

    def resize(self, plan: Plan) -> bool:
        """Refuses to resize the job."""
        _refuse(run_of(plan), "resized")

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
        """Refuses to remove the job."""
        del cancellation
        _refuse(run_of(plan), "removed")


def _foreign(run_dir: RunDir) -> Foreign:
    found = run_dir.foreign
    if found is None:
        raise Refused(
            f"{run_dir.id} is not the run directory of a foreign job: foreign.json is missing",
            hint="run rankfall logs KIND/NAME, which creates a new run directory for the job",
        )
    return found


def _refuse(run_dir: RunDir, what: str) -> NoReturn:
    label = _foreign(run_dir).target.label
    raise Refused(
        f"{label} cannot be {what}: Rankfall did not start it", hint=f"use kubectl or the tool that created {label}"
    )
