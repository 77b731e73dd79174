"""Executes ``rankfall nodes taint``, ``clear`` and ``reset``; retries after a Node changed.

Without a right on ``nodes/status`` the condition stays, with a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, KubeError, ObjectNotFound
from rankfall.kube.resources import NODES
from rankfall.model.errors import InfrastructureError, NotFound
from rankfall.nodes.node_writes import patch_as_read, write_condition, write_node
from rankfall.nodes.rules import manual_actions
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.manual_actions import ManualChange
from rankfall.nodes.rules.node_objects import NodeObject, as_read, read_node, removals
from rankfall.nodes.rules.node_state import NodeView
from rankfall.nodes.rules.policy import Policy

# A busy Node changes every few seconds.
_TRIES: Final = 8

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
        return manual_actions.taint(view, reason=reason, by=by, rules=rules, policy=policy, now=now)

    return [await _order(kube, node, decide, policy=policy, dry_run=dry_run) for node in nodes]


async def clear(
    kube: Kube, nodes: Iterable[NodeObject], *, cause: str | None, rules: Rules, policy: Policy, dry_run: bool
) -> list[Done]:
    """Declares these nodes good, or one cause of each."""

    def decide(view: NodeView, now: int) -> ManualChange:
        return manual_actions.clear(view, cause=cause, rules=rules, policy=policy, now=now)

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
