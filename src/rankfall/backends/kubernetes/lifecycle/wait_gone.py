"""Waits for the end of an object, its children and pods, and names what blocks.

Only an empty fresh list proves the end. Nothing is forced: two copies of a rank could write one checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from rankfall.backends.kubernetes.lifecycle.errors import RetryBudget, Say, passes
from rankfall.backends.kubernetes.lifecycle.ownership import Object, age, deleting, meta, owners_of, span, uid_of
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, KubeError, ObjectNotFound, Unreachable
from rankfall.kube.object_fields import JOB_NAME, JOBSET_NAME
from rankfall.kube.resources import JOBS, JOBSETS, NODES, PODS, SERVICES, TRAINJOBS, Resource
from rankfall.kube.secret import excerpt
from rankfall.kube.watch.watcher import watch

# The list has what they wait for.
_CASCADES: Final = frozenset({"foregroundDeletion", "orphan"})
_MAX_LISTED: Final = 3
# Seconds for a node's state.
_NODE_S: Final = 5.0


class Left(msgspec.Struct, frozen=True):
    """An object that still exists."""

    resource: Resource
    item: Object


class Blockers(msgspec.Struct, frozen=True):
    """Existing objects with reasons, and advice (None = only waiting helps)."""

    text: str
    hint: str | None


async def blocked(kube: Kube, left: Sequence[Left]) -> Blockers:
    """Describes existing objects and why they remain; omits nodes without the right to read them."""
    # All other objects wait for pods.
    ordered = sorted(left, key=lambda one: one.resource != PODS)
    waiting = [one for one in ordered if not _only_cascades(one)] or ordered
    texts, hints = [], []
    for one in waiting[:_MAX_LISTED]:
        text, hint = await (_pod(kube, one.item) if one.resource == PODS else _object(one))
        texts.append(text)
        hints.append(hint)
    if len(waiting) > _MAX_LISTED:
        texts.append(f"{len(waiting) - _MAX_LISTED} more")
    return Blockers("; ".join(texts), next((hint for hint in hints if hint), None))


def _only_cascades(one: Left) -> bool:
    found = _finalizers(one.item)
    return one.resource != PODS and bool(found) and set(found) <= _CASCADES


def _finalizers(item: Object) -> list[str]:
    found = meta(item).get("finalizers")
    return [str(name) for name in found] if isinstance(found, list) else []


async def _object(one: Left) -> tuple[str, str]:
    label = _label(one.resource, one.item)
    names = _foreign(_finalizers(one.item))
    if names:
        name = excerpt(str(meta(one.item).get("name")))
        hint = f"check that the program that set the finalizer runs, because it must remove it; see kubectl get {one.resource.plural} {name} -o yaml"
        return f"{label} waits for finalizer {names}", hint
    if not deleting(one.item):
        return f"{label} is not being deleted yet", ""
    return f"{label} has been in deletion since {age(meta(one.item)['deletionTimestamp'])}", ""


async def _pod(kube: Kube, item: Object) -> tuple[str, str]:
    spec = item.get("spec")
    node = str(spec.get("nodeName") or "") if isinstance(spec, dict) else ""
    label = f"{_label(PODS, item)} on {f'node {excerpt(node)}' if node else 'no node'}"
    if not deleting(item):
        return f"{label} is not being deleted yet", ""
    names = _foreign(_finalizers(item))
    # When the pod should have ended, grace time included.
    stamp = meta(item)["deletionTimestamp"]
    due = f"should have ended {age(stamp)} ago" if _past(stamp) else "is ending"
    state = await _node(kube, node) if node else ""
    text = f"{label} {due}{f' ({state})' if state else ''}{f', with finalizer {names}' if names else ''}"
    if not state:
        return text, ""
    name, space = excerpt(str(meta(item).get("name"))), excerpt(str(meta(item).get("namespace")))
    force = f"kubectl delete pod {name} -n {space} --grace-period=0 --force"
    return text, f"bring node {excerpt(node)} back, or, once it is certain that the machine is off: {force}"


async def _node(kube: Kube, name: str) -> str:
    try:
        async with asyncio.timeout(_NODE_S):
            found = await kube.get(NODES, name)
    except ObjectNotFound:
        return "the node no longer exists"
    except (KubeError, TimeoutError):
        return ""
    status = found.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "Ready" and condition.get("status") != "True":
            return f"the node has not been ready since {age(condition.get('lastTransitionTime'))}"
    return ""


def _past(stamp: object) -> bool:
    try:
        return datetime.fromisoformat(str(stamp)) < datetime.now(UTC)
    except (ValueError, TypeError):
        return False


def _foreign(names: Iterable[str]) -> str:
    return ", ".join(excerpt(name) for name in names if name not in _CASCADES)


def _label(resource: Resource, item: Object) -> str:
    return resource.label(excerpt(str(meta(item).get("name"))), excerpt(str(meta(item).get("namespace"))))


Tell = Callable[[Sequence[Left]], Awaitable[None]]

# Seconds between messages.
_TELL_S: Final = 15.0
# Seconds for a last check.
_LOOK_S: Final = 10.0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that have to disappear.

    Attributes:
        resource: Kind.
        name: A single object; None = all of ``labels``.
        labels: Label selector; None = all.
        uid: Only this UID counts.
        owner: Required kind of owner.
        needed: False = continue if unreadable.
    """

    resource: Resource
    name: str | None = None
    labels: str | None = None
    uid: str | None = None
    owner: str | None = None
    needed: bool = True

    @property
    def fields(self) -> str | None:
        """Field selector of ``name``; None without a name."""
        return None if self.name is None else f"metadata.name={self.name}"

    def counts(self, item: Object) -> bool:
        """True if a selected object belongs to the group."""
        if self.uid is not None:
            return uid_of(item) == self.uid
        return self.owner is None or any(one.get("kind") == self.owner for one in owners_of(item))


class WaitResult(msgspec.Struct, frozen=True):
    """Objects that still exist; after an error (``unseen``) those of the last successful check."""

    left: tuple[Left, ...] = ()
    unseen: KubeError | None = None

    @property
    def gone(self) -> bool:
        """True if all objects are certainly gone."""
        return not self.left and self.unseen is None


def groups_of(resource: Resource, name: str, *, uid: str | None, pods: str) -> tuple[Group, ...]:
    """Returns a workload and its dependents; ``uid`` None = already deleted."""
    itself = [Group(resource=resource, name=name, uid=uid)] if uid is not None else []
    children = []
    if resource == TRAINJOBS:
        children.append(Group(resource=JOBSETS, name=name, owner="TrainJob", needed=False))
    if resource in {JOBSETS, TRAINJOBS}:
        children += [
            Group(resource=JOBS, labels=f"{JOBSET_NAME}={name}", needed=False),
            # A new set would use the old one and lose its names.
            Group(resource=SERVICES, name=name, owner="JobSet", needed=False),
        ]
    return (*itself, *children, Group(resource=PODS, labels=pods))


def pods_of(resource: Resource, name: str) -> str:
    """Platform's label selector for pods of a workload of this name."""
    return f"{JOB_NAME if resource == JOBS else JOBSET_NAME}={name}"


async def wait_gone(
    kube: Kube, groups: Sequence[Group], *, namespace: str, until: float, say: Say, tell: Tell
) -> WaitResult:
    """Waits until no object of the groups exists; checks at least once.

    ``tell`` receives remaining objects immediately and at intervals.

    Raises:
        KubeError: A permanent error: 401, 403.
    """
    wait = _Wait(kube, groups, namespace=namespace, until=until, say=say)
    while True:
        seen = await wait.look()
        if seen.unseen is not None or not seen.left:
            return seen
        await tell(seen.left)
        if time.monotonic() >= until:
            return seen
        blind = await wait.watched(seen.left, tell)
        if blind is not None:
            return WaitResult(wait.left, blind)


class _Wait:
    def __init__(self, kube: Kube, groups: Sequence[Group], *, namespace: str, until: float, say: Say) -> None:
        self._kube, self._groups, self._namespace = kube, list(groups), namespace
        self._until, self._say = until, say
        self._patience = RetryBudget(until=until, say=say)
        self._there: dict[Group, list[Object]] = {}
        self._trouble: dict[Group, KubeError] = {}

    @property
    def left(self) -> tuple[Left, ...]:
        """Objects that existed at the last check."""
        return tuple(Left(group.resource, item) for group in self._groups for item in self._there.get(group, ()))

    async def look(self) -> WaitResult:
        """Checks once and returns the existing objects."""
        while True:
            try:
                async with asyncio.timeout(max(_LOOK_S, self._patience.left)):
                    for group in list(self._groups):
                        self._there[group] = await self._list(group)
                return WaitResult(self.left)
            except TimeoutError:
                failure: KubeError = Unreachable(
                    f"cannot list {PODS.label(None, self._namespace)}: no answer in time", hint="try again later"
                )
                return WaitResult(self.left, failure)
            except KubeError as error:
                if not passes(error):
                    raise
                if not await self._patience.after(error):
                    return WaitResult(self.left, error)

    async def _list(self, group: Group) -> list[Object]:
        try:
            found = await self._kube.list(
                group.resource, namespace=self._namespace, labels=group.labels, fields=group.fields
            )
        except ObjectNotFound:
            return []  # the kind is no longer served
        except Forbidden as error:
            self._without(group, error)
            return []
        return [item for item in found.items if group.counts(item)]

    def _without(self, group: Group, error: Forbidden) -> None:
        if group.needed:
            raise error
        self._groups.remove(group)
        self._there.pop(group, None)
        self._say(f"{error.message}; continuing without this information")

    async def watched(self, left: Sequence[Left], tell: Tell) -> KubeError | None:
        """Watches until affected groups are empty or time is over; returns a persistent error, else None."""
        self._trouble.clear()
        kinds = {one.resource for one in left}
        tasks = [asyncio.create_task(self._follow(group)) for group in list(self._groups) if group.resource in kinds]
        try:
            while self._patience.left > 0:
                pause = min(_TELL_S, self._patience.left)
                done, running = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if not running:
                    return None
                if self.left:
                    await tell(self.left)
            return next(iter(self._trouble.values()), None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, group: Group) -> None:
        try:
            await self._until_empty(group)
        except Forbidden as error:
            self._without(group, error)

    async def _until_empty(self, group: Group) -> None:
        there: dict[str, Object] = {}
        events = watch(
            self._kube,
            group.resource,
            namespace=self._namespace,
            labels=group.labels,
            fields=group.fields,
            trouble=lambda error: self._troubled(group, error),
        )
        async with contextlib.aclosing(events):
            async for event in events:
                if event.type in {"deleted", "bookmark"}:
                    there.pop(uid_of(event.object), None)
                elif group.counts(event.object):
                    there[uid_of(event.object)] = event.object
                # Before a bookmark, absence proves nothing.
                if there or event.type in {"deleted", "bookmark"}:
                    self._there[group] = list(there.values())
                    if not there:
                        return

    def _troubled(self, group: Group, error: KubeError | None) -> None:
        if error is None:
            self._trouble.pop(group, None)
            return
        if group not in self._trouble:
            self._say(f"{error.message}; trying again, for up to {span(self._patience.left)} more")
        self._trouble[group] = error
