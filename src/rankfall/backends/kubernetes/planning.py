"""Plans one attempt in a cluster: place, server capabilities, manifests and slots.

Creates nothing. Refuses unserved kinds and fields that the server would drop.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from rankfall.backends.kubernetes.copy import workspace
from rankfall.backends.kubernetes.manifests.compile import compile_job
from rankfall.backends.kubernetes.manifests.request import Compiled, PodOverrides, ServedFacts
from rankfall.backends.kubernetes.verdict_annotation import ANNOTATION, REASON
from rankfall.backends.payload import build_zip, code_of
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan, variables
from rankfall.kube.auth.access import Access
from rankfall.kube.auth.kubeconfig import access_of
from rankfall.kube.client import Kube
from rankfall.kube.discovery import Served, discover
from rankfall.kube.errors import KubeError
from rankfall.kube.loop_thread import EventLoopThread
from rankfall.kube.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    SERVICES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    Resource,
)
from rankfall.model import JobSpec, Refused
from rankfall.rundir import RunDir

_NEEDED: Final[dict[str, tuple[Resource, ...]]] = {
    "job": (JOBS, SERVICES, CONFIG_MAPS),
    "jobset": (JOBSETS, CONFIG_MAPS),
    "trainjob": (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOBSETS, CONFIG_MAPS),
}
_MAX_LISTED: Final = 10


async def ask(kube: Kube, spec: JobSpec, *, cache: Path | None) -> Served:
    """Queries version, index, and uncached schemas of the backend's kinds.

    Raises:
        KubeError: The query failed.
    """
    return await discover(kube, _NEEDED[spec.backend], cache=cache)


def served_facts(served: Served, spec: JobSpec) -> ServedFacts:
    """Extracts the facts that compiling needs."""
    needed = _NEEDED[spec.backend]
    kinds = {one.kind for one in needed if served.serves(one)} | {"Job"}
    overrides: PodOverrides | None = None
    if "TrainJob" in kinds:
        # Differs by minor version of Trainer.
        found: list[PodOverrides] = [
            name for name in reversed(get_args(PodOverrides)) if _offers(served, TRAINJOBS, "spec", name)
        ]
        overrides = found[0] if found else None
    return ServedFacts(version=served.version, kinds=frozenset(kinds), pod_overrides=overrides)


def check_fields(served: Served, objects: Iterable[Mapping[str, Any]], *, backend: str) -> None:
    """Refuses manifests with fields that the server would drop silently.

    Raises:
        Refused: Names up to ten fields.
    """
    dropped = [f"{item.get('kind')} {path}" for item in objects for path in _dropped(served, item)]
    if dropped:
        more = f" and {len(dropped) - _MAX_LISTED} more" if len(dropped) > _MAX_LISTED else ""
        raise Refused(
            f"this cluster's schema does not know fields of the job: {', '.join(dropped[:_MAX_LISTED])}{more} (backend {backend})",
            hint="correct the name, leave the field out, or use a backend or a version that knows it",
        )


def _dropped(served: Served, item: Mapping[str, Any]) -> list[str]:
    try:
        return served.pruned(item)
    except KubeError:
        # Such a server still validates strictly.
        return []


def _offers(served: Served, resource: Resource, *fields: str) -> bool:
    try:
        return served.offers(resource, *fields)
    except KubeError:
        return False


def pinned(spec: JobSpec) -> JobSpec:
    """Fixes context, namespace and runs' folder in the spec against later changes.

    Raises:
        KubeConfigError: No usable context.
    """
    access = access_of(spec.kubernetes)
    section = msgspec.structs.replace(spec.kubernetes, context=access.context, namespace=access.namespace)
    return workspace.pinned(msgspec.structs.replace(spec, kubernetes=section))


def place_for(spec: JobSpec, access: Access, *, exclude: Collection[str]) -> ClusterPlan:
    """New attempt's place with a new token; compiling adds names."""
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


def offer_to(loop_thread: EventLoopThread, spec: JobSpec, run_dir: RunDir) -> Served:
    """Server's capabilities, cached next to the runs if that folder exists.

    Raises:
        KubeError: The query failed.
    """
    home = run_dir.path.parent.parent
    cache = home / "kube" if home.is_dir() else None
    return loop_thread.call(lambda kube: ask(kube, spec, cache=cache))


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
    """Manifests of an attempt; ``nnodes``: initial ``MIN:MAX`` nodes, None = maximum.

    Raises:
        Refused: Backend or server cannot run this job.
        SpecError: Overrides or flags contradict the job.
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


def _verdict_notes(spec: JobSpec, name: str) -> tuple[str, ...]:
    note = f"a verdict is written to {spec.backend} {name}: annotation {ANNOTATION}, and an Event {REASON}"
    return (note,) if spec.kubernetes.annotate else ()


def planned(
    spec: JobSpec, run_dir: RunDir, attempt: int, *, place: ClusterPlan, compiled: Compiled, strategy: str
) -> Plan:
    """Plan of a compiled attempt; the job's strategy has priority."""
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
        notes=(*compiled.notes, *_verdict_notes(spec, names[0])),
        port=compiled.port,
        cluster=cluster,
        objects=tuple(compiled.masked_objects()),
    )
