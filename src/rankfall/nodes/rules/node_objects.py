"""Maps Node objects: reads data, makes JSON Patches and the displayed status.

Invalid data counts as absent. A patch requires the version read (else 409), because taints are one list without keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.nodes_document import NodeCause, NodesDocument, NodeStatus, holder
from rankfall.model.node_health.records import ANNOTATION, CONDITION, NodeHealth, decode_health, encode_health
from rankfall.model.timestamps import rfc3339
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.node_state import NodeView, needs_manual_return
from rankfall.nodes.rules.observations import wanted
from rankfall.nodes.rules.planner import NodePatch
from rankfall.nodes.rules.policy import Policy, Taint

#: This label with ``true`` excludes a node from all changes.
OPT_OUT: Final = "rankfall.dev/hands-off"


class NodeObject(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, read once.

    Attributes:
        view: Data for the decisions.
        labels: All labels.
        annotated: True if it has any annotation.
        cordoned: True if a person cordoned it.
        problem: Reason of an invalid record, or None.
        condition: Current ``RankfallHealthy``: status, reason, message, transition; or None.
    """

    view: NodeView
    labels: Mapping[str, str] = {}
    annotated: bool
    cordoned: bool
    problem: str | None = None
    condition: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """Name of the Node."""
        return self.view.name


def read_node(item: Mapping[str, Any], *, policy: Policy) -> NodeObject:
    """Reads a Node object."""
    meta, spec, status = (_dict(item.get(key)) for key in ("metadata", "spec", "status"))
    annotations = _dict(meta.get("annotations"))
    labels = {key: str(value) for key, value in _dict(meta.get("labels")).items()}
    record, problem = _record(annotations.get(ANNOTATION))
    conditions = {str(each.get("type")): each for each in _list(status.get("conditions")) if isinstance(each, dict)}
    boot = _dict(status.get("nodeInfo")).get("bootID")
    held = holder(item)
    view = NodeView(
        name=str(meta.get("name", "")),
        version=str(meta.get("resourceVersion", "")),
        pool=pool_of(labels, policy),
        ready=_dict(conditions.get("Ready")).get("status") == "True",
        taints=tuple(_taint(each) for each in _list(spec.get("taints"))),
        boot=boot if isinstance(boot, str) and boot else None,
        opted_out=labels.get(OPT_OUT) == "true",
        holder=None if held is None else ": ".join(held),
        record=record,
    )
    condition = conditions.get(CONDITION)
    return NodeObject(
        view=view,
        labels=labels,
        annotated=bool(annotations),
        cordoned=bool(spec.get("unschedulable")),
        problem=problem,
        condition=None if condition is None else {key: str(value) for key, value in condition.items()},
    )


def pool_of(labels: Mapping[str, str], policy: Policy) -> str:
    """Returns the pool whose budget includes a node with these labels."""
    return labels.get(policy.pool_label) or "default"


def _record(text: Any) -> tuple[NodeHealth | None, str | None]:
    if not isinstance(text, str):
        return None, None
    try:
        return decode_health(text), None
    except EvidenceLost as error:
        return None, error.message


def _taint(each: Any) -> Taint:
    # A patch addresses taints by index.
    found = _dict(each)
    value = found.get("value")
    return Taint(
        key=str(found.get("key", "")),
        effect=str(found.get("effect", "")),
        value=value if isinstance(value, str) else None,
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


Operation = dict[str, Any]


def json_patch(
    patch: NodePatch, *, taints: Sequence[Taint], annotated: bool, policy: Policy, also: Collection[str] = ()
) -> list[Operation]:
    """Returns the operations on the Node, in order.

    ``taints`` are those at ``patch.version``; ``also`` are keys of further taints to remove.
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
    """Returns the operation that requires the version read; else the server refuses the whole patch."""
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}


def removals(places: Sequence[int]) -> list[Operation]:
    """Removes taints by index, from the end, so that the other indexes stay valid."""
    return [{"op": "remove", "path": f"/spec/taints/{number}"} for number in sorted(places, reverse=True)]


def document(nodes: Iterable[NodeObject], *, rules: Rules, policy: Policy) -> NodesDocument:
    """Returns the status of all nodes, by name."""
    statuses = sorted((status(node, rules=rules, policy=policy) for node in nodes), key=lambda each: each.node)
    return NodesDocument(nodes=tuple(statuses))


def status(node: NodeObject, *, rules: Rules, policy: Policy) -> NodeStatus:
    """Returns the status of one node."""
    view = node.view
    health = view.record or NodeHealth()
    return NodeStatus(
        node=view.name,
        pool=view.pool,
        ready=view.ready,
        cordoned=node.cordoned,
        opted_out=view.opted_out,
        state=health.state,
        since=rfc3339(health.since),
        held=health.held,
        tainted=any(each.key in policy.keys for each in view.taints),
        taints=tuple(f"{each.key}{'=' + each.value if each.value else ''}:{each.effect}" for each in view.taints),
        causes=tuple(
            NodeCause(
                code=cause.code,
                device=cause.device,
                wants=wanted(cause, rules),
                count=cause.count,
                first=rfc3339(cause.first_at),
                last=rfc3339(cause.last_at),
                due=rfc3339(cause.due_at),
                cured=cause.cured,
                text=cause.text,
            )
            for cause in health.causes
        ),
        more_causes=health.more,
        history=tuple(at for at in map(rfc3339, health.quarantines) if at is not None),
        only_a_person=needs_manual_return(health),
        probation_until=rfc3339(health.probation_until),
        cleared=rfc3339(health.cleared_at),
        clean=health.clean,
        checked=rfc3339(health.checked_at),
        failed_check=health.failed_check,
        step=health.step,
        boot=view.boot,
        past_boots=health.past_boots,
        problem=node.problem,
        holder=view.holder,
    )
