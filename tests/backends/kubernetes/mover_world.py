"""A cluster in memory for transfers: claims, pods that run or do not, and an exec that is a real process, cut wherever a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from kube.apiserver import Server, serving, status
from rankfall.backends.kubernetes.copy.copy_pod import SCRATCH, Volume
from rankfall.kube.client import Kube
from rankfall.kube.exec.protocol import V5
from support.patience import scaled

RUNNING = {"phase": "Running"}
_POD = re.compile(r"/api/v1/namespaces/here/pods(?:/([^/]+))?(/exec)?")


@dataclass
class Cluster:
    """``states`` are shown one after the other, the last one for ever; ``cuts``: after how many bytes from the client a session ends;
    ``cut_says``: what the API server then sends instead of breaking off."""

    root: Path
    claim: dict[str, Any] | None = field(default_factory=lambda: {"spec": {"accessModes": ["ReadWriteMany"]}})
    pods: dict[str, Any] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=lambda: [RUNNING])
    events: list[dict[str, Any]] = field(default_factory=list)
    refusal: tuple[int, str, str] | None = None
    cuts: list[int] = field(default_factory=list)
    cut_says: bytes | None = None
    on_cut: Callable[[Cluster], None] = lambda _: None
    python: str = sys.executable
    sessions: int = 0
    deaf: bool = False
    tasks: list[asyncio.Task[web.StreamResponse]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def volume(self) -> Volume:
        """The folder that stands for one."""
        return Volume(claim="team", namespace="here", path=str(self.root / "volume"), image="i", python=self.python)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if "persistentvolumeclaims" in request.path:
            if self.claim is None:
                return _refused(404, "NotFound", 'persistentvolumeclaims "team" not found')
            return web.json_response({"metadata": {"name": "team"}, **self.claim})
        if request.path.endswith("/events"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": self.events})
        match = _POD.fullmatch(request.path)
        assert match, request.path
        name, exec_ = match.groups()
        if exec_:
            # Its process is ended by the world, never by a handler that is cancelled.
            task = asyncio.create_task(self._exec(request))
            self.tasks.append(task)
            return await asyncio.shield(task)
        if request.method == "POST":
            return await self._create(request)
        if name is None:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(self.pods.values())})
        if name not in self.pods:
            return _refused(404, "NotFound", f'pods "{name}" not found')
        if request.method == "DELETE":
            return web.json_response(self.pods.pop(name))
        pod = self.pods[name]
        if pod["metadata"]["uid"].startswith("made"):
            pod = {**pod, "status": self.states.pop(0) if len(self.states) > 1 else self.states[0]}
        return web.json_response(pod)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            return _refused(*self.refusal)
        body = json.loads(await request.read())
        body["metadata"]["uid"] = f"made-{len(self.made)}"
        self.made.append(body)
        self.pods[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        self.sessions += 1
        self.begun.set()
        socket = web.WebSocketResponse(protocols=(V5,), max_msg_size=32 << 20)
        await socket.prepare(request)
        if self.deaf:
            await socket.receive()
            while not socket.closed and self.deaf:
                await socket.receive()
            return socket
        words = [
            word.replace(SCRATCH, str(self.root / "scratch")) for key, word in request.query.items() if key == "command"
        ]
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        limit = self.cuts.pop(0) if self.cuts else None
        tasks = [
            asyncio.create_task(_out(process.stdout, socket, 1)),
            asyncio.create_task(_out(process.stderr, socket, 2)),
        ]
        into = asyncio.create_task(_into(process, socket, limit))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({into, ended}, return_when=asyncio.FIRST_COMPLETED)
            if into.done() and into.result():
                self.on_cut(self)
                if self.cut_says is not None:
                    await socket.send_bytes(self.cut_says)
                    return socket
                transport = request.transport
                assert transport is not None
                transport.abort()
        finally:
            # As the kubelet does: the command reads the end of its stdin.
            assert process.stdin is not None
            process.stdin.close()
            code = await process.wait()
            await asyncio.gather(*tasks, return_exceptions=True)
            into.cancel()
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\x03" + json.dumps(_end(code)).encode())
            await socket.close()
        return socket


async def _out(stream: Any, socket: web.WebSocketResponse, channel: int) -> None:
    while data := await stream.read(1 << 16):
        await socket.send_bytes(bytes((channel,)) + data)


async def _into(process: Any, socket: web.WebSocketResponse, limit: int | None) -> bool:
    """Whether the connection is to be cut now."""
    taken = 0
    async for message in socket:
        if message.type is not WSMsgType.BINARY or message.data[0] != 0:
            break
        taken += len(message.data) - 1
        process.stdin.write(message.data[1:])
        try:
            await process.stdin.drain()
        except ConnectionError:
            return False
        if limit is not None and taken >= limit:
            return True
    return False


def _end(code: int) -> dict[str, Any]:
    if code == 0:
        return {"status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code % 256)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


def _refused(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(status(code, reason, message), status=code)


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Kube, Server]]:
    """A cluster and a client of it."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "scratch").mkdir()
    made = Cluster(tmp_path)
    async with serving(tmp_path, tls=False) as server, Kube(server.access(), rate=500, burst=100) as kube:
        server.default = made.handle
        try:
            async with asyncio.timeout(scaled(50)):
                yield made, kube, server
        finally:
            made.deaf = False
            await asyncio.wait_for(asyncio.gather(*made.tasks, return_exceptions=True), scaled(20))
