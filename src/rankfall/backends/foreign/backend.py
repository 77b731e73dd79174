"""A foreign job as a backend: it describes where its pods are, and refuses everything that would change something."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import NoReturn

import msgspec

from rankfall.backends.cluster.submitted import cluster_of, run_of
from rankfall.backends.foreign.record import looks_inside
from rankfall.backends.foreign.workload import ForeignWorkload
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan
from rankfall.backends.protocol import Company, HeldBack, HeldBy, Life, Source
from rankfall.diagnose import CAUSAL
from rankfall.kube.client import Kube
from rankfall.kube.kubeconfig import access_of
from rankfall.kube.portal import Portal
from rankfall.model import JobSpec, Refused
from rankfall.model.foreign import Foreign
from rankfall.store import RunDir


class ForeignBackend:
    """Backend of one record."""

    strategy = CAUSAL.name
    avoids_nodes = False

    def __init__(self) -> None:
        self._portal: Portal | None = None

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """Where the job's pods are found. Asks nobody."""
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
            # Nobody has it: no line of such a job is a record.
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
        """The object."""
        foreign = _foreign(run_of(plan))
        if self._portal is None:
            self._portal = Portal(lambda: Kube(access_of(foreign)))
        return ForeignWorkload(self._portal, foreign=foreign)

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Its pods."""
        run_dir = run_of(plan)
        pods = msgspec.structs.replace(cluster_of(plan), look_inside=looks_inside(run_dir))
        return (Source(kind="pods", path=str(run_dir.path), pods=pods),)

    def release(self) -> None:
        """Close the connection to the cluster."""
        if self._portal is not None:
            self._portal.close()
            self._portal = None

    # -- looked at, never changed

    def life(self, plan: Plan, slot: int) -> Life:
        """Its own records would tell more, and there are none."""
        del plan, slot
        return "absent"

    def alive(self, plan: Plan, slot: int) -> bool:
        """Nobody is waited for."""
        del plan, slot
        return False

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """None: what a container ended with stands in the journal."""
        del plan, slot
        return None

    def adopt(self, plan: Plan) -> None:
        """Nothing is held."""

    def withdrawn(self, plan: Plan, *, surely: bool = False) -> str | None:
        """Its recorder sees that itself."""
        del plan, surely
        return None

    def held_back(self, plan: Plan) -> HeldBack | None:
        """Its recorder sees that itself."""
        del plan
        return None

    def resizes(self, plan: Plan) -> bool:
        """Never by us."""
        del plan
        return False

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Refused."""
        del attempts, lost
        _refuse(run_dir, "held")

    def let_go(self, *, over: bool) -> None:
        """Nothing is held."""

    def submit(self, plan: Plan, *, company: Company | None = None) -> tuple[int, ...]:
        """Refused."""
        del company
        _refuse(run_of(plan), "started")

    def start_again(self, plan: Plan, slot: int) -> None:
        """Refused."""
        del slot
        _refuse(run_of(plan), "started again")

    def stop(self, plan: Plan, slots: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Refused."""
        del slots, grace, reason
        _refuse(run_of(plan), "stopped")

    def ask_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
        """Nobody there could be asked: the recorder is not in its pods."""
        del plan, slots
        return ()

    def end(self, plan: Plan, slots: Collection[int], *, grace: float) -> int:
        """Refused."""
        del slots, grace
        _refuse(run_of(plan), "ended")

    def resize(self, plan: Plan) -> bool:
        """Refused."""
        _refuse(run_of(plan), "resized")

    def clear(self, plan: Plan, *, company: Company | None = None) -> None:
        """Refused."""
        del company
        _refuse(run_of(plan), "removed")


def _foreign(run_dir: RunDir) -> Foreign:
    found = run_dir.foreign
    if found is None:
        raise Refused(
            f"{run_dir.id} is no record of a foreign job: foreign.json is missing",
            hint="rankfall logs KIND/NAME makes a new record",
        )
    return found


def _refuse(run_dir: RunDir, what: str) -> NoReturn:
    shown = _foreign(run_dir).target.shown
    raise Refused(
        f"{shown} cannot be {what}: Rankfall did not start it", hint=f"kubectl, or the tool that made {shown}"
    )
