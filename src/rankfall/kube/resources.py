"""Group, version, plural and kind of each API resource that Rankfall touches, and the URL paths made of them.

Every part of a path is percent-encoded, so no name can leave its place. Which versions a server has:
``discovery``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec

from rankfall.kube.errors import KubeConfigError

# A path part of dots only would be folded away by clients and proxies, percent-encoded or not.
_FOLDED: Final = frozenset({"", ".", ".."})


class Resource(msgspec.Struct, frozen=True):
    """One resource of the API.

    Attributes:
        group: empty for the core group.
        version: as ``v1``.
        plural: as it stands in paths.
        kind: as it stands in manifests.
        namespaced: whether its objects live in a namespace.
    """

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
        """The path below the server's address, every part percent-encoded.

        Args:
            namespace: None for resources without one, or for a list over all namespaces.
            name: None for the collection.
            subresource: as ``status`` or ``log``; ``name`` must be given.

        Raises:
            KubeConfigError: a part is empty or made of dots; such a path would name something else.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", _part(namespace, f"namespace of {self.plural}")]
        parts.append(self.plural)
        if name is not None:
            parts.append(_part(name, f"name of {self.kind}"))
        if subresource is not None:
            # "exec", "log" and the like; some have two parts, as "proxy/metrics".
            parts += [_part(piece, f"subresource of {self.kind}") for piece in subresource.split("/")]
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def label(self, name: str | None = None, namespace: str | None = None) -> str:
        """How messages name it: ``job default/train-1``, ``jobs in default``, ``nodes``."""
        space = namespace if self.namespaced and namespace else ""
        name_text = f"{space and f'{space}/'}{name}" if name is not None else space
        # Names of the API are harmless; those that somebody only asks for need not be.
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
JOBS: Final = Resource("batch", "v1", "jobs", "Job")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBSETS: Final = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAINJOBS: Final = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES: Final = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES: Final = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)

_KUBEFLOW: Final = "kubeflow.org"
#: Kinds of objects that make pods, by the word that targets and backends have for them.
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
