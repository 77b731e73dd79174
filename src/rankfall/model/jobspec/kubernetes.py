"""The section ``kubernetes`` of a job spec, with ``kubernetes.log_store``.

Volumes, tolerations, affinity and pod overrides are kept as they are: the API server's schema checks them.
Refused is a log store that a pod cannot write with Python's standard library, and a path that no volume
holds. Backends that start no pods do not use the section, and say so.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model.errors import SpecError
from rankfall.model.jobspec.policies import Count

GPU_RESOURCE = "nvidia.com/gpu"


class EnvSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the value of a variable comes from: one key of exactly one secret or config map of the namespace."""

    secret: str | None = None
    config_map: str | None = None
    key: str


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each slot's container gets.

    Attributes:
        gpus: number of ``gpu_resource``; stands in requests and limits alike, as Kubernetes demands.
        requests, limits: quantities by resource, as ``{"cpu": "8", "memory": "64Gi", "rdma/ib": "1"}``.
    """

    gpus: Count = 0
    gpu_resource: str = GPU_RESOURCE
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Workspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume of yours that all slots see: code is copied there, and ``rankfall cp`` copies to and from it.

    Attributes:
        claim: name of a PersistentVolumeClaim in the namespace of the job.
        path: where it is mounted in the pods.
        image: of the throw-away pod that copies, with ``sh`` and a Python 3.8; null = the job's image.
        folder: below the volume, where the runs have their folders; null = ``<user>/<name of the job>``, filled in at the
            submission.
    """

    claim: str
    path: str = "/workspace"
    image: str | None = None
    folder: str | None = None


class Kubernetes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pods of a job and where they run.

    Attributes:
        namespace, context, kubeconfig: which cluster and where in it; null = as kubectl would choose.
        queue: a local queue of Kueue.
        env_from: variables whose values are secret or shared; those of ``$.env`` are literal.
        labels, annotations: on the object and on the pods.
        exclude_nodes: names of nodes that no slot may run on.
        pod: a pod template (``metadata``, ``spec``) merged last over what Rankfall makes; lists of named things are merged by name.
        container: name of the training container; a TrainJob's runtime usually calls it ``node``.
        runtime, runtime_kind: of a TrainJob.
        master_port: port of the rendezvous in slot 0.
        workspace: a volume for code and files.
        log_store: where pods store the lines of ranks, past the API server: ``volume:/path`` or ``file:///path`` on a volume of
            theirs, or ``s3://bucket/prefix``.
        annotate: put the verdict of an attempt that fell on the job's object, as the annotation ``rankfall.dev/verdict`` and an Event.
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
    """A store.

    Attributes:
        kind: ``file``: this machine sees it by the same path; ``volume``: it may see it by another one, or not at all; ``s3``: both reach it with
            the keys of their own environment.
        path: in the pods, absolute; of ``s3`` the whole ``s3://BUCKET/PREFIX``.
    """

    kind: Literal["file", "volume", "s3"]
    path: str


def log_store_place(text: str) -> LogStorePlace:
    """What the text of the field says.

    Raises:
        SpecError: it is of another form.
    """
    for head, kind in _KINDS.items():
        path = text.removeprefix(head)
        if path != text:
            parts = path.split("/")[1:]
            if not path.startswith("/") or not all(parts) or {".", ".."} & set(parts) or not path.isprintable():
                raise SpecError(FIELD, f"{path!r} is no absolute path below /", hint="as: volume:/workspace/logs")
            return LogStorePlace(kind=kind, path=path)
    if len(text) <= _MAX and _S3.fullmatch(text) and "/../" not in f"{text}/":
        return LogStorePlace(kind="s3", path=text)
    scheme, colon, _ = text.partition("://")
    if colon and scheme in {"gs", "gcs", "az", "azure", "http", "https"}:
        raise SpecError(
            FIELD,
            f"{scheme}:// cannot be written by a pod: its recorder has Python's standard library only",
            hint="use s3://BUCKET/PREFIX with AWS_ENDPOINT_URL of an S3-compatible server, or a volume that all pods share: volume:/path",
        )
    raise SpecError(
        FIELD, f"{text[:100]!r} is no log store", hint="allowed: volume:/path, file:///path, or s3://BUCKET/PREFIX"
    )


def check_log_store(section: Kubernetes) -> None:
    """Refuse a store that cannot be one.

    Raises:
        SpecError: with what is allowed.
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
            f"{place.path!r} lies on no volume of the pods that can be written to, so the lines would end with the container",
            hint="name a path below one of kubernetes.volume_mounts, or below kubernetes.workspace.path",
        )
