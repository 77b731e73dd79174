"""Manual actions on a node: taint, clear one cause, declare good.

No limit applies. The controller does not return a manually tainted node.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankfall.model.node_health.records import MANUAL_CODE, MAX_CAUSES, NodeHealth, OpenCause, Seen, printable
from rankfall.nodes.rules import node_state
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.node_state import NodeView
from rankfall.nodes.rules.observations import replace
from rankfall.nodes.rules.planner import NodePatch
from rankfall.nodes.rules.policy import Policy


class ManualChange(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a manual command.

    Attributes:
        patch: Patch, or None.
        message: One line for the user.
    """

    patch: NodePatch | None
    message: str


def taint(view: NodeView, *, reason: str, by: str, rules: Rules, policy: Policy, now: int) -> ManualChange:
    """Isolates a node until a person returns it; ``reason`` becomes the cause's text."""
    health, _ = node_state.begin(view, policy=policy, now=now)
    cause = OpenCause(
        code=MANUAL_CODE,
        first_at=now,
        last_at=now,
        due_at=now,
        seen=(Seen(f"hand-{now}", now),),
        text=printable(f"{by}: {reason}"),
    )
    others = tuple(each for each in health.causes if each.code != MANUAL_CODE)
    health = replace(
        health, causes=(cause, *others)[:MAX_CAUSES], more=health.more + max(0, len(others) + 1 - MAX_CAUSES)
    )
    if not health.tainted or health.state not in {"quarantined", "remediating"}:
        health = replace(health, state="quarantined", since=now, held=None, tainted=True, clean=0, clean_since=None)
    stands = view.tainted(policy)
    text = (
        "has Rankfall's taint already; the reason is added"
        if stands
        else f"tainted {policy.key}={policy.value}:{policy.effect}"
    )
    return ManualChange(patch=_patch(view, health, "keep" if stands else "add", rules), message=text)


def clear(view: NodeView, *, cause: str | None, rules: Rules, policy: Policy, now: int) -> ManualChange:
    """Declares a node good, or one cause (``xid/79`` or ``xid/79@gpu 0000:4e:00``).

    Rankfall's taint goes when no cause needs it.
    """
    health, _ = node_state.begin(view, policy=policy, now=now)
    stands = any(each.key in policy.keys for each in view.taints)
    if cause is not None:
        meant = [each for each in health.causes if cause in {each.code, each.named} and not each.cured]
        if not meant:
            open_ = ", ".join(each.named for each in health.causes if not each.cured) or "none"
            return ManualChange(
                patch=None, message=f"has no open cause {printable(cause, 64)}; open: {printable(open_, 512)}"
            )
        health = replace(
            health,
            causes=tuple(
                replace(each, cured_at=max(now, each.last_at or 0)) if each in meant else each for each in health.causes
            ),
        )
        left = node_state.grave(health, rules)
        if left and health.tainted:
            named = printable(", ".join(each.named for each in left), 512)
            return ManualChange(
                patch=_patch(view, health, "keep", rules), message=f"{cause} is settled; the taint stays for {named}"
            )
        if not health.tainted and not stands:
            health = node_state.waiting(health, rules=rules, held=health.held if left else None, now=now)
            return ManualChange(patch=_patch(view, health, "keep", rules), message=f"{cause} is settled")
    elif not stands and view.record is None:
        return ManualChange(patch=None, message="has nothing to clear")
    gone = ", ".join(sorted({each.key for each in view.taints if each.key in policy.keys}))
    text = f"cleared; taint {gone} is removed" if stands else "cleared; it had no taint of Rankfall"
    return ManualChange(
        patch=_patch(view, node_state.cleared(health, now=now), "remove" if stands else "keep", rules), message=text
    )


def _patch(view: NodeView, health: NodeHealth, change: Literal["add", "remove", "keep"], rules: Rules) -> NodePatch:
    return NodePatch(
        node=view.name, version=view.version, taint=change, record=health, condition=node_state.condition(health, rules)
    )
