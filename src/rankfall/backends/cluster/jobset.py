"""The JobSet: one replicated job. It makes the headless service itself, and can start the whole gang again without us.

JobSet 0.8 looks into ``network`` and ``successPolicy`` without asking whether they are there; where its webhooks are off nobody fills them in,
and the controller would panic for ever. So both are always written, and all other defaults of its webhooks too.
"""

from __future__ import annotations

from typing import Final

from rankfall.backends.cluster.indexed_job import child_spec, metadata
from rankfall.backends.cluster.merge import Object
from rankfall.backends.cluster.native import Native
from rankfall.backends.cluster.objects import Request

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"


def jobset(request: Request, template: Object, native: Native) -> Object:
    """The JobSet."""
    spec = request.spec
    body = {"suspend": True, **set_spec(request, template, native)}
    if spec.ttl_s is not None:
        # Of the set alone: a finished child that is removed before the set finishes would be created again.
        body["ttlSecondsAfterFinished"] = spec.ttl_s
    return {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata(request), "spec": body}


def set_spec(request: Request, template: Object, native: Native, *, job_labels: dict[str, str] | None = None) -> Object:
    """The spec of the set, also as the template of a TrainingRuntime: without suspend and TTL."""
    job: Object = {"spec": child_spec(request, template, native)}
    if job_labels:
        job["metadata"] = {"labels": job_labels}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": request.names.object},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [request.names.role]},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "failurePolicy": _failure_policy(request, native),
        "replicatedJobs": [{"name": request.names.role, "replicas": 1, "template": job}],
    }


def _failure_policy(request: Request, native: Native) -> Object:
    rules: list[Object] = []
    if native.rules:
        free = "RestartJobSetAndIgnoreMaxRestarts"
        rules.append(_rule("byPod", free if native.free else "FailJobSet", "PodFailurePolicy"))
    if request.spec.unattended and request.spec.deadlines.attempt_s is not None:
        rules.append(_rule("byDeadline", "FailJobSet", "DeadlineExceeded"))
    return {
        "maxRestarts": request.native_restarts,
        # Otherwise a new rank 0 could meet an old rank 3.
        "restartStrategy": "BlockingRecreate",
        **({"rules": rules} if rules else {}),
    }


def _rule(name: str, action: str, reason: str) -> Object:
    return {"name": name, "action": action, "onJobFailureReasons": [reason]}
