"""An API server and a Loki in memory for the controller: JSON patches tested at the version, status, Events; lines by stamp."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from backends.kubernetes.launch_server import KINDS, Api, Object, Refusal
from rankfall.kube.client import Kube
from rankfall.kube.resources import NODES
from rankfall.kube.watch.watcher import watch
from rankfall.loki import LimitRefused, LokiError
from rankfall.loki.reader import Entry
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, decode_health
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import Notifier
from rankfall.nodes.controller.persistent_state import StateMap
from rankfall.nodes.controller.plan_writer import PlanWriter
from rankfall.nodes.controller.settings import LOG_TYPES, Settings
from rankfall.nodes.controller.sources.loki import KernelLines, LokiSource
from support.patience import scaled

SECOND = 1_000_000_000
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LABELS = LOG_TYPES["otlp"]
LIMIT_S = 20.0


class HealthApi(Api):
    """Nodes are cluster-wide, have a status of their own, and take JSON patches at a version."""

    def node(self, name: str, *, boot: str | None = None, **meta: Any) -> Object:
        item = {
            "metadata": {"name": name, **meta},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"bootID": boot if boot is not None else f"boot-{name}"},
            },
        }
        return self.put("nodes", item)

    def taints(self, name: str) -> list[str]:
        return [each["key"] for each in self.objects["nodes", name]["spec"].get("taints", [])]

    def tainted(self, key: str = "rankfall.dev/faulty") -> set[str]:
        return {item["metadata"]["name"] for item in self.all("nodes") if key in self.taints(item["metadata"]["name"])}

    def record(self, name: str) -> NodeHealth | None:
        text = self.objects["nodes", name]["metadata"].get("annotations", {}).get(ANNOTATION)
        return None if text is None else decode_health(text)

    def condition(self, name: str) -> str | None:
        found = [
            each for each in self.objects["nodes", name]["status"]["conditions"] if each["type"] == "RankfallHealthy"
        ]
        return found[0]["reason"] if found else None

    def reasons(self, name: str) -> list[str]:
        return [each["reason"] for each in self.all("events") if each["involvedObject"]["name"] == name]

    def edit(self, name: str, change: Callable[[Object], None]) -> None:
        item = self.objects["nodes", name]
        change(item)
        self._tell("MODIFIED", "nodes", item)
        self.waking = asyncio.ensure_future(self.wake())

    def writes(self) -> list[tuple[str, str]]:
        return [each for each in self.seen if each[0] != "GET"]

    def _carry_out(self, request: web.Request, body: Any) -> tuple[int, Object]:
        parts = request.path.strip("/").split("/")
        if parts == ["api", "v1", "pods"]:
            if ("GET", "pods") in self.refusals:
                raise self.refusals["GET", "pods"]
            return 200, self._list(request, "pods")
        if parts[:3] != ["api", "v1", "nodes"]:
            return super()._carry_out(request, body)
        if len(parts) == 3:
            return 200, self._list(request, "nodes")
        item = self.objects.get(("nodes", parts[3]))
        if item is None:
            raise Refusal(404, f'nodes "{parts[3]}" not found')
        refusal = self.refusals.get((request.method, "/".join(parts[2:])))
        if refusal is not None:
            raise refusal
        if request.method == "PATCH" and parts[4:] == ["status"]:
            meta = body.get("metadata") or {}
            if meta.get("resourceVersion") not in {None, item["metadata"]["resourceVersion"]}:
                raise Refusal(409, "the object has been modified")
            item["metadata"].setdefault("annotations", {}).update(meta.get("annotations") or {})
            known = {each["type"]: each for each in item["status"]["conditions"]}
            for each in (body.get("status") or {}).get("conditions") or ():
                known[each["type"]] = {**known.get(each["type"], {}), **each}
            item["status"]["conditions"] = list(known.values())
            self._tell("MODIFIED", "nodes", item)
        elif request.method == "PATCH":
            _json_patch(item, body)
            self._tell("MODIFIED", "nodes", item)
        return 200, json.loads(json.dumps(item))


def _json_patch(item: Object, steps: list[dict[str, Any]]) -> None:
    for each in steps:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        if path == ["metadata"] and last == "resourceVersion":
            if each["value"] != item["metadata"]["resourceVersion"]:
                raise Refusal(409, "the object has been modified")
            continue
        place: Any = item
        for part in path:
            place = place[part]
        if each["op"] == "remove":
            del place[int(last) if isinstance(place, list) else last]
        elif isinstance(place, list):
            place.append(each["value"])
        else:
            place[last] = each["value"]


class MemoryLoki:
    """Answers as the real one: the oldest ``limit`` lines from ``start`` to before ``end``. ``fault`` is raised first."""

    def __init__(self, most: int = 1_000) -> None:
        self.entries: list[Entry] = []
        self.fault: LokiError | None = None
        self.most = most
        self.asked = 0

    def say(self, node: str | None, text: str, *, at: int | None = None, **labels: str) -> None:
        known = {LABELS.namespace: "dmesg-logging", LABELS.pod: f"dmesg-{node}", **labels}
        if node is not None:
            known[LABELS.node] = node
        key = tuple(known.get(name, "") for name in (LABELS.node, LABELS.namespace, LABELS.pod))
        self.entries.append(Entry(at=time.time_ns() if at is None else at, key=key, text=text, labels=known))

    async def query_range(self, query: str, *, start: int, end: int, limit: int) -> list[Entry]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        if limit > self.most:
            raise LimitRefused("too many", most=self.most)
        return sorted((each for each in self.entries if start <= each.at < end), key=lambda each: each.at)[:limit]


class World:
    """A controller without its process: watch, loop, one source of Loki."""

    def __init__(self, api: HealthApi, kube: Kube, loki: MemoryLoki, settings: Settings, config: ConfigFile) -> None:
        self.api, self.kube, self.loki, self.settings, self.config = api, kube, loki, settings, config
        self.audit: list[dict[str, Any]] = []
        self.metrics = Metrics()
        self.firm = True

    async def start(self) -> None:
        writes = None if self.settings.dry_run else self.kube
        self.state = StateMap(writes, namespace="here", holder=self.settings.identity)
        await self.state.load()
        self.book = NodeCache()
        teller = Notifier(writes, audit=lambda line: self.audit.append(json.loads(line)))
        self.desk = PlanWriter(writes, book=self.book, sure=self._sure, teller=teller, metrics=self.metrics)
        self.loop = Loop(
            book=self.book,
            plan_writer=self.desk,
            state=self.state,
            config=self.config,
            settings=self.settings,
            teller=teller,
            metrics=self.metrics,
        )
        self.source = self.new_source()

    async def _sure(self) -> bool:
        return self.firm

    def new_source(self, lines: Any = None) -> LokiSource:
        lines = lines or KernelLines(LABELS, boot_of=lambda name: f"boot-{name}")
        return LokiSource(
            "dmesg",
            loki=self.loki,
            query="{}",
            lines=lines,
            begun=getattr(lines, "begun", None),
            state=self.state,
            give=self.loop.give,
            metrics=self.metrics,
            poll_s=0.01,
            look_back_s=600,
        )

    async def nodes(self) -> None:
        async for event in watch(self.kube, NODES):
            self.loop.node_event(event)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(scaled(LIMIT_S)):
            while not holds():  # noqa: ASYNC110 - looks at what a server in this process holds
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    *nodes: str,
    api: HealthApi | None = None,
    loki: MemoryLoki | None = None,
    settings: Settings | None = None,
    config: ConfigFile | None = None,
) -> AsyncIterator[World]:
    """A controller at work on these nodes, without its process; cancelled, as by a kill, at the end."""
    KINDS.setdefault("events", "Event")
    given = api or HealthApi()
    runner = web.ServerRunner(web.Server(given.handle), shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    given.port = runner.addresses[0][1]
    for name in nodes:
        given.node(name)
    try:
        async with given.kube() as kube:
            world = World(
                given, kube, loki or MemoryLoki(), settings or Settings(identity="c1"), config or ConfigFile(None)
            )
            await world.start()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(world.loop.run()), group.create_task(world.nodes())]
                try:
                    yield world
                finally:
                    for task in tasks:
                        task.cancel()
    finally:
        await runner.cleanup()


def tried(story: Any) -> None:
    """Run one story to its end, with a limit."""
    asyncio.run(asyncio.wait_for(story, scaled(LIMIT_S)))
