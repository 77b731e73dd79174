"""What a job asks of Kubernetes: the section ``kubernetes`` of a job. Backends that start no pods do not use it, and say so.

Pieces that Kubernetes defines (volumes, tolerations, affinity, pod overrides) are kept as they are: its own schema checks them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from rankfall.model.policies import Count

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
