"""A small HTTPS server whose answers a test writes: what comes from a real one is shown in tests/cluster."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from rankfall.kube.auth.access import Access, Endpoint, Login
from testbed.pki import Authority, Pair

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str = "", message: str = "no", **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def answer(code: int = 200, body: Any = None, **headers: str) -> Handler:
    """An answer that is always the same; bytes go out as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(
            status=code, body=raw, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    return handle


def refuse(code: int, reason: str = "", **headers: str) -> Handler:
    return answer(code, status(code, reason), **headers)


def body(
    *pieces: bytes, end: str = "clean", each: asyncio.Event | None = None, gate: asyncio.Event | None = None
) -> Handler:
    """An answer that comes in these pieces.

    Args:
        pieces: of the body.
        end: ``clean``, ``cut``, or ``never``.
        each: waited for after each piece.
        gate: waited for after the last one.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            if each is not None:
                await each.wait()
        if gate is not None:
            await gate.wait()
        if end == "cut":
            request.transport.abort()
        elif end == "never":
            await asyncio.Event().wait()
        return response

    return handle


async def cut(request: web.Request) -> web.StreamResponse:
    """The connection ends without an answer."""
    request.transport.abort()
    return web.Response()


async def silence(request: web.Request) -> web.StreamResponse:
    """Never an answer."""
    await asyncio.Event().wait()
    return web.Response()


@dataclass
class Seen:
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, list[str]]
    body: bytes
    peer: dict[str, Any] | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def user(self) -> str | None:
        """Common name of the client's certificate."""
        names = [pair for part in (self.peer or {}).get("subject", ()) for pair in part]
        return dict(names).get("commonName")


@dataclass
class Server:
    """``script`` is played once, then ``default`` answers."""

    authority: Authority
    default: Handler = field(default_factory=lambda: answer(200, {"metadata": {}}))
    script: list[Handler] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    tls: ssl.SSLContext | None = None

    def plays(self, *handlers: Handler, times: int = 1) -> None:
        self.script += handlers * times

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def access(self, login: Login | None = None, **endpoint: Any) -> Access:
        endpoint.setdefault("ca_data", self.authority.cert.read_bytes() if self.tls else None)
        made = Endpoint(server=self.url, **endpoint)
        return Access(context="c", cluster="k", user="u", namespace="here", endpoint=made, login=login or Login())

    def tokens(self) -> list[str | None]:
        return [(seen.headers.get("Authorization") or [None])[0] for seen in self.seen]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers: dict[str, list[str]] = {}
        for name, value in request.headers.items():
            headers.setdefault(name, []).append(value)
        peer = request.transport.get_extra_info("peercert")
        path = request.raw_path.partition("?")[0]
        body = await request.read()
        self.seen.append(Seen(request.method, path, list(request.query.items()), headers, body, peer))
        return await (self.script.pop(0) if self.script else self.default)(request)


def pair(authority: Authority, name: str = "server", hosts: Iterable[str] = ("127.0.0.1", "localhost")) -> Pair:
    return authority.issue(name, user=name, hosts=hosts)


@asynccontextmanager
async def serving(folder: Path, *, tls: bool = True, hosts: Iterable[str] = ("127.0.0.1",)) -> AsyncIterator[Server]:
    authority = Authority(folder / "pki", "cluster")
    server = Server(authority)
    if tls:
        files = pair(authority, hosts=hosts)
        server.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.cert))
        server.tls.load_cert_chain(files.cert, files.key)
        server.tls.verify_mode = ssl.CERT_OPTIONAL
        # As Go's servers; Python 3.13 asks more of certificates.
        server.tls.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server.tls)
    await site.start()
    server.port = site._server.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await runner.cleanup()
