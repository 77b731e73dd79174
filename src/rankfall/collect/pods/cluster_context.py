"""Collects the context of an attempt's pods: Events, Nodes, workload objects, kubelet Leases.

A missing right is recorded and retried occasionally. At most 2 * (5 + MAX_NODE_WATCHES) requests are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.collect.background import error_text
from rankfall.collect.pods.workload_states import WorkloadStates
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Forbidden, KubeError
from rankfall.kube.object_fields import JOBSET_NAME
from rankfall.kube.resources import EVENTS, JOBS, JOBSETS, LEASES, NODES, WORKLOADS, Resource
from rankfall.kube.watch.watcher import watch
from rankfall.model.timestamps import Bound
from rankfall.rundir.cluster.clock_bounds import LeaseSnapshot, lease_snapshot, of_lease
from rankfall.rundir.cluster.context_facts import (
    ContextFact,
    EventFact,
    NodeFact,
    Unseen,
    WorkFact,
    event_fact,
    later_node,
    node_fact,
    work_fact,
)
from rankfall.rundir.cluster.journal import SnapshotWriter
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource

NAMESPACE: Final = "kube-node-lease"
MOST: Final = 16
# A kubelet renews every 10 s.
SOON_S: Final = 15.0
LATER_S: Final = 600.0
_LOOK_S: Final = 1.0


class LeasePoller:
    """Reads the nodes' Leases, which bound their clocks: twice, then every ten minutes."""

    def __init__(
        self, kube: Kube, *, nodes: Callable[[], Collection[str]], on_lease: Callable[[str, Bound], None]
    ) -> None:
        self._kube, self._nodes, self._on_lease = kube, nodes, on_lease
        self._snapshots: dict[str, LeaseSnapshot] = {}
        # Next read on the monotonic clock.
        self._due: dict[str, float] = {}
        self._refused_until = 0.0

    async def run(self) -> None:
        """Polls until canceled."""
        while True:
            await self.step(time.monotonic())
            await asyncio.sleep(_LOOK_S)

    async def step(self, now: float) -> None:
        """Reads the Leases due at this monotonic time in seconds."""
        if now < self._refused_until:
            return
        for name in sorted(self._nodes())[:MOST]:
            if now < self._due.get(name, 0.0):
                continue
            self._due[name] = now + (SOON_S if name not in self._due else LATER_S)
            try:
                item = await self._kube.get(LEASES, name, namespace=NAMESPACE)
            except KubeError as error:
                if isinstance(error, ApiError):
                    self._refused_until = now + LATER_S
                return
            look = lease_snapshot(item, seen_ns=time.time_ns())
            if look is not None:
                self._on_lease(name, of_lease(look, self._snapshots.get(name), server=self._kube.server_ahead))
                self._snapshots[name] = look


# With more nodes, all nodes of the cluster are watched.
MAX_NODE_WATCHES: Final = 16
# Seconds to a retry: after a refusal, after another failure; and between checks of node names.
REFUSED_S: Final = 60.0
AGAIN_S: Final = 5.0
POLL_INTERVAL_S: Final = 0.5
# Stored Events of an attempt, and of unknown objects.
MOST_EVENTS: Final = 20_000
_MOST_STRANGE: Final = 2_000
# Events of every healthy pod.
_USUAL: Final = ("Scheduled", "Pulled", "Created", "Started", "SuccessfulCreate")
_NO_USUAL: Final = ",".join(f"reason!={reason}" for reason in _USUAL)
# Namespace of Events of cluster-wide objects.
_OF_NODES: Final = "default"

Take = Callable[[dict[str, Any], bool], None]


class ContextCollector:
    """Writes the context file of one attempt.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        path: Path,
        source: PodSource,
        pods: Callable[[], Iterable[PodFact]],
        full: Callable[[OSError], None],
        workload: WorkloadStates | None = None,
    ) -> None:
        self._kube = kube
        self._source = source
        self._pods = pods
        self._full = full
        self._workload = workload
        self._file: SnapshotWriter[ContextFact] = SnapshotWriter(path, ContextFact)
        self._events = sum(isinstance(fact, EventFact) for fact in self._file.newest.values())
        # Newest Event of each unknown object: Events may precede their pod.
        self._strange: dict[str, EventFact] = {}
        # If all nodes are watched: a pod may use them later.
        self._others: dict[str, NodeFact] = {}

    async def run(self) -> None:
        """Watches until canceled."""
        async with asyncio.TaskGroup() as group:
            for what, resource, namespace, selectors, take in self._watched():
                group.create_task(self._follow(what, resource, namespace, selectors, take))
            group.create_task(self._nodes(group))

    async def take(self) -> None:
        """Reads the current state once."""
        for what, resource, namespace, selectors, take in self._watched():
            await self._once(what, resource, namespace, selectors, take)
        names = self._names()
        if len(names) > MAX_NODE_WATCHES:
            await self._once("nodes", NODES, None, {}, self._node)
        else:
            for name in names:
                await self._once("nodes", NODES, None, {"fields": f"metadata.name={name}"}, self._node)
        self.settle()

    def works(self) -> list[WorkFact]:
        """Objects that create the pods, as read."""
        return [fact for fact in self._file.newest.values() if isinstance(fact, WorkFact)]

    def statements(self) -> dict[str, EventFact | NodeFact]:
        """File's facts about nodes and their Events, without the times of observation."""
        return {
            uid: msgspec.structs.replace(fact, seen_ns=0)
            for uid, fact in self._file.newest.items()
            if isinstance(fact, NodeFact) or (isinstance(fact, EventFact) and fact.kind == "Node")
        }

    def close(self) -> None:
        """Closes the file; may be called again."""
        self._file.close()

    # -- watched objects

    def _watched(self) -> list[tuple[str, Resource, str | None, dict[str, str], Take]]:
        here, source = self._source.namespace, self._source
        found: list[tuple[str, Resource, str | None, dict[str, str], Take]] = [
            ("events", EVENTS, here, {"fields": _NO_USUAL}, self._event),
            ("", EVENTS, _OF_NODES, {"fields": f"involvedObject.kind=Node,{_NO_USUAL}"}, self._node_event),
        ]
        resource = WORKLOADS.get(source.backend)
        if resource is None:
            return found
        found += [
            (resource.plural, resource, here, {"fields": f"metadata.name={name}"}, self._work(resource))
            for name in source.workloads
        ]
        if source.backend == "trainjob":
            one = {"fields": f"metadata.name={source.object}"}
            found.append((JOBSETS.plural, JOBSETS, here, one, self._work(JOBSETS)))
        if source.backend in {"jobset", "trainjob"}:
            found.append(("jobs", JOBS, here, {"labels": f"{JOBSET_NAME}={source.object}"}, self._work(JOBS)))
        return found

    async def _follow(
        self, what: str, resource: Resource, namespace: str | None, selectors: dict[str, str], take: Take
    ) -> None:
        while True:
            pause = AGAIN_S
            try:
                events = watch(self._kube, resource, namespace=namespace, keep=name_only, **_given(selectors))
                async with contextlib.aclosing(events):
                    async for event in events:
                        if event.type == "bookmark":
                            self._seen(what)
                            self._listed(resource)
                        else:
                            take(event.object, event.type == "deleted")
            except KubeError as error:
                pause = REFUSED_S if isinstance(error, ApiError) else AGAIN_S
                self._unseen(what, resource, error.message if not isinstance(error, Forbidden) else None)
            except Exception as error:  # noqa: BLE001 - concerns one kind of object; the others continue
                self._unseen(what, resource, error_text(error))
            self._listed(resource, refused=True)
            await asyncio.sleep(pause)

    async def _once(
        self, what: str, resource: Resource, namespace: str | None, selectors: dict[str, str], take: Take
    ) -> None:
        try:
            found = await self._kube.list(resource, namespace=namespace, **_given(selectors))
        except KubeError as error:
            self._unseen(what, resource, error.message if not isinstance(error, Forbidden) else None)
            return
        self._seen(what)
        for item in found.items:
            take(item, False)
        self._listed(resource)

    async def _nodes(self, group: asyncio.TaskGroup) -> None:
        watched: dict[str, asyncio.Task[None]] = {}
        batched = False
        while True:
            names = self._names()
            if len(names) > MAX_NODE_WATCHES and not batched:
                batched = True
                for task in watched.values():
                    task.cancel()
                group.create_task(self._follow("nodes", NODES, None, {}, self._node))
            if not batched:
                for name in names:
                    if name not in watched:
                        one = {"fields": f"metadata.name={name}"}
                        watched[name] = group.create_task(self._follow("nodes", NODES, None, one, self._node))
            self.settle()
            await asyncio.sleep(POLL_INTERVAL_S)

    def _names(self) -> list[str]:
        return sorted({pod.node for pod in self._pods() if pod.node})

    # -- new data

    def _event(self, item: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - as the watch has it
        if gone:
            return
        fact = event_fact(item, seen_ns=time.time_ns())
        if self._ours(fact, {pod.uid for pod in self._pods()}):
            self._keep_event(fact)
            return
        self._strange.pop(fact.uid, None)
        self._strange[fact.uid] = fact
        while len(self._strange) > _MOST_STRANGE:
            del self._strange[next(iter(self._strange))]

    def _node_event(self, item: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - as the watch has it
        if not gone:
            fact = event_fact(item, seen_ns=time.time_ns())
            if fact.name in self._names():
                self._keep_event(fact)

    def _ours(self, fact: EventFact, pods: Collection[str]) -> bool:
        if fact.kind == "Pod":
            return fact.about in pods
        # Makers of the pods and their children: a set's Jobs share its name as prefix.
        return any(
            fact.name == name or (fact.kind in {"Job", "JobSet"} and fact.name.startswith(f"{name}-"))
            for name in self._source.workloads
            if name
        )

    def settle(self) -> None:
        """Stores Events of objects that became known, and watches nodes that a pod moved to."""
        pods = {pod.uid for pod in self._pods()} if self._strange else set()
        for uid, fact in tuple(self._strange.items()):
            if fact.about in pods:
                self._keep_event(self._strange.pop(uid))
        for name in self._names() if self._others else ():
            if name in self._others:
                self._add(self._others.pop(name))

    def _keep_event(self, fact: EventFact) -> None:
        held = fact.uid in self._file.newest
        if not held and self._events >= MOST_EVENTS:
            self._write(Unseen(seen_ns=fact.seen_ns, uid="more", text=f"Events beyond the first {MOST_EVENTS}"))
            return
        self._events += not held
        self._write(fact)

    def _node(self, item: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - as the watch has it
        fact = node_fact(item, seen_ns=time.time_ns(), gone=gone)
        if fact.uid in self._file.newest or fact.name in self._names():
            self._add(fact)
        else:
            held = self._others.get(fact.name)
            self._others[fact.name] = fact if held is None else later_node(held, fact)

    def _add(self, fact: NodeFact) -> None:
        held = self._file.newest.get(fact.uid)
        self._write(later_node(held, fact) if isinstance(held, NodeFact) else fact)

    def _work(self, resource: Resource) -> Take:
        def take(item: dict[str, Any], gone: bool) -> None:  # noqa: FBT001 - as the watch has it
            if self._workload is not None:
                self._workload.saw(resource, item, gone=gone)
            fact = work_fact(item, kind=resource.kind, seen_ns=time.time_ns(), gone=gone)
            held = self._file.newest.get(fact.uid)
            # Only the name remains of an object that vanished unobserved.
            self._write(msgspec.structs.replace(held, gone=True, seen_ns=fact.seen_ns) if gone and held else fact)

        return take

    def _listed(self, resource: Resource, *, refused: bool = False) -> None:
        if self._workload is not None:
            self._workload.listed(resource, refused=refused)

    def _seen(self, what: str) -> None:
        held = self._file.newest.get(f"unseen/{what}")
        if isinstance(held, Unseen) and not held.over:
            self._write(msgspec.structs.replace(held, seen_ns=time.time_ns(), over=True))

    def _unseen(self, what: str, resource: Resource, why: str | None) -> None:
        """Records unreadable data; ``why`` is None if the right is missing."""
        if what:
            reason = why or f"the right to list and watch {resource.plural} is missing"
            text = f"{_WORDS.get(what, what)}: {reason}"[:500]
            self._write(Unseen(seen_ns=time.time_ns(), uid=f"unseen/{what}", text=text))

    def _write(self, fact: ContextFact) -> None:
        try:
            self._file.add(fact)
        except OSError as error:
            self._full(error)


_WORDS: Final[Mapping[str, str]] = {
    "events": "Kubernetes Events of the pods",
    "nodes": "the states of the nodes",
}


def _given(selectors: Mapping[str, str]) -> dict[str, Any]:
    return dict(selectors)


def name_only(item: dict[str, Any]) -> dict[str, Any]:
    """Part of an object that a watch remembers in case it vanishes unobserved."""
    meta = item["metadata"]
    return {"metadata": {name: meta.get(name) for name in ("name", "uid")}}
