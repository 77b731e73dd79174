"""What the API server offers to a job: its version, the kinds that backends create, and the fields of these that it would keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from rankfall.backends.cluster.objects import PodOverrides, ServedFacts
from rankfall.kube.client import Kube
from rankfall.kube.discovery import Served, discover
from rankfall.kube.errors import KubeError
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

_NEEDED: Final[dict[str, tuple[Resource, ...]]] = {
    "job": (JOBS, SERVICES, CONFIG_MAPS),
    "jobset": (JOBSETS, CONFIG_MAPS),
    "trainjob": (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOBSETS, CONFIG_MAPS),
}
_SHOWN: Final = 10


async def ask(kube: Kube, spec: JobSpec, *, cache: Path | None) -> Served:
    """Ask the server: its version, its index, and the schemas of the kinds that the backend creates, as far as the cache lacks them.

    Raises:
        KubeError: it cannot be asked.
    """
    return await discover(kube, _NEEDED[spec.backend], cache=cache)


def served_facts(served: Served, spec: JobSpec) -> ServedFacts:
    """What compiling needs to know of it."""
    needed = _NEEDED[spec.backend]
    kinds = {one.kind for one in needed if served.serves(one)} | {"Job"}
    overrides: PodOverrides | None = None
    if "TrainJob" in kinds:
        # Each minor version of Trainer calls the field that changes pods something else.
        found: list[PodOverrides] = [
            name for name in reversed(get_args(PodOverrides)) if _offers(served, TRAINJOBS, "spec", name)
        ]
        overrides = found[0] if found else None
    return ServedFacts(version=served.version, kinds=frozenset(kinds), pod_overrides=overrides)


def check_fields(served: Served, objects: Iterable[Mapping[str, Any]], *, backend: str) -> None:
    """Refuse manifests of which the server would drop a part without a word.

    Raises:
        Refused: names the fields, up to ten.
    """
    dropped = [f"{item.get('kind')} {path}" for item in objects for path in _dropped(served, item)]
    if dropped:
        more = f" and {len(dropped) - _SHOWN} more" if len(dropped) > _SHOWN else ""
        raise Refused(
            f"this cluster's schema does not know fields of the job: {', '.join(dropped[:_SHOWN])}{more} (backend {backend})",
            hint="correct the name, leave the field out, or use a backend or a version that knows it",
        )


def _dropped(served: Served, item: Mapping[str, Any]) -> list[str]:
    try:
        return served.pruned(item)
    except KubeError:
        # A server that does not tell its schemas still checks what it is sent, strictly.
        return []


def _offers(served: Served, resource: Resource, *fields: str) -> bool:
    try:
        return served.offers(resource, *fields)
    except KubeError:
        return False
