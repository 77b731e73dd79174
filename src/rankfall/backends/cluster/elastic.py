"""Another size for an Indexed Job that runs: parallelism and completions in one patch, which Kubernetes takes only together.

Pods with an index from the new size on are ended by the Job's controller, with SIGTERM and their grace time; all others stay as they are. A
Job that is not ours, or was made anew under the name, is left alone.
"""

from __future__ import annotations

from typing import Any, Final

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, ObjectNotFound
from rankfall.kube.resources import JOBS
from rankfall.model import InfrastructureError

# The controller itself changes the object's status all the time; each time its version is another.
_TRIES: Final = 8


async def set_size(kube: Kube, *, name: str, namespace: str, uid: str | None, size: int) -> None:
    """Patch a Job to have so many pods; nothing is sent when it has.

    Args:
        kube: the cluster.
        name: of the Job.
        namespace: where it is.
        uid: of the Job that was launched.
        size: pods wished.

    Raises:
        InfrastructureError: it changes faster than it can be patched, or the cluster refuses.
    """
    for _ in range(_TRIES):
        try:
            found = await kube.get(JOBS, name, namespace=namespace)
        except ObjectNotFound:
            # What it means that it is gone is for others to find out.
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
        f"Job {name} changes all the time and could not be resized",
        hint="look at who else writes to it: kubectl get -w",
    )
