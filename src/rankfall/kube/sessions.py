"""Pools of connections, their time-outs and sizes, and the first look at an answer: the body of an error is read, bounded."""

from __future__ import annotations

import asyncio
import base64
import functools
from importlib import metadata
from typing import Final

import aiohttp
from yarl import URL

from rankfall.kube import answers
from rankfall.kube.secret import Secret
from rankfall.kube.sockets import Sockets

# Of an error's body: more than any Status has.
_ERROR_BODY: Final = 64 * 1024
_ERROR_BODY_S: Final = 10.0
_REFUSED: Final = 300


class Limits:
    """Time-outs in seconds, and sizes.

    Attributes:
        connect: until TCP and TLS stand.
        pool: until a connection of the pool is free, connecting included.
        total: one attempt of a call, from the beginning to the last byte of its answer.
        head: until the head of a stream's answer is there.
        calls: connections for calls.
        streams: open streams and websockets.
        body: largest answer of a call in bytes.
    """

    def __init__(
        self,
        *,
        connect: float = 10.0,
        pool: float = 30.0,
        total: float = 60.0,
        head: float = 60.0,
        calls: int = 16,
        streams: int = 8192,
        body: int = 256 << 20,
    ) -> None:
        self.connect, self.pool, self.total, self.head = connect, pool, total, head
        self.calls, self.streams, self.body = calls, streams, body


def pool(connections: int, timeout: aiohttp.ClientTimeout, *, sockets: Sockets) -> aiohttp.ClientSession:
    """A pool of at most so many connections. Error statuses are raised as ``answers.Refusal``; nothing is repeated or redirected."""
    made = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, socket_factory=sockets.make),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": agent()},
        raise_for_status=_refuse,
    )
    # aiohttp sends a DELETE again by itself when a kept connection turns out to be closed: unseen, and without asking what it risks.
    made._retry_connection = False  # noqa: SLF001 - there is no public setting
    return made


@functools.cache
def agent() -> str:
    """What access logs of the server show of us. Looked up once: a thousand logs are opened with it."""
    try:
        return f"rankfall/{metadata.version('rankfall')}"
    except metadata.PackageNotFoundError:
        return "rankfall"


async def _refuse(response: aiohttp.ClientResponse) -> None:
    if response.status < _REFUSED:
        return
    try:
        async with asyncio.timeout(_ERROR_BODY_S):
            body, _ = await read(response, _ERROR_BODY)
    except (aiohttp.ClientError, TimeoutError, OSError):
        body = b""
    raise answers.Refusal(response.status, response.headers, body)


async def read(response: aiohttp.ClientResponse, largest: int) -> tuple[bytes, bool]:
    """The body, and whether this is all of it."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        parts.append(part)
        if size > largest:
            return b"".join(parts), False
    return b"".join(parts), True


def through(proxy: Secret | None) -> tuple[URL | None, dict[str, str] | None]:
    """A proxy's address without its password, and the header that has it: aiohttp shows addresses in its errors."""
    if proxy is None:
        return None, None
    url = URL(proxy.reveal())
    if url.user is None and url.password is None:
        return url, None
    given = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode("ascii")
    return url.with_user(None), {"Proxy-Authorization": f"Basic {given}"}
