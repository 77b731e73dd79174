"""The plan of one attempt in a cluster: its place, its manifests as this server would keep them, and its slots. Nothing is created.

Refuses what the server does not serve, in the words of :mod:`rankfall.backends.cluster.compile`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

import msgspec

from rankfall.backends.bundle import build_zip
from rankfall.backends.cluster.annotate import ANNOTATION, REASON
from rankfall.backends.cluster.compile import compile_job
from rankfall.backends.cluster.objects import Compiled
from rankfall.backends.cluster.served import ask, served_facts
from rankfall.backends.code import code_of
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan, variables
from rankfall.kube.access import Access
from rankfall.kube.discovery import Served
from rankfall.kube.portal import Portal
from rankfall.model import JobSpec
from rankfall.store import RunDir


def place_for(spec: JobSpec, access: Access, *, exclude: Collection[str]) -> ClusterPlan:
    """Where a new attempt would be, under a token of its own; what it would be called is known when it is compiled.

    Args:
        spec: the job.
        access: to its cluster.
        exclude: nodes to avoid, beside those of the spec.
    """
    return ClusterPlan(
        backend=spec.backend,
        namespace=access.namespace,
        context=access.context,
        kubeconfig=spec.kubernetes.kubeconfig,
        object="",
        selector="",
        container="",
        token=secrets.token_hex(8),
        bases={part.name: part.base for part in spec.parts},
        excluded=tuple(sorted(exclude)),
    )


def offer_to(portal: Portal, spec: JobSpec, run_dir: RunDir) -> Served:
    """What the server offers to a job; its answers are kept beside the runs, where such a folder is there.

    Raises:
        KubeError: it cannot be asked.
    """
    home = run_dir.path.parent.parent
    cache = home / "kube" if home.is_dir() else None
    return portal.call(lambda kube: ask(kube, spec, cache=cache))


def compiled_for(
    served: Served,
    spec: JobSpec,
    run_dir: RunDir,
    attempt: int,
    *,
    place: ClusterPlan,
    nnodes: int | None,
    left_out: Collection[str],
    strategy: str,
) -> Compiled:
    """The manifests of an attempt.

    Args:
        served: what the server offers.
        spec: the job, of the size that is wished.
        run_dir: the run; need not exist.
        attempt: counted from 1.
        place: where it would be.
        nnodes: how many of ``MIN:MAX`` nodes there are at first; None = the most.
        left_out: roles that have done their work.
        strategy: the backend's own.

    Raises:
        Refused: the backend or the server cannot do what is asked.
        SpecError: overrides or flags contradict the job.
    """
    return compile_job(
        spec,
        run=run_dir.id,
        attempt=attempt,
        token=place.token,
        served=served_facts(served, spec),
        inside_zip=build_zip() if spec.inside != "off" else b"",
        excluded_nodes=place.excluded,
        namespace=place.namespace,
        nnodes=nnodes,
        left_out=left_out,
        strategy=strategy,
        code=code_of(spec, run_dir) if spec.code_folders else None,
    )


def _shown(spec: JobSpec, name: str) -> tuple[str, ...]:
    """What is to be done with a verdict, for people."""
    told = f"a verdict is put on {spec.backend} {name}: annotation {ANNOTATION}, and an Event {REASON}"
    return (told,) if spec.kubernetes.annotate else ()


def planned(
    spec: JobSpec, run_dir: RunDir, attempt: int, *, place: ClusterPlan, compiled: Compiled, strategy: str
) -> Plan:
    """The plan of an attempt that is compiled.

    Args:
        spec: the job.
        run_dir: the run; need not exist.
        attempt: counted from 1.
        place: where it would be.
        compiled: its manifests, of which the place takes its names.
        strategy: the backend's own; the job's goes before it.
    """
    names = [item["metadata"]["name"] for item in compiled.workloads]
    cluster = msgspec.structs.replace(
        place,
        object=names[0],
        jobs=dict(zip(place.bases, names, strict=True)) if len(names) > 1 else {},
        selector=compiled.selector,
        container=compiled.container,
    )
    made = [
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
        for number in range(spec.nnodes_max if spec.nnodes_max is not None else compiled.slots)
    ]
    return Plan(
        attempt=attempt,
        launcher=compiled.launcher or "torchrun",
        rdzv=compiled.rdzv,
        slots=tuple(made[: compiled.slots]),
        spare=tuple(made[compiled.slots :]),
        **variables(spec),
        strategy=spec.strategy or strategy,
        notes=(*compiled.notes, *_shown(spec, names[0])),
        port=compiled.port,
        cluster=cluster,
        objects=tuple(compiled.shown()),
    )
