"""Streams one response body while the server sends.

Through a proxy aiohttp reads the body, at several times the cost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Final, Protocol
from urllib.parse import SplitResult

import aiohttp

from rankfall.kube.http import responses
from rankfall.kube.http.connection import Body, Head, Link, split_head

# After a chunk of these bytes the wait has only these seconds.
LARGE: Final = 8 << 10
HURRY_S: Final = 0.005
_ERROR_BODY: Final = 64 * 1024
_ERROR_BODY_S: Final = 10.0
_REFUSED: Final = 300
_PORTS: Final = {"https": 443, "http": 80}
_UNSAFE: Final = "\r\n\x00"


class BodyStream(Protocol):
    """One open body."""

    async def chunk(self) -> bytes:
        """Returns available bytes or waits; empty at the regular end.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: The body broke off; raised after all received bytes were
                returned.
        """
        ...

    async def gather(self, seconds: float, *, size: int) -> None:
        """Waits up to ``seconds`` for ``size`` bytes: reading a line costs nearly as much as reading a hundred."""
        ...

    def close(self) -> None:
        """Releases the connection; repeatable."""
        ...


class BatchTimer:
    """Shared timer: waiting bodies are read in one event loop iteration."""

    def __init__(self) -> None:
        self._waiting: dict[float, list[asyncio.Future[None]]] = {}

    async def wait(self, seconds: float) -> None:
        """Waits until the next multiple of this interval."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(seconds)
        if waiting is None:
            waiting = self._waiting[seconds] = []
            loop.call_at((math.floor(loop.time() / seconds) + 1) * seconds, self._fire, seconds)
        # Canceling one must not cancel others.
        mine = loop.create_future()
        waiting.append(mine)
        await mine

    def _fire(self, seconds: float) -> None:
        for one in self._waiting.pop(seconds):
            if not one.done():
                one.set_result(None)


class DirectBodyStream:
    """A body on a dedicated connection; ``read_timeout`` None = unlimited."""

    def __init__(self, link: Link, batch_timer: BatchTimer, *, read_timeout: float | None) -> None:
        self._link, self._batch_timer, self._read_timeout = link, batch_timer, read_timeout
        self._first = b""
        self._body: Body | None = None

    async def ask(self, request: bytes) -> Head:
        """Sends a request and returns the head of its answer.

        Raises:
            responses.Refusal: Error status.
            aiohttp.ClientError, TimeoutError, OSError: No answer, or not HTTP/1.1.
        """
        await self._link.send(request)
        data = b""
        while (found := split_head(data)) is None:
            more = await self._more()
            if not more:
                raise aiohttp.ServerDisconnectedError
            data += more
        head, self._first = found
        self._body = Body(head)
        if head.status >= _REFUSED:
            raise responses.Refusal(head.status, head.headers, await self._refused())
        return head

    async def chunk(self) -> bytes:
        """See ``BodyStream``."""
        body = self._body
        if body is None:
            raise RuntimeError("no request was sent")
        while True:
            data, self._first = self._first, b""
            data = data or (b"" if body.ended else await self._more())
            if not data:
                if body.ended or body.closed():
                    return b""
                raise aiohttp.ClientPayloadError("the body is incomplete")
            if text := body.push(data):
                return text

    async def gather(self, seconds: float, *, size: int) -> None:
        """See ``BodyStream``."""
        await self._batch_timer.wait(_pause(seconds, size))

    def close(self) -> None:
        """See ``BodyStream``."""
        self._link.close()

    async def _more(self) -> bytes:
        link = self._link
        data = link.take()
        if not data and not link.ended:
            async with asyncio.timeout(self._read_timeout):
                while not (data := link.take()) and not link.ended:
                    await link.wait()
        return data

    async def _refused(self) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < _ERROR_BODY and (data := await self.chunk()):
                    body += data
        except (aiohttp.ClientError, TimeoutError, OSError):
            return b""
        return body[:_ERROR_BODY]


class ProxiedBodyStream:
    """A body that aiohttp reads."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._fault: aiohttp.ClientError | OSError | None = None

    async def chunk(self) -> bytes:
        """See ``BodyStream``."""
        if self._fault is not None:
            raise self._fault
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # aiohttp drops received bytes with the connection, perhaps a node's last.
            rest = _unread(self._response.content)
            if not rest:
                raise
            self._fault = error
            return rest

    async def gather(self, seconds: float, *, size: int) -> None:
        """See ``BodyStream``."""
        await asyncio.sleep(_pause(seconds, size))

    def close(self) -> None:
        """See ``BodyStream``."""
        self._response.close()


def _pause(seconds: float, size: int) -> float:
    return min(seconds, HURRY_S) if size >= LARGE else seconds


def message(url: SplitResult, headers: Iterable[tuple[str, str]]) -> bytes:
    """Returns a GET for a single-use connection.

    Raises:
        ValueError: A header contains a line break.
    """
    target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
    # Uncompressed: a log is read while it grows.
    fixed = (("Host", url.netloc.rpartition("@")[2]), ("Accept-Encoding", "identity"), ("Connection", "close"))
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in (*fixed, *headers))]
    if any(any(each in line for each in _UNSAFE) for line in lines):
        raise ValueError("a header, or the address, contains a line end")
    return "\r\n".join([*lines, "", ""]).encode()


def place(url: SplitResult) -> tuple[str, int]:
    """Returns host and port of a server."""
    return url.hostname or "", url.port or _PORTS[url.scheme]


def _unread(content: aiohttp.StreamReader) -> bytes:
    first, *others = content._buffer or (b"",)  # noqa: SLF001
    return b"".join((first[content._buffer_offset :], *others))  # noqa: SLF001
