"""What keeps an object from going, in words: the pod, its node and whether that answers, the finalizer, and what to do about it.

A pod of a dead node stays for ever, because only the node could say that it has ended. Nothing is forced here: whether a machine is really
off is for people to know, and two copies of one rank writing the same checkpoint are worse than a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from rankfall.backends.cluster.ownership import Object, age, deleting, meta
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound
from rankfall.kube.resources import NODES, PODS, Resource
from rankfall.kube.secret import excerpt

# Waited for in order by the server itself; what they wait for is in the list too.
_CASCADES: Final = frozenset({"foregroundDeletion", "orphan"})
_SHOWN: Final = 3
# Seconds: what a node's state is worth to a message.
_NODE_S: Final = 5.0


class Left(msgspec.Struct, frozen=True):
    """An object that is still there."""

    resource: Resource
    item: Object


class Blocked(msgspec.Struct, frozen=True):
    """What is still there.

    Attributes:
        text: the first few objects, each with its reason.
        hint: what to do about them; None = nothing but wait.
    """

    text: str
    hint: str | None


async def blocked(kube: Kube, left: Sequence[Left]) -> Blocked:
    """Say what is still there and why.

    Args:
        kube: asked for the nodes of the pods that are shown; who may not see nodes is told less.
        left: at least one object.
    """
    # Pods first: everything else waits for them.
    ordered = sorted(left, key=lambda one: one.resource != PODS)
    waiting = [one for one in ordered if not _only_cascades(one)] or ordered
    texts, hints = [], []
    for one in waiting[:_SHOWN]:
        text, hint = await (_pod(kube, one.item) if one.resource == PODS else _object(one))
        texts.append(text)
        hints.append(hint)
    if len(waiting) > _SHOWN:
        texts.append(f"{len(waiting) - _SHOWN} more")
    return Blocked("; ".join(texts), next((hint for hint in hints if hint), None))


def _only_cascades(one: Left) -> bool:
    found = _finalizers(one.item)
    return one.resource != PODS and bool(found) and set(found) <= _CASCADES


def _finalizers(item: Object) -> list[str]:
    found = meta(item).get("finalizers")
    return [str(name) for name in found] if isinstance(found, list) else []


async def _object(one: Left) -> tuple[str, str]:
    shown = _shown(one.resource, one.item)
    names = _foreign(_finalizers(one.item))
    if names:
        name = excerpt(str(meta(one.item).get("name")))
        hint = f"the program that set it has to take it away: does it run? kubectl get {one.resource.plural} {name} -o yaml"
        return f"{shown} waits for finalizer {names}", hint
    if not deleting(one.item):
        return f"{shown} is not being deleted yet", ""
    return f"{shown} is being deleted since {age(meta(one.item)['deletionTimestamp'])}", ""


async def _pod(kube: Kube, item: Object) -> tuple[str, str]:
    spec = item.get("spec")
    node = str(spec.get("nodeName") or "") if isinstance(spec, dict) else ""
    shown = f"{_shown(PODS, item)} on {f'node {excerpt(node)}' if node else 'no node'}"
    if not deleting(item):
        return f"{shown} is not being deleted yet", ""
    names = _foreign(_finalizers(item))
    # The stamp is the moment at which it should have ended: its grace is part of it.
    stamp = meta(item)["deletionTimestamp"]
    due = f"should have ended {age(stamp)} ago" if _past(stamp) else "is ending"
    state = await _node(kube, node) if node else ""
    text = f"{shown} {due}{f' ({state})' if state else ''}{f', with finalizer {names}' if names else ''}"
    if not state:
        return text, ""
    name, space = excerpt(str(meta(item).get("name"))), excerpt(str(meta(item).get("namespace")))
    force = f"kubectl delete pod {name} -n {space} --grace-period=0 --force"
    return text, f"bring node {excerpt(node)} back, or, once it is certain that the machine is off: {force}"


async def _node(kube: Kube, name: str) -> str:
    """What is wrong with a node; empty when nothing is, or when we may not know."""
    try:
        async with asyncio.timeout(_NODE_S):
            found = await kube.get(NODES, name)
    except ObjectNotFound:
        return "the node is gone"
    except (KubeError, TimeoutError):
        return ""
    status = found.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "Ready" and condition.get("status") != "True":
            return f"the node is not ready since {age(condition.get('lastTransitionTime'))}"
    return ""


def _past(stamp: object) -> bool:
    try:
        return datetime.fromisoformat(str(stamp)) < datetime.now(UTC)
    except (ValueError, TypeError):
        return False


def _foreign(names: Iterable[str]) -> str:
    return ", ".join(excerpt(name) for name in names if name not in _CASCADES)


def _shown(resource: Resource, item: Object) -> str:
    return resource.shown(excerpt(str(meta(item).get("name"))), excerpt(str(meta(item).get("namespace"))))
