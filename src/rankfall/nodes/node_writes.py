"""Writes a Node change: record and taint in one request at the version read, then the condition."""

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
    """Writes record and taint; ``also`` are keys of further taints to remove. Returns the resulting Node.

    Raises:
        Conflict: The Node changed: read and decide again.
        ObjectNotFound: The Node does not exist.
        KubeError: Any other refusal.
    """
    operations = json_patch(patch, taints=node.view.taints, annotated=node.annotated, policy=policy, also=also)
    return await patch_as_read(kube, patch.node, operations, version=patch.version)


async def patch_as_read(kube: Kube, name: str, operations: Sequence[Operation], *, version: str) -> dict[str, Any]:
    """Changes a Node that is still as read. Returns the resulting Node.

    A 422 counts as a conflict if the Node changed: the server applies operations before it compares versions.

    Raises:
        Conflict: The Node changed meanwhile.
        KubeError: Any other refusal.
    """
    try:
        return await kube.patch(NODES, name, operations, kind="json")
    except Invalid as error:
        found = await kube.get(NODES, name)
        if found["metadata"].get("resourceVersion") == version:
            raise
        raise Conflict(error.message, status=409, reason="Conflict") from error


async def write_condition(kube: Kube, patch: NodePatch, *, node: NodeObject, now: int) -> dict[str, Any] | None:
    """Writes the condition if it differs. Returns the resulting Node, or None if unchanged.

    Needs a right on ``nodes/status``.

    Raises:
        KubeError: The condition could not be written.
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
