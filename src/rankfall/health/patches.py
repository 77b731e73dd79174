"""A :class:`NodePatch` as JSON Patch: tested at the version that was decided on, and touching nothing but our own taint and annotation.

A Node's taints are one list without keys, and replacing it would lose what others wrote meanwhile. So the patch names the place of our own taint and
asks first that the Node is still the one that was read; when it is not, the server refuses and the next step decides anew.
Setting the version to what it should be is the server's own test for it: its answer is 409, where a failed "test" would be 422, which says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rankfall.health.machine import NodePatch
from rankfall.health.policy import Policy, Taint
from rankfall.model.health import ANNOTATION, encode_health

Operation = dict[str, Any]


def json_patch(
    patch: NodePatch, *, taints: Sequence[Taint], annotated: bool, policy: Policy, also: Collection[str] = ()
) -> list[Operation]:
    """The operations on the Node, in their order.

    Args:
        patch: as decided.
        taints: of the Node at ``patch.version``, all of them, in their order.
        annotated: it has any annotation at all.
        policy: names our taint.
        also: keys of taints that go with ours when it is removed, whatever their value and effect.
    """
    name = ANNOTATION.replace("~", "~0").replace("/", "~1")
    operations: list[Operation] = [as_read(patch.version)]
    if not annotated:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    operations.append({"op": "add", "path": f"/metadata/annotations/{name}", "value": encode_health(patch.record)})
    ours = [number for number, each in enumerate(taints) if (each.key, each.effect) == (policy.key, policy.effect)]
    if patch.taint == "add" and not ours:
        taint = {"key": policy.key, "value": policy.value, "effect": policy.effect}
        if taints:
            operations.append({"op": "add", "path": "/spec/taints/-", "value": taint})
        else:
            operations.append({"op": "add", "path": "/spec/taints", "value": [taint]})
    if patch.taint == "remove":
        gone = [number for number, each in enumerate(taints) if number in ours or each.key in also]
        operations += removals(gone)
    return operations


def as_read(version: str) -> Operation:
    """That the Node still has the version that was read; else the server refuses all of the patch."""
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}


def removals(places: Sequence[int]) -> list[Operation]:
    """Take taints away by their places: from the end, so that the places of the others stay what they are."""
    return [{"op": "remove", "path": f"/spec/taints/{number}"} for number in sorted(places, reverse=True)]
