"""Cache of all Nodes from one watch, with the faults reported on them.

After a write the server's response counts until the watch reaches its version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from rankfall.kube.watch.watcher import Event
from rankfall.model import numbers
from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, decode_report
from rankfall.model.node_health.records import NodeFault, NodeHealth, printable
from rankfall.model.node_health.run_verdicts import VERDICTS_ANNOTATION, decode_verdicts
from rankfall.model.timestamps import nanoseconds
from rankfall.nodes.rules import faults
from rankfall.nodes.rules.node_objects import NodeObject, pool_of, read_node
from rankfall.nodes.rules.policy import Policy


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one watch event of a Node.

    Attributes:
        relevant: True if data changed that decisions depend on.
        faults: Faults that the Node newly reports.
        problem: Reason why the agent's report or a run's verdict on the Node cannot be read; None without one.
    """

    relevant: bool = False
    faults: tuple[NodeFault, ...] = ()
    problem: str | None = None


class NodeCache:
    """The Nodes by name.

    Attributes:
        nodes: Current Nodes.
        idle: Last check that found no job on the Node, nanoseconds since the epoch.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeObject] = {}
        self.idle: dict[str, int] = {}
        self._filled = asyncio.Event()
        self._awaited: dict[str, str] = {}
        self._reports: dict[str, str] = {}
        self._conditions: dict[str, frozenset[str]] = {}
        self._verdicts: dict[str, str] = {}

    @property
    def complete(self) -> bool:
        """True if the cache has all initial Nodes."""
        return self._filled.is_set()

    async def until_complete(self) -> None:
        """Waits until the watch has reported all initial Nodes."""
        await self._filled.wait()

    def take(self, event: Event, *, policy: Policy) -> NodeChange:
        """Processes one event of the watch."""
        if event.type == "bookmark":
            self._filled.set()
            return NodeChange()
        name = str(event.object["metadata"]["name"])
        if event.type == "deleted":
            self._awaited.pop(name, None)
            self._reports.pop(name, None)
            self._conditions.pop(name, None)
            self._verdicts.pop(name, None)
            self.idle.pop(name, None)
            return NodeChange(relevant=self.nodes.pop(name, None) is not None)
        awaited = self._awaited.get(name)
        version = str(event.object["metadata"].get("resourceVersion", ""))
        # A restarted watch may skip the awaited version.
        if awaited is not None and event.type == "modified" and _older(version, awaited):
            return NodeChange()
        self._awaited.pop(name, None)
        before = self.nodes.get(name)
        after = self.nodes[name] = read_node(event.object, policy=policy)
        faults, problem = self._faults_of(name, event.object)
        return NodeChange(
            relevant=before is None or _essence(before) != _essence(after), faults=faults, problem=problem
        )

    def sort_anew(self, *, policy: Policy) -> None:
        """Assigns every Node to its pool again, because the pool label may have changed."""
        for name, node in self.nodes.items():
            pool = pool_of(node.labels, policy)
            if pool != node.view.pool:
                self.nodes[name] = msgspec.structs.replace(node, view=msgspec.structs.replace(node.view, pool=pool))

    def written(self, item: Mapping[str, Any], *, policy: Policy) -> None:
        """Takes a Node from the response to a write."""
        node = read_node(item, policy=policy)
        known = self.nodes.get(node.name)
        # If the watch was faster, no version is awaited; the Node would stay outdated.
        if known is not None and _older(known.view.version, node.view.version):
            self.nodes[node.name] = node
            self._awaited[node.name] = node.view.version

    def boots(self) -> dict[str, str | None]:
        """Returns the boot id of each Node."""
        return {name: node.view.boot for name, node in self.nodes.items()}

    def _faults_of(self, name: str, item: Mapping[str, Any]) -> tuple[tuple[NodeFault, ...], str | None]:
        found: list[NodeFault] = []
        problem = None
        text = (item["metadata"].get("annotations") or {}).get(REPORT_ANNOTATION)
        if isinstance(text, str) and text != self._reports.get(name):
            self._reports[name] = text
            try:
                found += faults.of_report(decode_report(text), node=name)
            except EvidenceLost as error:
                problem = error.message
        text = (item["metadata"].get("annotations") or {}).get(VERDICTS_ANNOTATION)
        if isinstance(text, str) and text != self._verdicts.get(name):
            self._verdicts[name] = text
            try:
                now = time.time_ns()
                found += [faults.of_verdict(each, node=name, now=now) for each in decode_verdicts(text).verdicts]
            except EvidenceLost as error:
                problem = error.message
        bad = _conditions(name, item, record=self.nodes[name].view.record)
        known = self._conditions.get(name, frozenset())
        found += [each for each in bad if each.id not in known]
        self._conditions[name] = frozenset(each.id for each in bad)
        return tuple(found), problem


def _older(version: str, than: str) -> bool:
    """True if the first version is older; False for non-numbers.

    An older Node costs one refused write, waiting would hide the Node.
    """
    first, second = numbers.whole(version, digits=20), numbers.whole(than, digits=20)
    return first is not None and second is not None and first < second


def _essence(node: NodeObject) -> tuple[Any, ...]:
    """Data for decisions: all but the version, which every heartbeat changes."""
    view = node.view
    return (view.pool, view.ready, view.taints, view.boot, view.opted_out, view.holder, view.record, node.problem)


def _conditions(name: str, item: Mapping[str, Any], *, record: NodeHealth | None) -> list[NodeFault]:
    """Returns bad conditions, and good ones with a still open cause, even if they improved unobserved."""
    open_ = set() if record is None else {cause.code for cause in record.causes if not cause.cured}
    found = []
    for each in (item.get("status") or {}).get("conditions") or ():
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("type", "status")):
            continue
        since = nanoseconds(str(each.get("lastTransitionTime") or ""))
        if since is None:
            continue
        fault = faults.of_condition(
            node=name,
            type_=each["type"],
            status=each["status"],
            since=since,
            message=printable(str(each.get("message"))),
        )
        if fault is not None and (
            not fault.code.endswith(faults.GOOD) or fault.code.removesuffix(faults.GOOD) in open_
        ):
            found.append(fault)
    return found


def with_memory(book: NodeCache, memory: Mapping[str, NodeHealth]) -> dict[str, Any]:
    """Returns the views of all Nodes, with the idle times and with decided but unwritten records."""
    views = {name: node.view for name, node in book.nodes.items()}
    for name in memory.keys() & views.keys():
        views[name] = msgspec.structs.replace(views[name], record=memory[name])
    for name in book.idle.keys() & views.keys():
        views[name] = msgspec.structs.replace(views[name], idle_at=book.idle[name])
    return views
