"""A check as a Job, and what its pod says of it. Pure.

The Job is pinned to the node through the scheduler, not past it: where there is no room it stays Pending, and that is "cannot tell". It tolerates our taint
and a cordon, has no account and no privilege, and ends by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from rankfall.health.checks.table import CANNOT_TELL, Check, script_text
from rankfall.model import numbers
from rankfall.model.health import shown

LABEL_CHECK: Final = "rankfall.dev/check"
LABEL_NODE: Final = "rankfall.dev/check-node"
_KEPT_S: Final = 3_600
# What a shell says of a program that it cannot start.
_NOT_STARTED: Final = frozenset({126, 127, 128})
_PROGRAM: Final = "check"

Object = dict[str, Any]
Outcome = Literal["passed", "failed", "unable"]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one check; ``unable`` = it could not be made, which is no pass."""

    check: str
    outcome: Outcome
    text: str


def job_name(check: Check, node: str, *, round_: str, rank: int = 0) -> str:
    """The same for the same check of the same round, so that whoever asks again finds it."""
    digest = hashlib.sha256(f"{node}\0{round_}\0{rank}".encode()).hexdigest()[:12]
    return f"rankfall-check-{check.name}-{digest}"


def job(
    check: Check,
    node: str,
    *,
    name: str,
    namespace: str,
    gpus: int,
    keys: Collection[str],
    rank: int = 0,
    master: str | None = None,
) -> Object:
    """The Job.

    Args:
        check: what is run.
        node: where.
        name: of the Job.
        namespace: of the Job.
        gpus: that the node offers.
        keys: of our taints.
        rank: 0 = the node in question, 1 = the one that is known to be good.
        master: address of rank 0; None = its own.
    """
    labels = {LABEL_CHECK: check.name, LABEL_NODE: hashlib.sha256(node.encode()).hexdigest()[:16]}
    env = {
        **check.env,
        "EXPECTED": "" if check.expected is None else f"{check.expected:g}",
        "GPUS": str(gpus),
        "NODE": node,
        "NODE_RANK": str(rank),
        **({"SCRIPT": script_text(check.script)} if check.script else {}),
        **({"MASTER": master} if master else {}),
    }
    variables: list[Object] = [{"name": key, "value": value} for key, value in env.items()]
    if master is None:
        variables.append({"name": "MASTER", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    container: Object = {
        "name": _PROGRAM,
        "image": check.image,
        "command": list(check.command),
        "env": variables,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - of the container
    }
    if check.gpus:
        container["resources"] = {"limits": {check.gpu_resource: str(gpus)}}
    passes = [*sorted(keys), "node.kubernetes.io/unschedulable", check.gpu_resource, *check.tolerate]
    pod: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": check.timeout_s,
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": check.host_network,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"key": key, "operator": "Exists"} for key in passes],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
        ]}}},
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def gpus_of(node: Mapping[str, Any], resource: str) -> int:
    """How many GPUs a Node offers now."""
    found = ((node.get("status") or {}).get("allocatable") or {}).get(resource, 0)
    return numbers.whole(str(found)[:20]) or 0


def result(check: Check, pod: Mapping[str, Any]) -> CheckResult | None:
    """What a pod that is over says; None = it is not over."""
    status = pod.get("status") or {}
    phase, reason = status.get("phase"), str(status.get("reason") or "")
    if phase not in {"Succeeded", "Failed"}:
        return None
    ended = next((state for each in status.get("containerStatuses") or () if (state := (each.get("state") or {}).get("terminated"))), None)  # fmt: skip
    said = _last_lines(str((ended or {}).get("message") or ""))
    if reason == "DeadlineExceeded":
        return _is(check, "failed", f"was not over after {check.timeout_s} s", said)
    if phase == "Succeeded":
        return _is(check, "passed", "", said)
    if reason or ended is None:
        return _is(
            check, "unable", f"its pod was ended: {reason or 'no container ran'}", str(status.get("message") or "")
        )
    code, why = ended.get("exitCode"), str(ended.get("reason") or "")
    if code == CANNOT_TELL or code in _NOT_STARTED or why in {"OOMKilled", "ContainerCannotRun", "StartError"}:
        return _is(
            check, "unable", f"ended with {code} ({why})" if why not in {"", "Error"} else f"ended with {code}", said
        )
    return _is(check, "failed", f"ended with {code}", said)


def waiting(pods: Sequence[Mapping[str, Any]]) -> str:
    """Why the pod of a check does not run."""
    if not pods:
        return "no pod was made"
    status = pods[0].get("status") or {}
    told = [f"{each.get('reason')}: {each.get('message')}" for each in status.get("conditions") or () if each.get("status") == "False" and each.get("message")]  # fmt: skip
    told += [f"{state.get('reason')}: {state.get('message', '')}" for each in status.get("containerStatuses") or () if (state := (each.get("state") or {}).get("waiting"))]  # fmt: skip
    return shown("; ".join(told) or str(status.get("phase") or "unknown"))


def running(pod: Mapping[str, Any]) -> bool:
    """Whether its program has begun."""
    return (pod.get("status") or {}).get("phase") == "Running"


def address(pod: Mapping[str, Any]) -> str | None:
    """Where it can be reached; None = not known yet."""
    found = (pod.get("status") or {}).get("podIP")
    return str(found) if found else None


def _is(check: Check, outcome: Outcome, *parts: str) -> CheckResult:
    return CheckResult(check=check.name, outcome=outcome, text=shown(": ".join(part for part in parts if part)))


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-3:])
