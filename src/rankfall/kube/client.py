"""The client ``Kube``: calls of ``objects`` and long-lived connections (streams, logs, websockets)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp

from rankfall.kube.auth.access import Access
from rankfall.kube.http.body_stream import BodyStream
from rankfall.kube.http.sessions import Limits
from rankfall.kube.http.transport import Counters, Limiter, Transport
from rankfall.kube.objects import ALL_NAMESPACES, MANAGER, Listing, Objects, Propagation
from rankfall.kube.request import Object, Params, Request, Retry, Risk, pairs
from rankfall.model.timestamps import Bound

__all__ = ["ALL_NAMESPACES", "MANAGER", "Kube", "Limits", "Listing", "Object", "Propagation", "Retry"]


class Kube(Objects):
    """Client of one API server as one user; an asynchronous context manager.

    ``what`` names the request in messages. All methods raise ``ApiError`` (by status), ``Unreachable`` and
    ``CredentialsError``. ``rate`` (requests a second) and ``burst`` (requests without pause) include streams.
    """

    def __init__(
        self,
        access: Access,
        *,
        rate: float = 20.0,
        burst: int = 40,
        retry: Retry | None = None,
        limits: Limits | None = None,
    ) -> None:
        limiter = Limiter(rate=rate, burst=burst)
        super().__init__(access, Transport(access, limiter=limiter, retry=retry or Retry(), limits=limits or Limits()))

    @property
    def counters(self) -> Counters:
        """Counters of the requests sent so far."""
        return self._transport.counters

    @property
    def server_ahead(self) -> Bound:
        """Bounds of the server's clock offset from all answers."""
        return self._transport.clock.ahead

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.close()

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | Params | None = None,
        read_timeout: float | None,
        verb: str = "stream",
        what: str | None = None,
        head_timeout: float | None = None,
        repeat: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a streaming answer; inside the body aiohttp's errors are raised (see ``responses.broken``).

        ``read_timeout`` is the longest silence in seconds, headers included. With ``repeat=False`` the caller retries;
        401 still renews credentials.
        """
        request = Request(
            "GET", path, verb=verb, what=what or path, risk=Risk.READ, params=pairs(params), repeat=repeat
        )
        response = await self._transport.stream(request, read_timeout=read_timeout, head=head_timeout)
        try:
            yield response
        finally:
            response.close()

    @asynccontextmanager
    async def open_body(
        self,
        path: str,
        *,
        params: Mapping[str, str] | Params | None = None,
        read_timeout: float | None,
        verb: str = "stream",
        what: str | None = None,
        head_timeout: float | None = None,
        repeat: bool = True,
    ) -> AsyncIterator[BodyStream]:
        """Like ``stream``, with its arguments and errors, for sequential reading: logs."""
        request = Request(
            "GET", path, verb=verb, what=what or path, risk=Risk.READ, params=pairs(params), repeat=repeat
        )
        async with self._transport.open_body(request, read_timeout=read_timeout, head=head_timeout) as body:
            yield body

    @asynccontextmanager
    async def websocket(
        self,
        path: str,
        *,
        params: Mapping[str, str] | Params | None = None,
        protocols: Sequence[str],
        what: str | None = None,
        heartbeat: float | None = None,
        largest: int = 4 << 20,
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens a websocket for exec, attach or port-forward; not opened again once the server may have acted.

        ``heartbeat``: seconds between pings; a missing pong ends the connection. ``largest``: bytes of a message.
        """
        request = Request("GET", path, verb="exec", what=what or path, risk=Risk.TWICE, params=pairs(params))
        socket = await self._transport.websocket(request, protocols=protocols, heartbeat=heartbeat, largest=largest)
        try:
            yield socket
        finally:
            await socket.close()
