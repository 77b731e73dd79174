"""Tells a Node what the verdict of a run says of it, and reads what the controller of node health answers.

A Node is the only place that a run and node health share. The verdict goes there as an annotation, by the Node's status: so no right is needed with
which taints or cordons could be changed, and none at all where nobody wants this: what the server refuses is said, and the run goes on.
"""

from __future__ import annotations

from typing import Any, Final

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.resources import LEASES, NODES
from rankfall.model.errors import EvidenceLost
from rankfall.model.health import ANNOTATION, CONDITION, NodeHealth, decode_health
from rankfall.model.health_answer import LEASE, NodeAnswer, answer_of
from rankfall.model.health_verdict import (
    VERDICTS_ANNOTATION,
    RunVerdict,
    RunVerdicts,
    decode_verdicts,
    encode_verdicts,
)

# A busy Node changes every few seconds; between read and write lie milliseconds.
_TRIES: Final = 8


async def tell_node(kube: Kube, node: str, verdict: RunVerdict) -> str | None:
    """Write the verdict onto its Node, once; may be called again.

    Args:
        kube: an open client.
        node: name of the Node.
        verdict: about it.

    Returns:
        What could not be done and why, in words; None when it stands there.
    """
    try:
        for _ in range(_TRIES):
            item = await kube.get(NODES, node)
            held = _verdicts(item)
            if any(each.id == verdict.id for each in held.verdicts):
                return None
            body = {"metadata": {"annotations": {VERDICTS_ANNOTATION: encode_verdicts(held.with_one(verdict))}}}
            version = str(item["metadata"]["resourceVersion"])
            try:
                await kube.patch(NODES, node, body, kind="merge", subresource="status", resource_version=version)
            except Conflict:
                continue
            return None
    except ObjectNotFound:
        return f"node {node} is gone; nobody needs to be told that it felled this run"
    except KubeError as error:
        return f"node {node} could not be told that it felled this run: {error.message}"
    return f"node {node} could not be told that it felled this run: others changed it {_TRIES} times meanwhile"


async def node_answer(kube: Kube, node: str, verdict: RunVerdict, *, namespace: str) -> NodeAnswer:
    """What became of a verdict that was told.

    Args:
        kube: an open client.
        node: name of the Node.
        verdict: as it was told.
        namespace: of the controller.

    Raises:
        KubeError: the server cannot be asked now.
    """
    try:
        item = await kube.get(NODES, node)
    except ObjectNotFound:
        return NodeAnswer(state="noted", text=f"node {node} is gone")
    found = answer_of(_record(item), verdict, condition=_condition(item))
    if found.state == "waiting" and not await _controlled(kube, namespace):
        return NodeAnswer(state="none")
    return found


async def _controlled(kube: Kube, namespace: str) -> bool:
    """Whether a controller is there, or was until a moment ago: it holds its lease."""
    try:
        lease = await kube.get(LEASES, LEASE, namespace=namespace)
    except (ObjectNotFound, Forbidden):
        return False
    return bool((lease.get("spec") or {}).get("holderIdentity"))


def _verdicts(item: dict[str, Any]) -> RunVerdicts:
    text = (item["metadata"].get("annotations") or {}).get(VERDICTS_ANNOTATION)
    try:
        return RunVerdicts() if not isinstance(text, str) else decode_verdicts(text)
    except EvidenceLost:
        # The controller refuses it whole and says so; what it made of ours before stands in the node's record.
        return RunVerdicts()


def _record(item: dict[str, Any]) -> NodeHealth | None:
    text = (item["metadata"].get("annotations") or {}).get(ANNOTATION)
    try:
        return None if not isinstance(text, str) else decode_health(text)
    except EvidenceLost:
        return None


def _condition(item: dict[str, Any]) -> str:
    conditions = (item.get("status") or {}).get("conditions") or ()
    found = [each for each in conditions if isinstance(each, dict) and each.get("type") == CONDITION]
    return "; ".join(f"{each.get('reason')}: {each.get('message')}" for each in found)
