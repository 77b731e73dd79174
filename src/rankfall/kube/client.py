"""The client ``Kube``: the calls of ``objects``, and connections that stay open (streams, logs, websockets)."""

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
    """A client of one API server, as one user.

    ``async with Kube(access) as kube: await kube.get(PODS, "p")``. All methods raise ``ApiError`` (by status), ``Unreachable`` and
    ``CredentialsError``.

    Args:
        access: which server and user.
        rate: requests a second in the long run, streams and websockets included.
        burst: requests at once.
        retry: pace of repeats.
        limits: time-outs and sizes.
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
        """Requests sent so far."""
        return self._transport.counters

    @property
    def server_ahead(self) -> Bound:
        """How far the server's clock is ahead of this machine's, by all answers so far."""
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
        """A body as it comes: watches. Errors are raised before it begins; inside, aiohttp's own (``answers.lost`` words them).

        Args:
            path: of ``Resource.path``.
            params: of the query.
            read_timeout: longest silence in seconds, the wait for the answer's head included; None = any once the head is there.
            verb: for messages and counters.
            what: names the object in messages; None = the path.
            head_timeout: longest wait for the answer's head; None = that of ``Limits``.
            repeat: False = the caller repeats at its own pace; 401 is still answered with renewed credentials.
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
        """As ``stream``, for bodies that are only read from end to end: logs. Arguments and errors are the same."""
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
        """A websocket: exec, attach, port-forward. Not opened again once the server may have begun what it asks for.

        Args:
            path: of ``Resource.path``.
            params: of the query; names may come more than once (``command``).
            protocols: offered, best first; the one taken is ``.protocol``.
            what: names the object in messages; None = the path.
            heartbeat: seconds between pings; a missing pong ends the connection; None = no pings.
            largest: message in bytes.
        """
        request = Request("GET", path, verb="exec", what=what or path, risk=Risk.TWICE, params=pairs(params))
        socket = await self._transport.websocket(request, protocols=protocols, heartbeat=heartbeat, largest=largest)
        try:
            yield socket
        finally:
            await socket.close()
