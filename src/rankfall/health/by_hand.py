"""What a person does with a node: taint it, take one cause back, declare it good. Pure: record and Node in, one patch out.

No limit is asked: who does it by hand has decided. What is written is the same record that the controller keeps, so that it goes on from there
and neither gives back a node that a person took away nor taints one again for what a person settled.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankfall.health import nodes
from rankfall.health.folding import replace
from rankfall.health.machine import NodePatch
from rankfall.health.nodes import NodeView
from rankfall.health.policy import Policy
from rankfall.health.rules import Rules
from rankfall.model.health import BY_HAND, MAX_CAUSES, NodeHealth, OpenCause, Seen, shown


class HandDone(msgspec.Struct, frozen=True, kw_only=True):
    """What an order comes to.

    Attributes:
        patch: to be written; None = the node is as it should be.
        told: one line for the person who gave the order.
    """

    patch: NodePatch | None
    told: str


def taint(view: NodeView, *, reason: str, by: str, rules: Rules, policy: Policy, now: int) -> HandDone:
    """Keep the scheduler away from a node until a person gives it back.

    Args:
        view: the Node.
        reason: why; becomes the text of the cause.
        by: who.
        rules: in force.
        policy: in force; names our taint.
        now: nanoseconds since the epoch.
    """
    health, _ = nodes.begin(view, policy=policy, now=now)
    cause = OpenCause(
        code=BY_HAND,
        first_at=now,
        last_at=now,
        due_at=now,
        seen=(Seen(f"hand-{now}", now),),
        text=shown(f"{by}: {reason}"),
    )
    others = tuple(each for each in health.causes if each.code != BY_HAND)
    health = replace(
        health, causes=(cause, *others)[:MAX_CAUSES], more=health.more + max(0, len(others) + 1 - MAX_CAUSES)
    )
    if not health.tainted or health.state not in {"quarantined", "remediating"}:
        health = replace(health, state="quarantined", since=now, held=None, tainted=True, clean=0, clean_since=None)
    stands = view.tainted(policy)
    told = (
        "has our taint already; the reason is added"
        if stands
        else f"tainted {policy.key}={policy.value}:{policy.effect}"
    )
    return HandDone(patch=_patch(view, health, "keep" if stands else "add", rules), told=told)


def clear(view: NodeView, *, cause: str | None, rules: Rules, policy: Policy, now: int) -> HandDone:
    """Declare a node good, or one cause of it; our taint goes when nothing is left that asks for it.

    Args:
        view: the Node.
        cause: one open cause, as ``xid/79`` or ``xid/79@gpu 0000:4e:00``; None = all that was seen until now.
        rules: in force.
        policy: in force; names our taint.
        now: nanoseconds since the epoch.
    """
    health, _ = nodes.begin(view, policy=policy, now=now)
    stands = any(each.key in policy.keys for each in view.taints)
    if cause is not None:
        meant = [each for each in health.causes if cause in {each.code, each.named} and not each.cured]
        if not meant:
            open_ = ", ".join(each.named for each in health.causes if not each.cured) or "none"
            return HandDone(patch=None, told=f"has no open cause {shown(cause, 64)}; open: {shown(open_, 512)}")
        health = replace(
            health,
            causes=tuple(
                replace(each, cured_at=max(now, each.last_at or 0)) if each in meant else each for each in health.causes
            ),
        )
        left = nodes.grave(health, rules)
        if left and health.tainted:
            named = shown(", ".join(each.named for each in left), 512)
            return HandDone(
                patch=_patch(view, health, "keep", rules), told=f"{cause} is settled; the taint stays for {named}"
            )
        if not health.tainted and not stands:
            health = nodes.waiting(health, rules=rules, held=health.held if left else None, now=now)
            return HandDone(patch=_patch(view, health, "keep", rules), told=f"{cause} is settled")
    elif not stands and view.record is None:
        return HandDone(patch=None, told="has nothing to clear")
    gone = ", ".join(sorted({each.key for each in view.taints if each.key in policy.keys}))
    told = f"cleared; taint {gone} is removed" if stands else "cleared; it had no taint of ours"
    return HandDone(
        patch=_patch(view, nodes.cleared(health, now=now), "remove" if stands else "keep", rules), told=told
    )


def _patch(view: NodeView, health: NodeHealth, change: Literal["add", "remove", "keep"], rules: Rules) -> NodePatch:
    return NodePatch(
        node=view.name, version=view.version, taint=change, record=health, condition=nodes.condition(health, rules)
    )
