"""Sends what was decided about a Node: record and taint in one request at the version that was read, the condition in a second one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from rankfall.health.machine import NodePatch
from rankfall.health.node_objects import NodeObject
from rankfall.health.patches import json_patch
from rankfall.health.policy import Policy
from rankfall.kube.client import Kube
from rankfall.kube.resources import NODES
from rankfall.model.health import CONDITION
from rankfall.model.times import rfc3339


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
    return await kube.patch(NODES, patch.node, operations, kind="json")


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
    told, before = patch.condition, node.condition or {}
    if all(before.get(key) == value for key, value in msgspec.structs.asdict(told).items()):
        return None
    at = rfc3339(now)
    changed = before.get("lastTransitionTime") if before.get("status") == told.status else at
    condition = {
        "type": CONDITION, "status": told.status, "reason": told.reason, "message": told.message,
        "lastHeartbeatTime": at, "lastTransitionTime": changed or at,
    }  # fmt: skip
    return await kube.patch(
        NODES, patch.node, {"status": {"conditions": [condition]}}, kind="strategic", subresource="status"
    )
