"""What the API server offers to a job: its version, and which of the kinds that backends create it serves."""

from __future__ import annotations

from typing import Final, get_args

from rankfall.backends.cluster.objects import PodOverrides, ServedFacts
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound
from rankfall.kube.resources import CLUSTER_TRAINING_RUNTIMES, JOBSETS, TRAINING_RUNTIMES, TRAINJOBS, Resource
from rankfall.model import JobSpec

_NEEDED: Final[dict[str, tuple[Resource, ...]]] = {
    "job": (),
    "jobset": (JOBSETS,),
    "trainjob": (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOBSETS),
}


async def served_facts(kube: Kube, spec: JobSpec) -> ServedFacts:
    """Ask the server: one request for a Job, one more for each API group of another backend.

    Raises:
        KubeError: it cannot be asked.
    """
    version = await kube.version()
    kinds = {"Job"}
    overrides: PodOverrides | None = None
    for path in sorted({f"/apis/{one.api_version}" for one in _NEEDED[spec.backend]}):
        try:
            found = await kube.raw(path)
        except ObjectNotFound:
            continue
        names = {one.get("name") for one in found.get("resources", ()) if isinstance(one, dict)}
        kinds |= {
            one.kind for one in _NEEDED[spec.backend] if path == f"/apis/{one.api_version}" and one.plural in names
        }
    if "TrainJob" in kinds:
        overrides = await _overrides(kube)
    return ServedFacts(version=version, kinds=frozenset(kinds), pod_overrides=overrides)


async def _overrides(kube: Kube) -> PodOverrides | None:
    """The field of a TrainJob that changes its pods: each minor version of Trainer calls it something else."""
    schema = await kube.raw(f"/openapi/v3/apis/{TRAINJOBS.api_version}")
    for component in schema.get("components", {}).get("schemas", {}).values():
        kinds = component.get("x-kubernetes-group-version-kind") or []
        if any(one.get("kind") == TRAINJOBS.kind for one in kinds):
            fields = component.get("properties", {}).get("spec", {}).get("properties", {})
            found: list[PodOverrides] = [name for name in reversed(get_args(PodOverrides)) if name in fields]
            return found[0] if found else None
    return None
