"""The table of checks, the Job of a check, and its result.

Without room a Job stays Pending, which means ``unable``. The Job has no account and no privilege.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model import decoding, numbers
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import printable

#: Exit code for no result, which is no pass.
CANNOT_TELL: Final = 75

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?$(?!\n)")]
_Word = Annotated[str, msgspec.Meta(max_length=65_536)]
_Limit = Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: a Job on the node.

    Attributes:
        image: Image with the command.
        command: Exits with 0 for passed, 75 for no result, anything else for failed.
        env: Environment, in addition to ``EXPECTED``, ``GPUS``, ``NODE``, ``NODE_RANK``, ``MASTER`` and ``SCRIPT``.
        script: Packaged file whose text is in ``SCRIPT``.
        expected: Expected number: GPUs, GB/s.
        needs_expected: True if that number is required.
        gpus: True to get all GPUs (``gpu_resource``).
        nodes: 2 if it needs a second, healthy node.
        timeout_s: Seconds until an unfinished check has failed.
        wait_s: Seconds until an unstarted check is not possible.
        host_network: True if it uses the node's links.
        tolerate: Keys of further tolerated taints.
    """

    name: _Name
    image: _Word
    command: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1)]
    env: dict[str, _Word] = {}
    script: str | None = None
    expected: float | None = None
    needs_expected: bool = False
    gpus: bool = False
    gpu_resource: str = "nvidia.com/gpu"
    nodes: Literal[1, 2] = 1
    timeout_s: _Limit = 60
    wait_s: _Limit = 120
    host_network: bool = False
    tolerate: tuple[str, ...] = ()


def checks_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Check, ...]:
    """Returns the checks of an operator's file; a packaged name supplies unchanged fields.

    Raises:
        SpecError: Names file, check and field.
    """
    found: list[Check] = []
    for number, row in enumerate(rows, start=1):
        name = row.get("name")
        place = f"{origin}: check {number}" + (f" ({printable(name, 40)})" if isinstance(name, str) else "")
        before: dict[str, Any] = packaged_checks().get(name, {}) if isinstance(name, str) else {}
        env = {**before.get("env", {}), **row["env"]} if isinstance(row.get("env"), dict) else before.get("env", {})
        try:
            check = decoding.convert(
                {**before, **row, **({} if "env" in row and not isinstance(row["env"], dict) else {"env": env})}, Check
            )
        except msgspec.ValidationError as error:
            raise SpecError(
                place, printable(str(error)), hint=f"use a packaged check: {', '.join(packaged_checks())}"
            ) from None
        if check.needs_expected and check.expected is None:
            raise SpecError(
                f"{place}: expected",
                "is missing: the check compares its result with this number",
                hint="set it, as expected = 8",
            )
        if check.script is not None and check.script not in _scripts():
            raise SpecError(f"{place}: script", f"there is no packaged script {printable(check.script, 40)}")
        if check.name in {each.name for each in found}:
            raise SpecError(f"{place}: name", "there is a check of this name in this file already")
        found.append(check)
    return tuple(found)


@cache
def packaged_checks() -> dict[str, dict[str, Any]]:
    """Returns the packaged rows by name, without the image and the expected number, which only an operator knows."""
    table = tomllib.loads(_data("checks.toml"))
    return {name: {"name": name, **row} for name, row in table.items()}


def script_text(name: str) -> str:
    """Returns a packaged script."""
    return _data(name)


def _scripts() -> frozenset[str]:
    return frozenset(row["script"] for row in packaged_checks().values() if "script" in row)


def _data(name: str) -> str:
    return resources.files("rankfall.nodes").joinpath("data", name).read_text("utf-8")


LABEL_CHECK: Final = "rankfall.dev/check"
LABEL_NODE: Final = "rankfall.dev/check-node"
_KEPT_S: Final = 3_600
# Shell exit codes for a program that cannot start.
_NOT_STARTED: Final = frozenset({126, 127, 128})
_PROGRAM: Final = "check"

Object = dict[str, Any]
Outcome = Literal["passed", "failed", "unable"]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check; ``unable`` (not possible) is no pass."""

    check: str
    outcome: Outcome
    text: str


def job_name(check: Check, node: str, *, round_: str, rank: int = 0) -> str:
    """Returns the name of a Job, equal for the same check of the same round."""
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
    """Returns the Job of a check.

    ``keys``: tolerated taint keys. In a check of two nodes, ``rank`` 1 is the healthy node and ``master`` the address
    of rank 0, None on rank 0.
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
    """Returns the number of GPUs that a Node offers now."""
    found = ((node.get("status") or {}).get("allocatable") or {}).get(resource, 0)
    return numbers.whole(str(found)[:20]) or 0


def result(check: Check, pod: Mapping[str, Any]) -> CheckResult | None:
    """Returns the result of a finished pod; None if the pod has not finished."""
    status = pod.get("status") or {}
    phase, reason = status.get("phase"), str(status.get("reason") or "")
    if phase not in {"Succeeded", "Failed"}:
        return None
    ended = next((state for each in status.get("containerStatuses") or () if (state := (each.get("state") or {}).get("terminated"))), None)  # fmt: skip
    text = _last_lines(str((ended or {}).get("message") or ""))
    if reason == "DeadlineExceeded":
        return _is(check, "failed", f"had not ended after {check.timeout_s} s", text)
    if phase == "Succeeded":
        return _is(check, "passed", "", text)
    if reason or ended is None:
        return _is(
            check, "unable", f"its pod was ended: {reason or 'no container ran'}", str(status.get("message") or "")
        )
    code, why = ended.get("exitCode"), str(ended.get("reason") or "")
    if code == CANNOT_TELL or code in _NOT_STARTED or why in {"OOMKilled", "ContainerCannotRun", "StartError"}:
        return _is(
            check, "unable", f"ended with {code} ({why})" if why not in {"", "Error"} else f"ended with {code}", text
        )
    return _is(check, "failed", f"ended with {code}", text)


def waiting(pods: Sequence[Mapping[str, Any]]) -> str:
    """Returns the reason why the pod of a check does not run."""
    if not pods:
        return "the Job has no pod"
    status = pods[0].get("status") or {}
    reasons = [f"{each.get('reason')}: {each.get('message')}" for each in status.get("conditions") or () if each.get("status") == "False" and each.get("message")]  # fmt: skip
    reasons += [f"{state.get('reason')}: {state.get('message', '')}" for each in status.get("containerStatuses") or () if (state := (each.get("state") or {}).get("waiting"))]  # fmt: skip
    return printable("; ".join(reasons) or str(status.get("phase") or "unknown"))


def running(pod: Mapping[str, Any]) -> bool:
    """True if the pod's program has begun."""
    return (pod.get("status") or {}).get("phase") == "Running"


def address(pod: Mapping[str, Any]) -> str | None:
    """Returns the pod's IP address; None if unknown yet."""
    found = (pod.get("status") or {}).get("podIP")
    return str(found) if found else None


def _is(check: Check, outcome: Outcome, *parts: str) -> CheckResult:
    return CheckResult(check=check.name, outcome=outcome, text=printable(": ".join(part for part in parts if part)))


def _last_lines(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-3:])
