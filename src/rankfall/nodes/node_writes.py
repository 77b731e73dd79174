"""Writes a change to a Node: record and taint in one request at the version read, then the condition.

The condition needs a right on ``nodes/status``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, Invalid
from rankfall.kube.resources import NODES
from rankfall.model.node_health.records import CONDITION
from rankfall.model.timestamps import rfc3339
from rankfall.nodes.rules.node_objects import NodeObject, Operation, json_patch
from rankfall.nodes.rules.planner import NodePatch
from rankfall.nodes.rules.policy import Policy


async def write_node(
    kube: Kube, patch: NodePatch, *, node: NodeObject, policy: Policy, also: Collection[str] = ()
) -> dict[str, Any]:
    """Write record and taint; the Node as it is then.

    Args:
        kube: the client.
        patch: as decided on ``node``.
        node: as it was read.
        policy: names our taint.
        also: keys of taints that go too when ours goes.

    Raises:
        Conflict: somebody changed the Node meanwhile: read it again and decide anew.
        ObjectNotFound: it is gone.
        KubeError: any other refusal.
    """
    operations = json_patch(patch, taints=node.view.taints, annotated=node.annotated, policy=policy, also=also)
    return await patch_as_read(kube, patch.node, operations, version=patch.version)


async def patch_as_read(kube: Kube, name: str, operations: Sequence[Operation], *, version: str) -> dict[str, Any]:
    """Change a Node that still is as it was read; the Node as it is then.

    The server carries out the operations before it compares versions: one whose place somebody has taken away meanwhile is refused as wrong (422), not as
    late. So what is refused in that way is late where the Node is another one by now.

    Args:
        kube: the client.
        name: of the Node.
        operations: of a JSON Patch, the version that was read among them (``patches.as_read``).
        version: the same.

    Raises:
        Conflict: somebody changed the Node meanwhile.
        KubeError: any other refusal.
    """
    try:
        return await kube.patch(NODES, name, operations, kind="json")
    except Invalid as error:
        found = await kube.get(NODES, name)
        if found["metadata"].get("resourceVersion") == version:
            raise
        raise Conflict(error.message, status=409, reason="Conflict") from error


async def write_condition(kube: Kube, patch: NodePatch, *, node: NodeObject, now: int) -> dict[str, Any] | None:
    """Write the condition where it is not what it should be; needs a right on ``nodes/status``. The Node as it is then; None = nothing was written.

    Args:
        kube: the client.
        patch: as decided.
        node: as it was read; its condition's time of transition is kept where the status stays.
        now: nanoseconds since the epoch.

    Raises:
        KubeError: it could not be written; record and taint say the same.
    """
    wanted, before = patch.condition, node.condition or {}
    if all(before.get(key) == value for key, value in msgspec.structs.asdict(wanted).items()):
        return None
    at = rfc3339(now)
    changed = before.get("lastTransitionTime") if before.get("status") == wanted.status else at
    condition = {
        "type": CONDITION, "status": wanted.status, "reason": wanted.reason, "message": wanted.message,
        "lastHeartbeatTime": at, "lastTransitionTime": changed or at,
    }  # fmt: skip
    return await kube.patch(
        NODES, patch.node, {"status": {"conditions": [condition]}}, kind="strategic", subresource="status"
    )
