"""Which cluster and namespace a job goes to: read from the kubeconfig once, at the submission, and pinned in the spec."""

from __future__ import annotations

import msgspec

from rankfall.backends.cluster import workspace
from rankfall.kube.kubeconfig import access_of
from rankfall.model import JobSpec


def pinned(spec: JobSpec) -> JobSpec:
    """The spec with context, namespace and the runs' folder on a workspace filled in, so that a later change of the current ones changes nothing.

    Raises:
        KubeConfigError: there is none, or it cannot be used.
    """
    access = access_of(spec.kubernetes)
    section = msgspec.structs.replace(spec.kubernetes, context=access.context, namespace=access.namespace)
    return workspace.pinned(msgspec.structs.replace(spec, kubernetes=section))
