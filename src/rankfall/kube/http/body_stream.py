"""Streams one response body for as long as the server sends it: pod logs, a thousand at once.

Without a proxy it is read by ``connection``; through a proxy by aiohttp, with the same bytes at several times
the cost. Nothing is retried, and errors are those of the socket or of the library.
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

# After a large piece, bytes, there is much to come: only what is on its way already is waited for, seconds.
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
        """What has come, at once where there is something; empty at the end that the server gave it.

        Raises:
            aiohttp.ClientError, TimeoutError, OSError: it broke off, after all that had come was given.
        """
        ...

    async def gather(self, seconds: float, *, size: int) -> None:
        """Let what comes gather, so that it is read as one piece: a line costs nearly as much as a hundred.

        Args:
            seconds: for how long at most, after a small piece.
            size: bytes of the piece that was given last.
        """
        ...

    def close(self) -> None:
        """Let go of the connection; may be called again."""
        ...


class BatchTimer:
    """One clock for all bodies of a client: those that gather are read together, in one turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[float, list[asyncio.Future[None]]] = {}

    async def wait(self, seconds: float) -> None:
        """Until the next beat of this length."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(seconds)
        if waiting is None:
            waiting = self._waiting[seconds] = []
            loop.call_at((math.floor(loop.time() / seconds) + 1) * seconds, self._fire, seconds)
        # One for each: who is cancelled must not cancel the others.
        mine = loop.create_future()
        waiting.append(mine)
        await mine

    def _fire(self, seconds: float) -> None:
        for one in self._waiting.pop(seconds):
            if not one.done():
                one.set_result(None)


class DirectBodyStream:
    """A body on a connection of its own.

    Args:
        link: open; the request is not sent yet.
        batch_timer: of the client.
        read_timeout: longest silence, seconds; None = any.
    """

    def __init__(self, link: Link, batch_timer: BatchTimer, *, read_timeout: float | None) -> None:
        self._link, self._batch_timer, self._read_timeout = link, batch_timer, read_timeout
        self._first = b""
        self._body: Body | None = None

    async def ask(self, request: bytes) -> Head:
        """Send a request; the head of its answer.

        Raises:
            answers.Refusal: it has an error status.
            aiohttp.ClientError, TimeoutError, OSError: no answer, or none of HTTP/1.1.
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
        """As in ``BodyStream``."""
        body = self._body
        if body is None:
            raise RuntimeError("nothing was asked for")
        while True:
            data, self._first = self._first, b""
            data = data or (b"" if body.ended else await self._more())
            if not data:
                if body.ended or body.closed():
                    return b""
                raise aiohttp.ClientPayloadError("the body is not whole")
            if text := body.push(data):
                return text

    async def gather(self, seconds: float, *, size: int) -> None:
        """As in ``BodyStream``."""
        await self._batch_timer.wait(_pause(seconds, size))

    def close(self) -> None:
        """As in ``BodyStream``."""
        self._link.close()

    async def _more(self) -> bytes:
        """The next bytes; none when the other side has ended the connection in order."""
        link = self._link
        data = link.take()
        if not data and not link.ended:
            async with asyncio.timeout(self._read_timeout):
                while not (data := link.take()) and not link.ended:
                    await link.wait()
        return data

    async def _refused(self) -> bytes:
        """The body of an error, as far as it comes."""
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < _ERROR_BODY and (data := await self.chunk()):
                    body += data
        except (aiohttp.ClientError, TimeoutError, OSError):
            return b""
        return body[:_ERROR_BODY]


class ProxiedBodyStream:
    """A body that the HTTP library reads."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._fault: aiohttp.ClientError | OSError | None = None

    async def chunk(self) -> bytes:
        """As in ``BodyStream``."""
        if self._fault is not None:
            raise self._fault
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The library forgets what has come when the connection breaks. It may be the last that anybody hears of a node.
            rest = _unread(self._response.content)
            if not rest:
                raise
            self._fault = error
            return rest

    async def gather(self, seconds: float, *, size: int) -> None:
        """As in ``BodyStream``."""
        await asyncio.sleep(_pause(seconds, size))

    def close(self) -> None:
        """As in ``BodyStream``."""
        self._response.close()


def _pause(seconds: float, size: int) -> float:
    """How long to let gather after a piece of this size."""
    return min(seconds, HURRY_S) if size >= LARGE else seconds


def message(url: SplitResult, headers: Iterable[tuple[str, str]]) -> bytes:
    """A GET as it goes out; the connection is not used again.

    Args:
        url: with its path and query encoded already.
        headers: further ones.

    Raises:
        ValueError: a header would be more than one.
    """
    target = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
    # Not compressed: a log is read while it is written.
    fixed = (("Host", url.netloc.rpartition("@")[2]), ("Accept-Encoding", "identity"), ("Connection", "close"))
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in (*fixed, *headers))]
    if any(any(each in line for each in _UNSAFE) for line in lines):
        raise ValueError("a header, or the address, holds a line's end")
    return "\r\n".join([*lines, "", ""]).encode()


def place(url: SplitResult) -> tuple[str, int]:
    """Host and port of a server."""
    return url.hostname or "", url.port or _PORTS[url.scheme]


def _unread(content: aiohttp.StreamReader) -> bytes:
    """What has come and was not read yet. There is no public way to it once the connection is broken."""
    first, *others = content._buffer or (b"",)  # noqa: SLF001
    return b"".join((first[content._buffer_offset :], *others))  # noqa: SLF001
