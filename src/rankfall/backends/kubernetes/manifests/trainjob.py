"""The TrainJob of Kubeflow Trainer, on a shared runtime or its own, which has affinity, policies and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankfall.backends.kubernetes.manifests.container_command import Start
from rankfall.backends.kubernetes.manifests.jobs import Member, identity, metadata, set_spec
from rankfall.backends.kubernetes.manifests.names import TRAINER_ROLE
from rankfall.backends.kubernetes.manifests.pod import (
    container_command,
    environment,
    labels,
    mounts,
    resources,
    shared_labels,
    termination_grace_s,
    volumes,
)
from rankfall.backends.kubernetes.manifests.pod_overrides import Object, without_nodes
from rankfall.backends.kubernetes.manifests.refusals import Problem
from rankfall.backends.kubernetes.manifests.request import Request
from rankfall.kube.object_fields import JOBSET_NAME, JOBSET_ROLE
from rankfall.model import JobSpec, Kubernetes

API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
GROUP: Final = "trainer.kubeflow.org"
MANAGER: Final = "rankfall.dev/launch"
ANCESTOR: Final = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
# Most words in a command; Kubernetes's grace time.
MOST_WORDS: Final = 128
_SHARED_GRACE_S: Final = 30
_OWN_RUNTIME: Final = "leave kubernetes.runtime out: Rankfall then makes a TrainingRuntime for this job"


def own_runtime(spec: JobSpec) -> bool:
    """True if the job gets its runtime, because the spec names none."""
    return spec.kubernetes.runtime is None


def training_runtime(members: Sequence[Member]) -> Object:
    """Job's own runtime with all features of a JobSet."""
    request = trainer(members).request
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": {**identity(request), "labels": shared_labels(request)},
        "spec": {
            "mlPolicy": {"numNodes": request.count},
            "template": {"spec": set_spec(members, job_labels={TRAINER_ROLE: ANCESTOR})},
        },
    }


def trainer(members: Sequence[Member]) -> Member:
    """Training role."""
    return next(one for one in members if one.request.names.role == TRAINER_ROLE)


def trainjob(request: Request, start: Start) -> Object:
    """TrainJob."""
    section = request.spec.kubernetes
    name = section.runtime or request.names.object
    kind = "TrainingRuntime" if own_runtime(request.spec) else section.runtime_kind
    body: Object = {
        "suspend": True,
        "runtimeRef": {"apiGroup": GROUP, "kind": kind, "name": name},
        "trainer": {"numNodes": request.count},
    }
    if request.served.pod_overrides != "runtimePatches":
        # Trainer 2.2 removed the label fields.
        body["labels"] = metadata(request)["labels"]
        if section.annotations:
            body["annotations"] = dict(section.annotations)
    if not own_runtime(request.spec):
        body["trainer"] |= _trainer(request, start)
        body |= _overrides(request)
    return {"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": metadata(request), "spec": body}


def _trainer(request: Request, start: Start) -> Object:
    section = request.spec.kubernetes
    words = list(container_command(request, start))
    wanted = resources(section.resources)
    return {
        "numProcPerNode": request.spec.nproc_per_node,
        # Each list may have 128 words.
        "command": words[:3],
        "args": words[3:],
        "env": environment(request, start),
        **({"image": section.image} if section.image else {}),
        **({"resourcesPerNode": wanted} if wanted else {}),
    }


def _overrides(request: Request) -> Object:
    section = request.spec.kubernetes
    pod: Object = {}
    if held := volumes(request):
        pod["volumes"] = held
    if mounted := mounts(request.spec):
        pod["containers"] = [{"name": TRAINER_ROLE, "volumeMounts": mounted}]
    if section.service_account:
        pod["serviceAccountName"] = section.service_account
    if section.tolerations:
        pod["tolerations"] = list(section.tolerations)
    if section.node_selector:
        pod["nodeSelector"] = dict(section.node_selector)
    target = {"targetJobs": [{"name": TRAINER_ROLE}]}
    if request.served.pod_overrides in {None, "podSpecOverrides"}:
        return {"podSpecOverrides": [{**target, **pod}]}
    if section.affinity:
        pod["affinity"] = section.affinity
    pod = without_nodes(pod, request.excluded)
    if section.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in section.image_pull_secrets]
    marks: Object = {"labels": labels(request)}
    if section.annotations:
        marks["annotations"] = dict(section.annotations)
    if request.served.pod_overrides == "podTemplateOverrides":
        return {"podTemplateOverrides": [{**target, "metadata": marks, "spec": pod}]}
    replicated = [{"name": TRAINER_ROLE, "template": {"spec": {"template": {"metadata": marks, "spec": pod}}}}]
    patch = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": replicated}}}}
    return {"runtimePatches": [patch]}


def selector(request: Request) -> str:
    """Label selector of the attempt's pods."""
    if not own_runtime(request.spec) and request.served.pod_overrides in {None, "podSpecOverrides"}:
        # Its pods lack Rankfall's labels.
        return f"{JOBSET_NAME}={request.names.object},{JOBSET_ROLE}={TRAINER_ROLE}"
    return ",".join(f"{key}={value}" for key, value in request.names.labels.items())


def problems(request: Request, start: Start) -> list[Problem]:
    """Settings that this runtime does not support."""
    spec, section = request.spec, request.spec.kubernetes
    found = []
    if section.container not in {TRAINER_ROLE, Kubernetes().container}:
        found.append(
            Problem(
                path="$.kubernetes.container",
                why=f"there is no container {section.container!r}: the one that trains is called {TRAINER_ROLE!r}",
                instead="leave it out",
            )
        )
    if spec.ttl_s is not None and spec.unattended:
        found.append(
            Problem(
                path="$.ttl_s",
                why="no version of a TrainJob has a time to live, and one in its runtime would delete the JobSet of a TrainJob that remains",
                instead="leave unattended out (the supervisor then removes it), use backend jobset, or leave ttl_s out",
            )
        )
    if own_runtime(spec):
        if "TrainingRuntime" not in request.served.kinds:
            found.append(
                Problem(
                    path="$.kubernetes.runtime",
                    why="the server serves no TrainingRuntime, so Rankfall cannot create one for this job",
                    instead="name a ClusterTrainingRuntime in kubernetes.runtime",
                )
            )
        return found
    found += [
        Problem(path=path, why=f"cannot be set with runtime {section.runtime!r}", instead=_OWN_RUNTIME)
        for path in _unsaid(request)
    ]
    if len(container_command(request, start)) - 3 > MOST_WORDS:
        found.append(
            Problem(path="$.command", why=f"has too many words: a TrainJob accepts {MOST_WORDS}", instead=_OWN_RUNTIME)
        )
    return found


def _unsaid(request: Request) -> list[str]:
    spec, section, usual = request.spec, request.spec.kubernetes, Kubernetes()
    fields = ["image_pull_policy", "priority_class", "pod"]
    if request.served.pod_overrides in {None, "podSpecOverrides"}:
        fields += ["affinity", "image_pull_secrets", "labels", "annotations"]
    found = [f"$.kubernetes.{field}" for field in fields if getattr(section, field) != getattr(usual, field)]
    if spec.code_folders and spec.inside == "off":
        found.append("$.code")
    elif spec.cwd is not None and not spec.code_folders:
        found.append("$.cwd")
    if termination_grace_s(spec) > _SHARED_GRACE_S:
        found.append("$.policies.grace_s")
    if not spec.unattended:
        return found
    if spec.policies.max_restarts:
        found.append("$.policies.max_restarts")
    if spec.rules:
        found.append("$.rules")
    if spec.success.policy != "all":
        found.append("$.success.policy")
    return found


def needs_own(request: Request) -> list[str]:
    """Fields that require a separate runtime, for its note."""
    return _unsaid(request) + (["$.kubernetes.exclude_nodes"] if request.excluded else [])
