"""An API server for Nodes alone, in a thread: versions, JSON patches and rights behave as the real one's; what the real one adds is shown in tests/cluster."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from kube.apiserver import serving, status
from support.patience import scaled

Item = dict[str, Any]


class NodeServer:
    """Nodes by name. ``before`` is called with each Node before a patch of it, as somebody who is faster would change it."""

    def __init__(self, folder: Path) -> None:
        self.nodes: dict[str, Item] = {}
        self.writes: list[tuple[str, Any]] = []
        self.before: Callable[[Item], None] = lambda node: None
        self.forbid_status = False
        self.gone: set[str] = set()
        self.kubeconfig = folder / "kubeconfig"

    def add(self, name: str, *taints: Item, **more: Any) -> None:
        self.nodes[name] = {
            "metadata": {"name": name, "resourceVersion": "1", "labels": more.pop("labels", {})},
            "spec": {"taints": [dict(each) for each in taints], **more} if taints or more else {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": f"boot-{name}"}},
        }

    def touch(self, node: Item) -> None:
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)

    def taints(self, name: str) -> list[str]:
        return [each["key"] for each in self.nodes[name]["spec"].get("taints", [])]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.removeprefix("/api/v1/nodes").strip("/").split("/")
        name = parts[0]
        if request.method == "GET" and not name:
            labels = dict(pair.split("=") for pair in request.query.get("labelSelector", "").split(",") if pair)
            items = [each for each in self.nodes.values() if labels.items() <= each["metadata"]["labels"].items()]
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        node = self.nodes.get(name)
        if node is None or (request.method == "PATCH" and name in self.gone):
            return web.json_response(status(404, "NotFound"), status=404)
        if request.method == "GET":
            return web.json_response(node)
        body = json.loads(await request.read())
        if parts[1:] == ["status"]:
            return self._status(node, body)
        self.before(node)
        try:
            changed = _patched(node, body)
        except (
            IndexError,
            KeyError,
        ):  # seen at a real one: no operation finds its place, and versions are compared after them
            return web.json_response(status(422, "Invalid"), status=422)
        except ValueError:
            return web.json_response(status(409, "Conflict"), status=409)
        self.touch(changed)
        self.nodes[name] = changed
        self.writes.append((name, body))
        return web.json_response(changed)

    def _status(self, node: Item, body: Item) -> web.StreamResponse:
        if self.forbid_status:
            return web.json_response(status(403, "Forbidden"), status=403)
        for new in body["status"]["conditions"]:
            kept = [each for each in node["status"]["conditions"] if each["type"] != new["type"]]
            node["status"]["conditions"] = [*kept, new]
        return web.json_response(node)

    def condition(self, name: str) -> Item | None:
        found = [each for each in self.nodes[name]["status"]["conditions"] if each["type"] == "RankfallHealthy"]
        return found[0] if found else None


def _patched(node: Item, operations: list[Item]) -> Item:
    found = copy.deepcopy(node)
    wrong = False
    for each in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        target: Any = found
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        wrong = wrong or (last == "resourceVersion" and target[last] != each["value"])
        if each["op"] == "remove":
            del target[int(last)]
        elif isinstance(target, list):
            assert last == "-"
            target.append(each["value"])
        else:
            target[last] = each["value"]
    if wrong:
        raise ValueError("version")
    found["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
    return found


@contextmanager
def node_server(folder: Path) -> Iterator[NodeServer]:
    """A server that answers until the end of the block, and the kubeconfig of it."""
    made = NodeServer(folder)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with serving(folder, tls=False) as server:
            server.default = made.handle
            made.kubeconfig.write_text(_kubeconfig(server.url))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(scaled(20))
        yield made
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(scaled(20))
        loop.close()


def _kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        }
    )
