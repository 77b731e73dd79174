"""A Node as it was read -> what is shown of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rankfall.health.folding import wanted
from rankfall.health.node_objects import NodeObject
from rankfall.health.nodes import kept_by_person
from rankfall.health.policy import Policy
from rankfall.health.rules import Rules
from rankfall.model.health import NodeHealth
from rankfall.model.nodes import NodeCause, NodesDocument, NodeStatus
from rankfall.model.times import rfc3339


def document(nodes: Iterable[NodeObject], *, rules: Rules, policy: Policy) -> NodesDocument:
    """All of them, by name."""
    shown = sorted((status(node, rules=rules, policy=policy) for node in nodes), key=lambda each: each.node)
    return NodesDocument(nodes=tuple(shown))


def status(node: NodeObject, *, rules: Rules, policy: Policy) -> NodeStatus:
    """One of them.

    Args:
        node: as it was read.
        rules: in force; they say what its causes ask for.
        policy: in force; names our taint.
    """
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
        only_a_person=kept_by_person(health),
        probation_until=rfc3339(health.probation_until),
        cleared=rfc3339(health.cleared_at),
        clean=health.clean,
        checked=rfc3339(health.checked_at),
        failed_check=health.failed_check,
        step=health.step,
        boot=view.boot,
        past_boots=health.past_boots,
        problem=node.problem,
    )
