"""The temporary pod that mounts a volume during copies.

The pod exits after a minute without activity. A pod that will never run is refused early.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec

from rankfall.backends.kubernetes.lifecycle.ownership import Object, meta, uid_of
from rankfall.backends.kubernetes.manifests.pod import MANAGED_BY
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, KubeError, ObjectNotFound
from rankfall.kube.resources import EVENTS, PODS, PVCS
from rankfall.kube.secret import excerpt
from rankfall.model import InfrastructureError

Say = Callable[[str], None]

LABEL_TRANSFER: Final = "rankfall.dev/transfer"
CONTAINER: Final = "mover"
SCRATCH: Final = "/rankfall-run"
KEEP_ALIVE_FILE: Final = f"{SCRATCH}/beat"
# Idle seconds: several ping intervals.
IDLE_S: Final = 60
# Longest life, seconds; the transfer continues in another.
_DEADLINE_S: Final = 12 * 3600
_GRACE_S: Final = 3
_LOOK_S: Final = 0.5
# Seconds; an autoscaler takes longer, images can be large.
UNSCHEDULABLE_S: Final = 30.0
_STARTING_S: Final = 600.0
_EVENTS_AFTER_S: Final = 5.0
_GONE_S: Final = 30.0

# $1: seconds. Plain POSIX.
_POD_SCRIPT: Final = f"""\
trap 'exit 0' TERM INT
left=$1
while [ "$left" -gt 0 ]; do
  sleep 1 & wait $!
  if [ -e {KEEP_ALIVE_FILE} ]; then rm -f {KEEP_ALIVE_FILE}; left=$1; else left=$((left - 1)); fi
done
"""
_NEVER: Final = frozenset(
    {
        "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
        "RunContainerError", "StartError", "ImageInspectError", "CrashLoopBackOff",
    }
)  # fmt: skip
_ELSEWHERE: Final = ("FailedAttachVolume", "FailedMount", "FailedMapVolume")


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and the settings of a pod that mounts it.

    Attributes:
        claim: Name of the PersistentVolumeClaim.
        namespace: Namespace of claim and pod.
        path: Mount path.
        image: Image with ``sh`` and Python 3.8.
        python: Interpreter to try first.
        pod, container: Copied fields.
    """

    claim: str
    namespace: str
    path: str
    image: str
    python: str | None = None
    pod: Mapping[str, Any] = {}
    container: Mapping[str, Any] = {}


def manifest(volume: Volume, *, name: str, transfer: str, node: str | None = None) -> Object:
    """Pod; ``node`` has the volume attached, None = any."""
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        **volume.container.get("securityContext", {}),
    }
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    pin = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": volume.namespace,
            "labels": {**MANAGED_BY, LABEL_TRANSFER: transfer},
        },
        "spec": {
            **volume.pod,
            **({"affinity": pin} if node is not None else {}),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _DEADLINE_S,
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": CONTAINER,
                    "image": volume.image,
                    **volume.container,
                    "command": ["sh", "-c", _POD_SCRIPT, "rankfall", str(IDLE_S)],
                    "securityContext": security,
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "512Mi"},
                    },
                    "volumeMounts": [
                        {"name": "workspace", "mountPath": volume.path},
                        {"name": "scratch", "mountPath": SCRATCH},
                    ],
                }
            ],
            "volumes": [
                {"name": "workspace", "persistentVolumeClaim": {"claimName": volume.claim}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
    }


@contextlib.asynccontextmanager
async def running(
    kube: Kube, volume: Volume, *, say: Say, unschedulable_s: float = UNSCHEDULABLE_S
) -> AsyncIterator[str]:
    """Yields the name of a new running pod; always removes the pod at the end.

    Raises:
        InfrastructureError: The pod will not run; names the reason.
    """
    node = await _node_of(kube, volume)
    await _sweep(kube, volume.namespace)
    transfer = os.urandom(5).hex()
    name = f"rankfall-cp-{transfer}"
    body = manifest(volume, name=name, transfer=transfer, node=node)
    try:
        try:
            await kube.create(PODS, body)
        except ApiError as error:
            raise InfrastructureError(
                f"the pod that copies cannot be created: {error.message}",
                hint="check rights, quota and pod security: docs/kubernetes.md#code-and-files",
            ) from error
        await _until_running(kube, volume, name=name, say=say, unschedulable_s=unschedulable_s)
        yield name
    finally:
        await asyncio.shield(asyncio.create_task(_remove(kube, name, namespace=volume.namespace, say=say)))


async def alive(kube: Kube, name: str, *, namespace: str) -> bool:
    """True if the pod still runs."""
    try:
        found = await kube.get(PODS, name, namespace=namespace)
    except ObjectNotFound:
        return False
    return _status(found).get("phase") == "Running" and not meta(found).get("deletionTimestamp")


async def _node_of(kube: Kube, volume: Volume) -> str | None:
    """Node of an attached single-node volume; None = any.

    Raises:
        InfrastructureError: No such claim, or exclusively used.
    """
    try:
        claim = await kube.get(PVCS, volume.claim, namespace=volume.namespace)
    except ObjectNotFound as error:
        raise InfrastructureError(
            error.message, hint=f"create it, or name another claim of namespace {volume.namespace}"
        ) from error
    phase = _status(claim).get("phase")
    if phase == "Lost" or meta(claim).get("deletionTimestamp"):
        raise InfrastructureError(
            f"claim {volume.claim} cannot be used: {'it is being deleted' if phase != 'Lost' else 'its volume is lost'}",
            hint="name another claim",
        )
    modes = set(_dict(claim.get("spec")).get("accessModes") or ())
    if modes & {"ReadWriteMany", "ReadOnlyMany"}:
        return None
    for pod in (await kube.list(PODS, namespace=volume.namespace)).items:
        place = _dict(pod.get("spec")).get("nodeName")
        if not place or _status(pod).get("phase") in {"Succeeded", "Failed"} or not _uses(pod, volume.claim):
            continue
        if modes == {"ReadWriteOncePod"}:
            raise InfrastructureError(
                f"claim {volume.claim} is used by pod {meta(pod).get('name')}, and only one pod may use it (ReadWriteOncePod)",
                hint="copy when that pod has ended, or use a claim with ReadWriteMany",
            )
        return str(place)
    return None


def _uses(pod: Object, claim: str) -> bool:
    volumes = _dict(pod.get("spec")).get("volumes") or ()
    return any(_dict(one.get("persistentVolumeClaim")).get("claimName") == claim for one in volumes)


async def _until_running(kube: Kube, volume: Volume, *, name: str, say: Say, unschedulable_s: float) -> None:
    began = time.monotonic()
    reported, events = "", True
    while True:
        pod = await kube.get(PODS, name, namespace=volume.namespace)
        phase = _status(pod).get("phase")
        if phase == "Running":
            return
        waits = _waits(pod)
        reason, text = waits
        passed = time.monotonic() - began
        if phase in {"Failed", "Succeeded"} or reason in _NEVER:
            raise _never(volume, f"{reason}: {text}" if text else reason or str(phase))
        if reason == "Unschedulable" and passed > unschedulable_s:
            raise _never(volume, f"no node accepts it: {text}")
        if passed > _STARTING_S:
            raise _never(volume, f"it did not start within {_STARTING_S:.0f} s: {reason or phase}")
        if events and passed > _EVENTS_AFTER_S and reason != "Unschedulable":
            events, trouble = await _trouble(kube, name, namespace=volume.namespace)
            if "Multi-Attach" in trouble:
                raise _never(volume, trouble)
            text = text or trouble
        line = f"{reason}: {text}" if text else reason
        if line and line != reported and passed > _EVENTS_AFTER_S:
            reported = line
            say(f"the pod that copies waits: {line}")
        await asyncio.sleep(_LOOK_S)


def _waits(pod: Object) -> tuple[str, str]:
    for state in _status(pod).get("containerStatuses") or ():
        found = _dict(state.get("state"))
        for how in ("waiting", "terminated"):
            if how in found:
                details = _dict(found[how])
                return excerpt(str(details.get("reason") or how)), excerpt(str(details.get("message") or ""))
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return excerpt(str(condition.get("reason") or "")), excerpt(str(condition.get("message") or ""))
    return excerpt(str(_status(pod).get("reason") or "")), excerpt(str(_status(pod).get("message") or ""))


def _never(volume: Volume, why: str) -> InfrastructureError:
    if "sh" in why and ("executable file not found" in why or "no such file" in why):
        return InfrastructureError(
            f"image {volume.image} has no sh, which the pod that copies needs: {why}",
            hint="name an image with sh and Python 3.8 in kubernetes.workspace.image (cp: --image)",
        )
    return InfrastructureError(
        f"the pod that copies to claim {volume.claim} does not run: {why}",
        hint="repair that and try again, or name another image in kubernetes.workspace.image (cp: --image)",
    )


async def _trouble(kube: Kube, name: str, *, namespace: str) -> tuple[bool, str]:
    """Returns True if the pod's events are readable, and the message of its last event of a problem, or ""."""
    try:
        found = await kube.list(EVENTS, namespace=namespace, fields=f"involvedObject.name={name}")
    except KubeError:
        return False, ""
    messages = [str(item.get("message") or "") for item in found.items if item.get("reason") in _ELSEWHERE]
    return True, excerpt(messages[-1]) if messages else ""


async def _remove(kube: Kube, name: str, *, namespace: str, say: Say) -> None:
    """Deletes the pod and waits: the next one may need its volume."""
    try:
        until = time.monotonic() + _GONE_S
        while time.monotonic() < until:
            found = await kube.get(PODS, name, namespace=namespace)
            if not meta(found).get("deletionTimestamp"):
                await kube.delete(PODS, name, namespace=namespace, uid=uid_of(found))
            await asyncio.sleep(_LOOK_S / 2)
    except ObjectNotFound:
        return
    except KubeError as error:
        say(f"pod {namespace}/{name} could not be removed: {error.message}; it ends by itself")
        return
    say(f"pod {namespace}/{name} still runs; it ends by itself")


async def _sweep(kube: Kube, namespace: str) -> None:
    try:
        found = await kube.list(PODS, namespace=namespace, labels=LABEL_TRANSFER)
        for pod in found.items:
            if _status(pod).get("phase") in {"Succeeded", "Failed"}:
                await kube.delete(PODS, str(meta(pod)["name"]), namespace=namespace, uid=uid_of(pod))
    except KubeError:
        # Only a cleanup.
        return


def _status(item: Object) -> dict[str, Any]:
    return _dict(item.get("status"))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
