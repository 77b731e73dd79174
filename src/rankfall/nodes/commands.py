"""Executes ``rankfall nodes taint``, ``clear`` and ``reset``; retries after a Node changed.

No limit applies to manual actions; the controller does not return a manually tainted node.
Without a right on ``nodes/status`` the condition stays, with a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, KubeError, ObjectNotFound
from rankfall.kube.resources import NODES
from rankfall.model.errors import InfrastructureError, NotFound
from rankfall.model.node_health.records import MANUAL_CODE, MAX_CAUSES, NodeHealth, OpenCause, Seen, printable
from rankfall.nodes.node_writes import patch_as_read, write_condition, write_node
from rankfall.nodes.rules import node_state
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.node_objects import NodeObject, as_read, read_node, removals
from rankfall.nodes.rules.node_state import NodeView
from rankfall.nodes.rules.observations import replace
from rankfall.nodes.rules.planner import NodePatch
from rankfall.nodes.rules.policy import Policy

# A busy Node changes every few seconds.
_TRIES: Final = 8


class ManualChange(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a manual command.

    Attributes:
        patch: Patch, or None.
        message: One line for the user.
    """

    patch: NodePatch | None
    message: str


Decide = Callable[[NodeView, int], ManualChange]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command on one node.

    Attributes:
        changed: True if written, or in a dry run.
        message: Text about the change.
        note: Text about a failed additional step, or None.
        error: Reason why nothing changed, or None.
    """

    node: str
    changed: bool = False
    message: str = ""
    note: str | None = None
    error: str | None = None


async def find_nodes(
    kube: Kube, *, names: Sequence[str] = (), labels: str | None = None, policy: Policy
) -> list[NodeObject]:
    """Returns the nodes with these names, with these labels, or all.

    Raises:
        NotFound: A node does not exist or match.
    """
    if names and labels is None:
        return [await _get(kube, name, policy) for name in dict.fromkeys(names)]
    listing = await kube.list(NODES, labels=labels)
    found = {node.name: node for node in (read_node(item, policy=policy) for item in listing.items)}
    missing = [name for name in names if name not in found]
    if missing:
        raise NotFound(f"there is no node {', '.join(missing)} with {labels}", hint="rankfall nodes list")
    return [found[name] for name in dict.fromkeys(names)] if names else list(found.values())


async def taint(
    kube: Kube, nodes: Iterable[NodeObject], *, reason: str, by: str, rules: Rules, policy: Policy, dry_run: bool
) -> list[Done]:
    """Isolates these nodes from the scheduler until a person returns them."""

    def decide(view: NodeView, now: int) -> ManualChange:
        return taint_change(view, reason=reason, by=by, rules=rules, policy=policy, now=now)

    return [await _order(kube, node, decide, policy=policy, dry_run=dry_run) for node in nodes]


async def clear(
    kube: Kube, nodes: Iterable[NodeObject], *, cause: str | None, rules: Rules, policy: Policy, dry_run: bool
) -> list[Done]:
    """Declares these nodes good, or one cause of each."""

    def decide(view: NodeView, now: int) -> ManualChange:
        return clear_change(view, cause=cause, rules=rules, policy=policy, now=now)

    return [await _order(kube, node, decide, policy=policy, dry_run=dry_run) for node in nodes]


async def reset(
    kube: Kube, nodes: Iterable[NodeObject], *, keys: Collection[str], rules: Rules, policy: Policy, dry_run: bool
) -> list[Done]:
    """Removes the taints with these keys; returns only nodes that had one.

    A Rankfall key also closes the node's open causes, so that they do not taint again.
    """
    ours = policy.keys & set(keys)
    others = frozenset(keys) - policy.keys
    done = []
    for node in nodes:
        had = {each.key for each in node.view.taints}
        if had & ours:
            done += await clear(kube, [node], cause=None, rules=rules, policy=policy, dry_run=dry_run)
        if had & others and (not done or done[-1].node != node.name or done[-1].error is None):
            done.append(await _remove(kube, node.name, others, policy=policy, dry_run=dry_run))
    return done


async def _order(kube: Kube, node: NodeObject, decide: Decide, *, policy: Policy, dry_run: bool) -> Done:
    name = node.name
    try:
        for _ in range(_TRIES):
            now = time.time_ns()
            done = decide(node.view, now)
            if done.patch is None or dry_run:
                return Done(node=name, changed=done.patch is not None, message=done.message, note=node.problem)
            try:
                await write_node(kube, done.patch, node=node, policy=policy, also=policy.keys)
            except Conflict:
                node = await _get(kube, name, policy)
                continue
            note = await _condition(kube, done, node, now)
            return Done(node=name, changed=True, message=done.message, note=note or node.problem)
    except (InfrastructureError, NotFound) as error:
        return Done(node=name, error=error.message)
    return Done(node=name, error=f"other clients changed it {_TRIES} times during the write; try again")


async def _condition(kube: Kube, done: ManualChange, node: NodeObject, now: int) -> str | None:
    """Writes the Node's condition; returns a message if that fails: then only the record is current."""
    if done.patch is None:
        return None
    try:
        await write_condition(kube, done.patch, node=node, now=now)
    except KubeError as error:
        return f"its condition was not written: {error.message}"
    return None


async def _remove(kube: Kube, name: str, keys: Collection[str], *, policy: Policy, dry_run: bool) -> Done:
    try:
        for _ in range(_TRIES):
            node = await _get(kube, name, policy)
            places = [number for number, each in enumerate(node.view.taints) if each.key in keys]
            text = f"taint {', '.join(sorted({node.view.taints[number].key for number in places}))} is removed"
            if dry_run or not places:
                return Done(node=name, changed=bool(places), message=text if places else "has no such taint any more")
            try:
                version = node.view.version
                await patch_as_read(kube, name, [as_read(version), *removals(places)], version=version)
            except Conflict:
                continue
            return Done(node=name, changed=True, message=text)
    except (InfrastructureError, NotFound) as error:
        return Done(node=name, error=error.message)
    return Done(node=name, error=f"other clients changed it {_TRIES} times during the write; try again")


async def _get(kube: Kube, name: str, policy: Policy) -> NodeObject:
    try:
        item: dict[str, Any] = await kube.get(NODES, name)
    except ObjectNotFound:
        raise NotFound(f"there is no node {name}", hint="rankfall nodes list") from None
    return read_node(item, policy=policy)


def taint_change(view: NodeView, *, reason: str, by: str, rules: Rules, policy: Policy, now: int) -> ManualChange:
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


def clear_change(view: NodeView, *, cause: str | None, rules: Rules, policy: Policy, now: int) -> ManualChange:
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
