"""A small API server for feeds: pods with containers, a list and a watch of them, and their logs as a kubelet gives them.

Its containers print when a test says so, and its faults strike when a test says so; nothing here knows of time but the stamps of lines.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from kube.apiserver import status
from rankfall.kube.auth.access import Access, Endpoint, Login
from rankfall.kube.object_fields import COMPLETION_INDEX
from testbed.pki import Authority

NS = 1_000_000_000
START = 1_790_000_000 * NS
COMPLAINT = b"failed to create fsnotify watcher: too many open files"
GONE = b"unable to retrieve container logs for containerd://abc"


def rfc3339(ns: int, *, digits: int = 9) -> str:
    moment = datetime.fromtimestamp(ns // NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{ns % NS:09d}Z" if digits else f"{moment}Z"


@dataclass
class Container:
    """One instance."""

    number: int
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    code: int | None = None
    reason: str | None = None
    finished: int = START
    message: str = ""
    log_gone: bool = False

    @property
    def ended(self) -> bool:
        return self.code is not None


@dataclass
class Pod:
    name: str
    uid: str
    slot: int
    instances: list[Container] = field(default_factory=list)
    phase: str = "Pending"
    status: dict[str, Any] = field(default_factory=dict)
    waiting: str = "ContainerCreating"
    # Faults of coming requests for its log, in order; a request takes one.
    faults: list[str] = field(default_factory=list)
    # What open streams see: a cut ends them all, a freeze leaves them open and silent.
    cuts: int = 0
    frozen: int = 0
    requests: list[dict[str, str]] = field(default_factory=list)
    # Told of each request for its log, before it is answered.
    on_request: Callable[[dict[str, str]], object] = lambda _query: None
    # It was asked to end; only its node can say that it has.
    deleting: bool = False
    # In the place of those of Rankfall's own pods.
    labels: dict[str, str] | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    # What its container's manifest says beside the name.
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def container(self) -> Container | None:
        return self.instances[-1] if self.instances else None


class World:
    """All that the server knows. Every change wakes all who wait."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.version = 100
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.watch_cuts = 0
        self.watches = 0
        # Answers instead of lists and watches, instead of logs, and to single pods, while they are set.
        self.pods_refused: int | None = None
        self.logs_refused: int | None = None
        self.gets_refused: int | None = None
        # A server that was away is back in the moment in which a pod is asked for.
        self.back_at_get = False
        # Other objects by their path, and every request that asked for a change.
        self.objects: dict[str, dict[str, Any]] = {}
        self.changes: list[str] = []
        self.open_logs = 0
        # Its containers have run for long; else each has just started.
        self.past = False
        self.url = ""
        self.ca: bytes | None = None
        self._changed = asyncio.Event()
        self._clock = START

    # -- what tests do

    def add(
        self,
        slot: int,
        *,
        name: str | None = None,
        uid: str | None = None,
        start: bool = True,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> Pod:
        name = name or f"job-{slot}-x{len(self.events)}"
        pod = self.pods[name] = Pod(
            name=name, uid=uid or f"uid-{name}", slot=slot, labels=labels, annotations=annotations or {}
        )
        self.tell("ADDED", pod)
        if start:
            self.start(pod)
        return pod

    def start(self, pod: Pod) -> Container:
        """The next instance of its container."""
        one = Container(number=len(pod.instances))
        pod.instances.append(one)
        pod.phase = "Running"
        self.tell("MODIFIED", pod)
        return one

    def write(self, pod: Pod, *texts: bytes, step: int = 1000) -> None:
        assert pod.container is not None
        for text in texts:
            self._clock += step
            pod.container.lines.append((self._clock, text))
        self.wake()

    def end(self, pod: Pod, code: int = 0, *, reason: str | None = None, told: bool = True) -> None:
        """Its container ends; ``told``: the API says so at once."""
        assert pod.container is not None
        pod.container.code, pod.container.reason = code, reason or ("Error" if code else "Completed")
        pod.container.finished = self._clock
        pod.phase = "Failed" if code else "Succeeded"
        if told:
            self.tell("MODIFIED", pod)
        self.wake()

    def delete(self, pod: Pod) -> None:
        del self.pods[pod.name]
        self.tell("DELETED", pod)

    def cut(self, pod: Pod) -> None:
        """All open streams of its log break."""
        pod.cuts += 1
        self.wake()

    def freeze(self, pod: Pod) -> None:
        """The other side of all its open streams is gone, and nobody says so."""
        pod.frozen += 1
        self.wake()

    def cut_watches(self) -> None:
        self.watch_cuts += 1
        self.wake()

    def tell(self, kind: str, pod: Pod) -> None:
        self.version += 1
        self.events.append((self.version, kind, self.object(pod)))
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def access(self) -> Access:
        made = Endpoint(server=self.url, ca_data=self.ca)
        return Access(context="c", cluster="k", user="u", namespace="here", endpoint=made, login=Login())

    # -- what it shows

    def object(self, pod: Pod) -> dict[str, Any]:
        shown: dict[str, Any] = {"phase": pod.phase}
        one = pod.container
        if one is not None:
            shown["containerStatuses"] = [self._container(pod, one)]
        elif pod.phase == "Pending":
            shown["containerStatuses"] = [
                {"name": "main", "restartCount": 0, "state": {"waiting": {"reason": pod.waiting}}}
            ]
        leaving = {"deletionTimestamp": rfc3339(START, digits=0), "deletionGracePeriodSeconds": 0}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **(leaving if pod.deleting else {}),
                "name": pod.name,
                "namespace": "here",
                "uid": pod.uid,
                "resourceVersion": str(self.version),
                "creationTimestamp": rfc3339(START, digits=0),
                "labels": {COMPLETION_INDEX: str(pod.slot), "rankfall.dev/attempt": "1"}
                if pod.labels is None
                else pod.labels,
                **({"annotations": pod.annotations} if pod.annotations else {}),
            },
            "spec": {"nodeName": f"n{pod.slot}", "containers": [{"name": "main"} | pod.manifest]},
            "status": shown | pod.status,
        }

    def _container(self, pod: Pod, one: Container) -> dict[str, Any]:
        started = rfc3339(START if self.past else time.time_ns(), digits=0)
        found: dict[str, Any] = {
            "name": "main",
            "restartCount": one.number,
            "containerID": f"containerd://{one.number}",
        }
        if one.ended:
            found["state"] = {"terminated": self._end(one)}
        else:
            found["state"] = {"running": {"startedAt": started}}
        if len(pod.instances) > 1:
            found["lastState"] = {"terminated": self._end(pod.instances[-2])}
        return found

    def _end(self, one: Container) -> dict[str, Any]:
        return {
            "exitCode": one.code,
            "reason": one.reason,
            "message": one.message,
            "containerID": f"containerd://{one.number}",
            "startedAt": rfc3339(START, digits=0),
            "finishedAt": rfc3339(one.finished, digits=0),
        }

    # -- the server

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        if request.method != "GET":
            self.changes.append(f"{request.method} {request.path}")
            return self._no(403)
        if parts[-1] == "pods":
            if self.pods_refused is not None:
                return self._no(self.pods_refused)
            return await (self._watch(request) if "watch" in request.query else self._list())
        if parts[-1] == "log":
            return await self._log(request, parts[-2])
        if self.back_at_get:
            self.gets_refused = self.logs_refused = None
        if self.gets_refused is not None:
            return self._no(self.gets_refused)
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        if parts[-1] in self.pods:
            return web.json_response(self.object(self.pods[parts[-1]]))
        return self._no(404)

    async def _list(self) -> web.StreamResponse:
        items = [self.object(pod) for pod in self.pods.values()]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen, cuts = int(request.query["resourceVersion"]), self.watch_cuts
        response = web.StreamResponse()
        await response.prepare(request)
        self.watches += 1
        while True:
            changed = self._changed
            for version, kind, item in [event for event in self.events if event[0] > seen]:
                seen = version
                await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
            if self.watch_cuts != cuts or self.pods_refused is not None:
                request.transport.abort()
                return response
            await changed.wait()

    async def _log(self, request: web.Request, name: str) -> web.StreamResponse:
        query = dict(request.query)
        pod = self.pods.get(name)
        if pod is None:
            return self._no(404)
        pod.requests.append(query)
        pod.on_request(query)
        fault = pod.faults.pop(0) if pod.faults else ""
        if self.logs_refused is not None or fault.isdigit():
            return self._no(self.logs_refused or int(fault))
        which = -2 if query.get("previous") == "true" else -1
        if len(pod.instances) < -which:
            waits = f'container "main" in pod "{name}" is waiting to start: {pod.waiting}'
            return self._no(400, waits if which == -1 else "previous terminated container not found")
        return await self._stream(request, pod, pod.instances[which], fault=fault)

    async def _stream(self, request: web.Request, pod: Pod, one: Container, *, fault: str) -> web.StreamResponse:
        """Every line from a whole second on in the order of the file, then, followed, each that comes, until the container ends."""
        follow, since = request.query.get("follow") == "true", _since(request.query.get("sinceTime"))
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if one.log_gone or fault == "gone":
            await response.write(GONE)
            return response
        cuts, frozen = pod.cuts, pod.frozen
        at = max(0, len(one.lines) - int(request.query.get("tailLines", len(one.lines))))
        self.open_logs += 1
        self.wake()
        try:
            while True:
                changed, ended = self._changed, one.ended
                text = b"".join(
                    rfc3339(stamp).encode() + b" " + line + b"\n" for stamp, line in one.lines[at:] if stamp >= since
                )
                at = len(one.lines)
                if fault == "half":
                    # Breaks in the middle of whatever it is.
                    await response.write(text[: len(text) // 2])
                    request.transport.abort()
                    return response
                if fault in {"short", "torn"}:
                    # Ends in order in its middle, between two lines or within one, as a proxy may end it.
                    middle = len(text) // 2
                    await response.write(text[: middle if fault == "torn" else text.rfind(b"\n", 0, middle) + 1])
                    return response
                if text and pod.frozen == frozen:
                    await response.write(text)
                if fault == "complaint":
                    await response.write(COMPLAINT)
                    return response
                if pod.cuts != cuts or (pod.name not in self.pods and pod.frozen == frozen and not ended):
                    request.transport.abort()
                    return response
                if pod.frozen == frozen and (not follow or ended or fault == "end"):
                    return response
                await changed.wait()
        finally:
            self.open_logs -= 1
            self.wake()

    def _no(self, code: int, message: str = "no") -> web.StreamResponse:
        return web.json_response(status(code, message=message), status=code)


def _since(text: str | None) -> int:
    return 0 if text is None else int(datetime.fromisoformat(text).timestamp()) * NS


@asynccontextmanager
async def world(folder: Path | None = None) -> AsyncIterator[World]:
    """A server on this machine; with a folder it speaks TLS."""
    made = World()
    context = None
    if folder is not None:
        authority = Authority(folder / "pki", "cluster")
        pair = authority.issue("server", user="server", hosts=["127.0.0.1"])
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.cert, pair.key)
        made.ca = authority.cert.read_bytes()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    made.url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()
