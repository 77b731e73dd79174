"""Which cluster and namespace a job goes to: read from the kubeconfig once, at the submission, and pinned in the spec."""

from __future__ import annotations

import msgspec

from rankfall.kube.access import Access
from rankfall.kube.kubeconfig import load_access
from rankfall.model import JobSpec


def access_of(spec: JobSpec) -> Access:
    """How to reach the cluster that the spec names, or the one that kubectl would choose now.

    Raises:
        KubeConfigError: there is none, or it cannot be used.
    """
    section = spec.kubernetes
    return load_access(kubeconfig=section.kubeconfig, context=section.context, namespace=section.namespace)


def pinned(spec: JobSpec) -> JobSpec:
    """The spec with context and namespace filled in, so that a later change of the current ones changes nothing.

    Raises:
        KubeConfigError: there is none, or it cannot be used.
    """
    access = access_of(spec)
    section = msgspec.structs.replace(spec.kubernetes, context=access.context, namespace=access.namespace)
    return msgspec.structs.replace(spec, kubernetes=section)
