"""The JobSet: one replicated job for each role. It makes the headless service itself, and can start the whole gang again without us.

JobSet 0.8 looks into ``network`` and ``successPolicy`` without asking whether they are there; where its webhooks are off nobody fills them in,
and the controller would panic for ever. So both are always written, and all other defaults of its webhooks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rankfall.backends.cluster.indexed_job import child_spec, metadata
from rankfall.backends.cluster.member import Member
from rankfall.backends.cluster.merge import Object
from rankfall.backends.cluster.native import Native
from rankfall.backends.cluster.objects import Request

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"


def jobset(members: Sequence[Member]) -> Object:
    """The JobSet of all roles."""
    request = members[0].request
    spec = request.spec
    body = {"suspend": True, **set_spec(members)}
    if spec.ttl_s is not None:
        # Of the set alone: a finished child that is removed before the set finishes would be created again.
        body["ttlSecondsAfterFinished"] = spec.ttl_s
    return {"apiVersion": API_VERSION, "kind": "JobSet", "metadata": metadata(request), "spec": body}


def set_spec(members: Sequence[Member], *, job_labels: Mapping[str, dict[str, str]] | None = None) -> Object:
    """The spec of the set, also as the template of a TrainingRuntime: without suspend and TTL.

    Args:
        members: the roles.
        job_labels: labels of the jobs of some roles, by the role's name in the set.
    """
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
    """The roles whose end is the success of the set. A supervised set ends by itself only when all of it has ended: its drain is ours."""
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
        # Otherwise a new rank 0 could meet an old rank 3.
        "restartStrategy": "BlockingRecreate",
        **({"rules": rules} if rules else {}),
    }


def _rule(name: str, action: str, reason: str) -> Object:
    return {"name": name, "action": action, "onJobFailureReasons": [reason]}
