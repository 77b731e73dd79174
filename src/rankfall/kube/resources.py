"""Each used API resource and its URL paths.

Path parts are percent-encoded: names cannot change the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec

from rankfall.kube.errors import KubeConfigError

# Clients and proxies remove dot parts, even percent-encoded.
_FOLDED: Final = frozenset({"", ".", ".."})


class Resource(msgspec.Struct, frozen=True):
    """One resource of the API; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``apiVersion`` of a manifest: ``batch/v1``, or ``v1`` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the percent-encoded path; ``namespace`` None = cluster-wide, ``name`` None = the collection.

        Raises:
            KubeConfigError: A part is empty or only dots.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", _part(namespace, f"namespace of {self.plural}")]
        parts.append(self.plural)
        if name is not None:
            parts.append(_part(name, f"name of {self.kind}"))
        if subresource is not None:
            # Some have two parts, as "proxy/metrics".
            parts += [_part(piece, f"subresource of {self.kind}") for piece in subresource.split("/")]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def label(self, name: str | None = None, namespace: str | None = None) -> str:
        """Returns the name for messages: ``job default/train-1``, ``jobs in default``."""
        space = namespace if self.namespaced and namespace else ""
        name_text = f"{space and f'{space}/'}{name}" if name is not None else space
        # Requested names may be unprintable.
        name_text = name_text if name_text.isprintable() else ascii(name_text)
        if name is not None:
            return f"{self.kind.lower()} {name_text}"
        return f"{self.plural} in {name_text}" if name_text else self.plural


def _part(text: str, what: str) -> str:
    if text in _FOLDED or not _encodable(text):
        raise KubeConfigError(f"{text!r} cannot be the {what}", hint="give a name")
    return text


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
EVENTS: Final = Resource("", "v1", "events", "Event")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PVCS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
JOBS: Final = Resource("batch", "v1", "jobs", "Job")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBSETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAINJOBS: Final = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES: Final = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES: Final = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)

_KUBEFLOW: Final = "kubeflow.org"
#: Kinds that create pods, by their name in targets.
WORKLOADS: Final[Mapping[str, Resource]] = MappingProxyType(
    {
        "job": JOBS,
        "jobset": JOBSETS,
        "trainjob": TRAINJOBS,
        "pytorchjob": Resource(_KUBEFLOW, "v1", "pytorchjobs", "PyTorchJob"),
        "tfjob": Resource(_KUBEFLOW, "v1", "tfjobs", "TFJob"),
        "mpijob": Resource(_KUBEFLOW, "v1", "mpijobs", "MPIJob"),
    }
)
