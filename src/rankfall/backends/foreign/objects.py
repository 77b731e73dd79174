"""Derives pod selector, source of ranks, number of pods and state of a foreign object.

Pure. Uses only facts proved by the manifest: names, order and indexes never determine a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from rankfall.kube.object_fields import (
    COMPLETION_INDEX,
    JOB_UID,
    JOBSET_JOB,
    JOBSET_NAME,
    JOBSET_ROLE,
    JOBSET_UID,
    TRAINING_INDEX,
    TRAINING_JOB,
    TRAINING_TYPE,
    mapping,
    mappings,
    text,
    word,
)
from rankfall.kube.resources import PODS, WORKLOADS, Resource
from rankfall.model.foreign import Foreign, PodMarks
from rankfall.rundir.cluster.workload_state import NativeState, native_state

RESOURCES: Final[dict[str, Resource]] = {**WORKLOADS, "pod": PODS}
# By kind: replicas field, container name.
_REPLICAS: Final = {"pytorchjob": "pytorchReplicaSpecs", "tfjob": "tfReplicaSpecs", "mpijob": "mpiReplicaSpecs"}
_CONTAINERS: Final = {"pytorchjob": "pytorch", "tfjob": "tensorflow"}
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
# Kubernetes's default.
_RETRIES: Final = 6
_MOST: Final = 100_000
_TORCHRUN: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def foreign_of(kind: str, item: Mapping[str, Any], *, inner: Mapping[str, Any] | None = None) -> Foreign:
    """Describes the pods of an object; ``inner`` is a TrainJob's JobSet. The caller adds the location."""
    meta = mapping(item, "metadata")
    base = Foreign(
        kind=kind,
        name=str(meta.get("name")),
        namespace=str(meta.get("namespace")),
        uid=str(meta.get("uid")),
        context="",
    )
    if kind == "pod":
        return _of_pod(base, item)
    if kind == "job":
        return _of_job(base, item)
    if kind == "jobset":
        return _of_set(base, item)
    if kind == "trainjob":
        return _of_set(base, inner) if inner is not None else _of_trainjob(base, item)
    return _of_replicas(base, item)


def _of_pod(base: Foreign, item: Mapping[str, Any]) -> Foreign:
    template = {"metadata": item.get("metadata"), "spec": item.get("spec")}
    marks = PodMarks(sizes={"pod": 1}, containers=_containers({"pod": template}))
    return msgspec.structs.replace(
        base,
        fields=f"metadata.name={base.name}",
        # A later pod of this name is another job's.
        marks=msgspec.structs.replace(marks, since=str(mapping(item, "metadata").get("creationTimestamp") or "")),
        slots={"pod": 1},
        launcher=_launcher([template]),
    )


def _of_job(base: Foreign, item: Mapping[str, Any]) -> Foreign:
    spec = mapping(item, "spec")
    template = mapping(spec, "template")
    own = mapping(mapping(spec, "selector"), "matchLabels")
    selector = ",".join(f"{name}={value}" for name, value in sorted(own.items()) if isinstance(value, str))
    count = _job_size(spec)
    indexed = spec.get("completionMode") == "Indexed"
    return msgspec.structs.replace(
        base,
        selector=selector or f"{JOB_UID}={base.uid}",
        marks=PodMarks(
            index=COMPLETION_INDEX if indexed else "",
            sizes={"worker": count},
            containers=_containers({"worker": template}),
        ),
        slots={"worker": count},
        launcher=_launcher([template]),
        ends_as_one=_never_retries(spec),
    )


def _of_set(base: Foreign, item: Mapping[str, Any]) -> Foreign:
    meta = mapping(item, "metadata")
    jobs = {str(one.get("name")): one for one in mappings(mapping(item, "spec"), "replicatedJobs")}
    inner = {role: mapping(mapping(one, "template"), "spec") for role, one in jobs.items()}
    sizes = {role: _job_size(spec) for role, spec in inner.items()}
    templates = {role: mapping(spec, "template") for role, spec in inner.items()}
    return msgspec.structs.replace(
        base,
        selector=f"{JOBSET_NAME}={meta.get('name')}",
        marks=PodMarks(
            role=JOBSET_ROLE,
            index=COMPLETION_INDEX,
            outer=JOBSET_JOB,
            sizes=sizes,
            containers=_containers(templates),
            owner=(JOBSET_UID, str(meta.get("uid"))),
            since=str(meta.get("creationTimestamp") or ""),
        ),
        slots={role: sizes[role] * _count(one.get("replicas"), 1) for role, one in jobs.items()},
        launcher=_launcher(templates.values()),
        restarts=_count(mapping(mapping(item, "spec"), "failurePolicy").get("maxRestarts"), 0),
        ends_as_one=all(_never_retries(spec) for spec in inner.values()),
    )


def _of_trainjob(base: Foreign, item: Mapping[str, Any]) -> Foreign:
    count = _count(mapping(mapping(item, "spec"), "trainer").get("numNodes"), 1)
    return msgspec.structs.replace(
        base,
        selector=f"{JOBSET_NAME}={base.name}",
        marks=PodMarks(
            role=JOBSET_ROLE,
            index=COMPLETION_INDEX,
            outer=JOBSET_JOB,
            sizes={"node": count},
            containers={"node": "node"},
            since=str(mapping(item, "metadata").get("creationTimestamp") or ""),
        ),
        slots={"node": count},
    )


def _of_replicas(base: Foreign, item: Mapping[str, Any]) -> Foreign:
    replicas = mapping(mapping(item, "spec"), _REPLICAS[base.kind])
    found = {name.lower(): mapping(replicas, name) for name in replicas}
    templates = {role: mapping(one, "template") for role, one in found.items()}
    slots = {role: _count(one.get("replicas"), 1) for role, one in found.items()} or {"worker": 1}
    return msgspec.structs.replace(
        base,
        selector=f"{TRAINING_JOB}={base.name}",
        marks=PodMarks(
            role=TRAINING_TYPE,
            index=TRAINING_INDEX,
            sizes=slots,
            containers=_containers(templates, usual=_CONTAINERS.get(base.kind)),
            since=str(mapping(item, "metadata").get("creationTimestamp") or ""),
        ),
        slots=slots,
        launcher=_launcher(templates.values()),
        ends_as_one=all(one.get("restartPolicy") == "Never" for one in found.values()),
    )


def _containers(templates: Mapping[str, Mapping[str, Any]], *, usual: str | None = None) -> dict[str, str]:
    """Training container by role: kubectl's default, else the one named ``usual``, else the first."""
    found = {}
    for role, template in templates.items():
        names = [str(one.get("name")) for one in mappings(mapping(template, "spec"), "containers")]
        named = mapping(mapping(template, "metadata"), "annotations").get(_DEFAULT_CONTAINER)
        for name in (named, usual, *names):
            if isinstance(name, str) and name in names:
                found[role] = name
                break
    return found


def _launcher(templates: Iterable[Mapping[str, Any]]) -> str:
    """Returns ``torchrun`` if any command word, also in a shell script, contains it; else ``exec``."""
    for template in templates:
        for container in mappings(mapping(template, "spec"), "containers"):
            words = [*_words(container.get("command")), *_words(container.get("args"))]
            if any(name in word for word in words for name in _TORCHRUN):
                return "torchrun"
    return "exec"


def _job_size(spec: Mapping[str, Any]) -> int:
    most = _count(spec.get("parallelism"), 1)
    return _count(spec.get("completions"), most)


def _never_retries(spec: Mapping[str, Any]) -> bool:
    return spec.get("backoffLimit", _RETRIES) == 0 and not spec.get("backoffLimitPerIndex")


def _count(value: Any, otherwise: int) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
    return value if good else otherwise


def _words(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


_OWN: Final = frozenset({"job", "jobset", "trainjob"})
_ENDS: Final = (("Failed", "failed"), ("Succeeded", "succeeded"))


def state_of(kind: str, item: Mapping[str, Any], *, inner: Mapping[str, Any] | None) -> NativeState:
    """State of an object with its ``kind``; ``inner`` is a TrainJob's JobSet."""
    if kind in _OWN:
        return native_state(item, inner=inner)
    meta = item.get("metadata") or {}
    found = _state_of_pod(item) if kind == "pod" else _of_conditions(item)
    return msgspec.structs.replace(found, deleting=bool(meta.get("deletionTimestamp")))


def _state_of_pod(item: Mapping[str, Any]) -> NativeState:
    status = item.get("status") or {}
    phase = status.get("phase")
    if phase not in {"Succeeded", "Failed"}:
        return NativeState(phase="going", start="0/")
    return NativeState(
        phase="failed" if phase == "Failed" else "succeeded",
        start="0/",
        reason=word(status.get("reason")),
        message=text(status.get("message")),
    )


def _of_conditions(item: Mapping[str, Any]) -> NativeState:
    conditions = (item.get("status") or {}).get("conditions")
    held = (
        {one.get("type"): one for one in conditions if isinstance(one, Mapping)} if isinstance(conditions, list) else {}
    )
    for name, phase in _ENDS:
        end = held.get(name)
        if end is not None and end.get("status") == "True":
            return NativeState(
                phase="failed" if phase == "failed" else "succeeded",
                start="0/",
                reason=word(end.get("reason")),
                message=text(end.get("message")),
                at=word(end.get("lastTransitionTime")),
            )
    # A suspended job's pods are deleted.
    policy = (item.get("spec") or {}).get("runPolicy") or {}
    return NativeState(phase="suspended" if policy.get("suspend") is True else "going", start="0/")
