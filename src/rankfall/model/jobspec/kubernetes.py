"""The section ``kubernetes`` of a job spec, with ``kubernetes.log_store``.

The API server checks volumes, tolerations, affinity and pod overrides. Pods write log stores with Python's standard
library.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model.errors import SpecError
from rankfall.model.jobspec.policies import Count, JobStruct

GPU_RESOURCE = "nvidia.com/gpu"


class EnvSource(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Value of a variable: one key of exactly one secret or config map.

    Attributes:
        secret, config_map: Name of the object.
        key: Key in it.
    """

    secret: str | None = None
    config_map: str | None = None
    key: str


class Resources(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resources of each container.

    Attributes:
        gpus: Number of ``gpu_resource``, in requests and limits.
        gpu_resource: Name of the device plugin's resource.
        requests, limits: Quantities, as ``{"cpu": "8", "memory": "64Gi", "rdma/ib": "1"}``.
    """

    gpus: Count = 0
    gpu_resource: str = GPU_RESOURCE
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Workspace(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume visible to all slots, for code and ``rankfall cp``.

    Attributes:
        claim: PersistentVolumeClaim in the job's namespace.
        path: Mount path in the pods.
        image: Image of the copying pod, with ``sh`` and Python 3.8; null = the job's.
        folder: Runs' folder on the volume; null = ``<user>/<name of the job>``, set at submission.
    """

    claim: str
    path: str = "/workspace"
    image: str | None = None
    folder: str | None = None


class Kubernetes(JobStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of a job and their place.

    Attributes:
        image: Image of the training container; null only with a TrainJob whose runtime has one.
        image_pull_policy, image_pull_secrets: As in a pod's spec; null = the cluster's default.
        service_account, priority_class, affinity: As in a pod's spec; null = none.
        volumes, volume_mounts, tolerations, node_selector: As in a pod's spec.
        resources: Of each container.
        namespace, context, kubeconfig: Cluster and namespace; null = kubectl's choice.
        queue: Local queue of Kueue.
        env_from: Secret or shared variables; ``$.env`` has literals.
        labels, annotations: Set on object and pods.
        exclude_nodes: Forbidden nodes.
        pod: Pod template (``metadata``, ``spec``) merged last; named lists merge by name.
        container: Name of the training container, usually ``node`` in a TrainJob's runtime.
        runtime, runtime_kind: Runtime of a TrainJob.
        master_port: Rendezvous port in slot 0.
        workspace: Volume for code and files.
        log_store: Store of the ranks' lines, bypassing the API server: ``volume:/path``, ``file:///path``, or
            ``s3://bucket/prefix``.
        annotate: Put a failed attempt's verdict on the job's object: annotation ``rankfall.dev/verdict`` and Event.
    """

    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: tuple[str, ...] = ()
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    service_account: str | None = None
    priority_class: str | None = None
    queue: str | None = None
    env_from: dict[str, EnvSource] = {}
    resources: Resources = Resources()
    volumes: tuple[dict[str, Any], ...] = ()
    volume_mounts: tuple[dict[str, Any], ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    exclude_nodes: tuple[str, ...] = ()
    pod: dict[str, Any] = {}
    container: str = "main"
    runtime: str | None = None
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 29500
    workspace: Workspace | None = None
    log_store: str | None = None
    annotate: bool = False


FIELD: Final = "$.kubernetes.log_store"
_MAX: Final = 1024
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=+-]+)*/?")
_KINDS: Final[dict[str, Literal["file", "volume"]]] = {"file://": "file", "volume:": "volume"}


class LogStorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A log store.

    Attributes:
        kind: ``file``: same path on this machine; ``volume``: other path here or none; ``s3``: keys from each
            environment.
        path: Absolute path in the pods, or ``s3://BUCKET/PREFIX``.
    """

    kind: Literal["file", "volume", "s3"]
    path: str


def log_store_place(text: str) -> LogStorePlace:
    """Parses the field.

    Raises:
        SpecError: The text has another form.
    """
    for head, kind in _KINDS.items():
        path = text.removeprefix(head)
        if path != text:
            parts = path.split("/")[1:]
            if not path.startswith("/") or not all(parts) or {".", ".."} & set(parts) or not path.isprintable():
                raise SpecError(FIELD, f"{path!r} is not an absolute path below /", hint="as: volume:/workspace/logs")
            return LogStorePlace(kind=kind, path=path)
    if len(text) <= _MAX and _S3.fullmatch(text) and "/../" not in f"{text}/":
        return LogStorePlace(kind="s3", path=text)
    scheme, colon, _ = text.partition("://")
    if colon and scheme in {"gs", "gcs", "az", "azure", "http", "https"}:
        raise SpecError(
            FIELD,
            f"{scheme}:// is not supported: the recorder in a pod has only Python's standard library",
            hint="use s3://BUCKET/PREFIX with AWS_ENDPOINT_URL of an S3-compatible server, or a volume that all pods share: volume:/path",
        )
    raise SpecError(
        FIELD, f"{text[:100]!r} is not a log store", hint="allowed: volume:/path, file:///path, or s3://BUCKET/PREFIX"
    )


def check_log_store(section: Kubernetes) -> None:
    """Refuses an unusable store.

    Raises:
        SpecError: Names allowed stores.
    """
    if section.log_store is None:
        return
    place = log_store_place(section.log_store)
    if place.kind == "s3":
        return
    mounts = [mount["mountPath"] for mount in section.volume_mounts if not mount.get("readOnly")]
    if section.workspace is not None:
        mounts.append(section.workspace.path)
    if not any(place.path == mount.rstrip("/") or place.path.startswith(f"{mount.rstrip('/')}/") for mount in mounts):
        raise SpecError(
            FIELD,
            f"{place.path!r} is on no writable volume of the pods, so its lines would be lost with the container",
            hint="name a path below one of kubernetes.volume_mounts, or below kubernetes.workspace.path",
        )
