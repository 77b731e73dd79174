"""Finds the object that a target names, and whether its pods may be read. Every way to fail is told with the next step.

Asks only: one ``get`` of the object (of a TrainJob also for its JobSet), and one short list of its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.backends.foreign.kinds import RESOURCES, foreign_of
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, ObjectNotFound
from rankfall.kube.resources import JOBSETS, PODS
from rankfall.model import NotFound
from rankfall.model.foreign import Foreign, Target

RUN_LABEL: Final = "rankfall.dev/run"
_NEEDED: Final = {
    "jobset": "JobSet",
    "trainjob": "Kubeflow Trainer",
    "pytorchjob": "the training operator of Kubeflow (v1)",
    "tfjob": "the training operator of Kubeflow (v1)",
    "mpijob": "the training operator of Kubeflow (v1)",
}


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A target that is there.

    Attributes:
        foreign: what is known of it.
        run: the run of Rankfall's that it belongs to; None = Rankfall did not make it.
    """

    foreign: Foreign
    run: str | None


async def locate(kube: Kube, target: Target, *, kubeconfig: str | None) -> Located:
    """The object that a target names.

    Args:
        kube: an open client; its namespace is the one that is meant.
        target: kind and name.
        kubeconfig: the file that was named; None = as kubectl finds them.

    Raises:
        NotFound: there is no such object, or the server has no such kind.
        Forbidden: it, or its pods, may not be read; names the right.
        KubeError: the server cannot be asked.
    """
    resource = RESOURCES[target.kind]
    try:
        item = await kube.get(resource, target.name)
    except ObjectNotFound as error:
        raise _missing(error, target, kube.namespace) from None
    except Forbidden as error:
        raise _denied(error, resource.plural, resource.group) from None
    inner = await made_set(kube, item, namespace=kube.namespace) if target.kind == "trainjob" else None
    found = msgspec.structs.replace(
        foreign_of(target.kind, item, inner=inner), context=kube.access.context, kubeconfig=kubeconfig
    )
    try:
        await kube.list(PODS, labels=found.selector or None, fields=found.fields or None)
    except Forbidden as error:
        raise _denied(error, "pods", "", also="; and get of pods/log for their lines") from None
    labels = (item.get("metadata") or {}).get("labels") or {}
    run = labels.get(RUN_LABEL) if isinstance(labels, Mapping) else None
    return Located(foreign=found, run=run if isinstance(run, str) else None)


async def made_set(kube: Kube, item: Mapping[str, Any], *, namespace: str) -> dict[str, Any] | None:
    """The JobSet that a TrainJob made: of its name, and owned by it; None while there is none.

    Raises:
        Forbidden: JobSets may not be read; names the right.
        KubeError: the server cannot be asked.
    """
    meta = item["metadata"]
    try:
        found = await kube.get(JOBSETS, meta["name"], namespace=namespace)
    except ObjectNotFound:
        return None
    except Forbidden as error:
        raise _denied(error, JOBSETS.plural, JOBSETS.group) from None
    owners = found.get("metadata", {}).get("ownerReferences") or ()
    return found if any(owner.get("uid") == meta.get("uid") for owner in owners) else None


def _missing(error: ObjectNotFound, target: Target, namespace: str) -> NotFound:
    if error.details.get("name") == target.name:
        return NotFound(
            f"there is no {target.shown} in namespace {namespace}",
            hint=f"kubectl get {RESOURCES[target.kind].plural} -A finds it; name its namespace with -n",
        )
    needed = _NEEDED.get(target.kind)
    return NotFound(
        f"the cluster serves no {RESOURCES[target.kind].plural} ({RESOURCES[target.kind].api_version})",
        hint=f"that kind comes with {needed}; is this the cluster that you mean? --context names another"
        if needed
        else None,
    )


def _denied(error: Forbidden, plural: str, group: str, *, also: str = "") -> Forbidden:
    return Forbidden(
        error.message,
        status=error.status,
        reason=error.reason,
        details=error.details,
        hint=f"it needs get, list and watch of {plural}{f' ({group})' if group else ''} in this namespace{also}",
    )
