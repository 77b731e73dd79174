"""A Node as the API server has it -> what the core asks of it. Others may write anything there: what makes no sense counts as not said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rankfall.health.nodes import NodeView
from rankfall.health.policy import Policy, Taint
from rankfall.model.errors import EvidenceLost
from rankfall.model.health import ANNOTATION, CONDITION, NodeHealth, decode_health

#: A label of this key with the value ``true`` keeps us away from a node, in both directions.
OPT_OUT: Final = "rankfall.dev/hands-off"


class NodeObject(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, read once.

    Attributes:
        view: for the core.
        labels: all of them.
        annotated: it has any annotation at all.
        cordoned: a person keeps the scheduler away from it; never ours.
        problem: why its record is not believed; None = it is, or there is none.
        condition: ``RankfallHealthy`` as it stands: status, reason, message, last transition; None = it has none.
    """

    view: NodeView
    labels: Mapping[str, str] = {}
    annotated: bool
    cordoned: bool
    problem: str | None = None
    condition: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """Of the Node."""
        return self.view.name


def read_node(item: Mapping[str, Any], *, policy: Policy) -> NodeObject:
    """What there is to know of a Node object.

    Args:
        item: as the API answers it.
        policy: names the label of pools.
    """
    meta, spec, status = (_dict(item.get(key)) for key in ("metadata", "spec", "status"))
    annotations = _dict(meta.get("annotations"))
    labels = {key: str(value) for key, value in _dict(meta.get("labels")).items()}
    record, problem = _record(annotations.get(ANNOTATION))
    conditions = {str(each.get("type")): each for each in _list(status.get("conditions")) if isinstance(each, dict)}
    boot = _dict(status.get("nodeInfo")).get("bootID")
    view = NodeView(
        name=str(meta.get("name", "")),
        version=str(meta.get("resourceVersion", "")),
        pool=pool_of(labels, policy),
        ready=_dict(conditions.get("Ready")).get("status") == "True",
        taints=tuple(_taint(each) for each in _list(spec.get("taints"))),
        boot=boot if isinstance(boot, str) and boot else None,
        opted_out=labels.get(OPT_OUT) == "true",
        record=record,
    )
    told = conditions.get(CONDITION)
    return NodeObject(
        view=view,
        labels=labels,
        annotated=bool(annotations),
        cordoned=bool(spec.get("unschedulable")),
        problem=problem,
        condition=None if told is None else {key: str(value) for key, value in told.items()},
    )


def pool_of(labels: Mapping[str, str], policy: Policy) -> str:
    """Whose budget a node with these labels counts in."""
    return labels.get(policy.pool_label) or "default"


def _record(text: Any) -> tuple[NodeHealth | None, str | None]:
    if not isinstance(text, str):
        return None, None
    try:
        return decode_health(text), None
    except EvidenceLost as error:
        return None, error.message


def _taint(each: Any) -> Taint:
    # Their number must stay that of the Node: a patch names our taint by its place.
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
