"""``rankfall.nodes/1``, printed by ``rankfall nodes list`` and ``describe``, and the holder of a node.

Unknown fields: null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from rankfall.model.node_health.records import Held, NodeState

NODES_SCHEMA: Final = "rankfall.nodes/1"
# NVSentinel: label of its state, annotations of a quarantine and of its taints.
_STATE: Final = "dgxc.nvidia.com/nvsentinel-state"
_EVENT: Final = "quarantineHealthEvent"
_TAINTS: Final = "quarantineHealthEventAppliedTaints"
_MAX_STATE: Final = 63


def holder(node: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns name and state of another controller that keeps pods off a Node object; None without one.

    NVSentinel in a dry run marks a node that it neither cordons nor taints: this is no hold.
    """
    labels, marks = _mapping(node, "metadata", "labels"), _mapping(node, "metadata", "annotations")
    state, taints = labels.get(_STATE), marks.get(_TAINTS)
    if not state and marks.get(_EVENT) in {None, "", "[]"}:
        return None
    spec = _mapping(node, "spec")
    listed = spec.get("taints")
    keys = {one.get("key") for one in listed if isinstance(one, Mapping)} if isinstance(listed, list) else set()
    tainted = isinstance(taints, str) and any(isinstance(key, str) and f'"{key}"' in taints for key in keys)
    if spec.get("unschedulable") is not True and not tainted:
        return None
    return "NVSentinel", str(state)[:_MAX_STATE] if state else "quarantined"


def _mapping(node: Mapping[str, Any], *fields: str) -> Mapping[str, Any]:
    for field in fields:
        found = node.get(field)
        node = found if isinstance(found, Mapping) else {}
    return node


class NodeCause(msgspec.Struct, frozen=True, kw_only=True):
    """One past or present fault; RFC 3339 times.

    Attributes:
        wants: Action demanded by current rules.
        count: Observations; a lower bound.
        due: Time of reaching its threshold.
        cured: Cleared and not seen since.
        text: Newest line, or a person's reason.
    """

    code: str
    device: str | None
    wants: Literal["none", "watch", "suspect", "quarantine"]
    count: int
    first: str | None
    last: str | None
    due: str | None
    cured: bool
    text: str


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node; RFC 3339 times.

    Attributes:
        tainted: True with Rankfall's taint; ``taints`` lists all as ``KEY=VALUE:EFFECT``.
        cordoned: True if a person made it unschedulable.
        state: State of its record; default: healthy.
        held: Obstacle to a due quarantine.
        holder: Another controller that keeps pods off it, with its state, as ``NVSentinel: draining``.
        history: Quarantines, oldest first.
        only_a_person: True if only a person may release it.
        clean: Consecutive passed rounds of checks.
        step: Remediation step that has begun.
        problem: Reason why its record is invalid.
    """

    node: str
    pool: str
    ready: bool
    cordoned: bool
    opted_out: bool
    state: NodeState
    since: str | None
    held: Held | None
    tainted: bool
    taints: tuple[str, ...]
    causes: tuple[NodeCause, ...]
    more_causes: int
    history: tuple[str, ...]
    only_a_person: bool
    probation_until: str | None
    cleared: str | None
    clean: int
    checked: str | None
    failed_check: str | None
    step: str | None
    boot: str | None
    past_boots: tuple[str, ...]
    problem: str | None
    holder: str | None = None


class NodesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All requested nodes, by name."""

    schema: Literal["rankfall.nodes/1"] = NODES_SCHEMA
    nodes: tuple[NodeStatus, ...]
