"""The Indexed Job and the JobSet with headless service and config map.

Writes every field with a default: JobSet 0.8 panics without ``network`` and ``successPolicy``. Workloads are created
suspended.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rankfall.backends.kubernetes.manifests.container_command import Start
from rankfall.backends.kubernetes.manifests.names import ANNOTATION_REQUEST
from rankfall.backends.kubernetes.manifests.native_policies import Native
from rankfall.backends.kubernetes.manifests.pod import BUNDLE_KEY, CODE_KEY, labels, shared_labels
from rankfall.backends.kubernetes.manifests.pod_overrides import Object
from rankfall.backends.kubernetes.manifests.refusals import QUEUE_LABEL
from rankfall.backends.kubernetes.manifests.request import Request, request_token
from rankfall.model import JobSpec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One role: request, container command, native policies and pod template."""

    request: Request
    start: Start
    policies: Native
    pod: Object


# backoffLimitPerIndex and podReplacementPolicy: on since 1.29, older servers drop them silently.
PER_INDEX_SINCE: Final = 29


def indexed_job(request: Request, template: Object, native: Native) -> Object:
    """Job."""
    spec = request.spec
    body = {"suspend": True, **child_spec(request, template, native)}
    if spec.ttl_s is not None:
        body["ttlSecondsAfterFinished"] = spec.ttl_s
    about = metadata(request, marks=labels(request))
    # With several roles each is a Job.
    about["name"] = request.names.workload
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": body}


def child_spec(request: Request, template: Object, native: Native) -> Object:
    """Job's spec without suspend and TTL, which a JobSet sets itself."""
    return {
        "completionMode": "Indexed",
        "completions": request.count,
        "parallelism": request.count,
        **_retries(request, by_rule=bool(native.rules)),
        **({"podFailurePolicy": {"rules": list(native.rules)}} if native.rules else {}),
        **({"successPolicy": native.success} if native.success else {}),
        **_deadline(request.spec),
        "template": template,
    }


def _retries(request: Request, *, by_rule: bool) -> Object:
    spec = request.spec
    per_index = request.served.at_least(PER_INDEX_SINCE)
    # A terminating pod's successor must not meet it.
    replacement = {"podReplacementPolicy": "Failed"} if per_index else {}
    if spec.unattended:
        # A set restarts its jobs itself.
        own = request.native_restarts if spec.backend == "job" else 0
        # Without rules, a pod stuck on a dead node fails immediately.
        return {"backoffLimit": own, **(replacement if by_rule else {})}
    restarts = _of_one_slot(spec) if spec.alone else 0
    if per_index:
        # A failed pod does not end its peers, which can still report.
        return {"backoffLimitPerIndex": restarts, **replacement}
    return {"backoffLimit": restarts}


def _of_one_slot(spec: JobSpec) -> int:
    """Most restarts of one slot by the supervisor, within and outside ``max_restarts``."""
    free = {rule.budget for rule in spec.rules if rule.action == "ignore" and rule.budget is not None}
    return spec.policies.max_restarts + sum(spec.policies.budgets.get(name, 0) for name in free)


def _deadline(spec: JobSpec) -> Object:
    """Deadline of unsupervised jobs; a supervisor's work would count too."""
    attempt = spec.deadlines.attempt_s
    return {"activeDeadlineSeconds": math.ceil(attempt)} if spec.unattended and attempt is not None else {}


def metadata(request: Request, *, marks: dict[str, str] | None = None) -> Object:
    """Workload's metadata; ``marks`` are its labels, by default the whole job's."""
    spec = request.spec
    marks = shared_labels(request) if marks is None else marks
    if spec.kubernetes.queue is not None:
        marks[QUEUE_LABEL] = spec.kubernetes.queue
    return {
        **identity(request),
        "labels": marks,
        "annotations": {**spec.kubernetes.annotations, ANNOTATION_REQUEST: request_token(request.token)},
    }


def identity(request: Request) -> Object:
    """Returns name and namespace, equal for all objects of an attempt."""
    return {"name": request.names.object, "namespace": request.namespace}


def service(request: Request) -> Object:
    """Headless service; the rendezvous needs names before readiness."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**identity(request), "labels": shared_labels(request)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(request.names.labels)},
    }


def config_map(request: Request, bundle: bytes, code: bytes | None = None) -> Object:
    """Config map: recorder and small code."""
    data: dict[str, Any] = {BUNDLE_KEY: base64.b64encode(bundle).decode()}
    if code is not None:
        data[CODE_KEY] = base64.b64encode(code).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**identity(request), "labels": shared_labels(request)},
        "immutable": True,
        "binaryData": data,
    }


API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"


def jobset(members: Sequence[Member]) -> Object:
    """JobSet of all roles."""
    request = members[0].request
    spec = request.spec
    body = {"suspend": True, **set_spec(members)}
    if spec.ttl_s is not None:
        # Only on the set, which would recreate a removed child.
        body["ttlSecondsAfterFinished"] = spec.ttl_s
    return {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata(request), "spec": body}


def set_spec(members: Sequence[Member], *, job_labels: Mapping[str, dict[str, str]] | None = None) -> Object:
    """Set's spec without suspend and TTL; ``job_labels`` by role name."""
    request = members[0].request
    jobs = []
    for member in members:
        job: Object = {"spec": child_spec(member.request, member.pod, member.policies)}
        role = member.request.names.role
        if job_labels and role in job_labels:
            job["metadata"] = {"labels": job_labels[role]}
        jobs.append({"name": role, "replicas": 1, "template": job})
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": request.names.object},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": _targets(members)},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": _failure_policy(request, [member.policies for member in members]),
        "replicatedJobs": jobs,
    }


def _targets(members: Sequence[Member]) -> list[str]:
    """Roles whose success makes the JobSet succeed; with a supervisor all roles."""
    spec = members[0].request.gang.spec
    counted = spec.success.role
    if spec.success.policy == "rank0":
        counted = spec.role_of(spec.head_slot)
    everyone = not spec.unattended or counted is None
    return [one.request.names.role for one in members if everyone or one.request.part.name == counted]


def _failure_policy(request: Request, policies: Sequence[Native]) -> Object:
    rules: list[Object] = []
    if any(native.rules for native in policies):
        free = "RestartJobSetAndIgnoreMaxRestarts"
        rules.append(
            _rule("byPod", free if any(native.free for native in policies) else "FailJobSet", "PodFailurePolicy")
        )
    if request.spec.unattended and request.spec.deadlines.attempt_s is not None:
        rules.append(_rule("byDeadline", "FailJobSet", "DeadlineExceeded"))
    return {
        "maxRestarts": request.native_restarts,
        # Otherwise new and old ranks could meet.
        "restartStrategy": "BlockingRecreate",
        **({"rules": rules} if rules else {}),
    }


def _rule(name: str, action: str, reason: str) -> Object:
    return {"name": name, "action": action, "onJobFailureReasons": [reason]}
