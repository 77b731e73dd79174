"""Sends a request and its retries, rate-limited.

Two pools: a few connections for calls, one per stream, so logs never delay a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from rankfall.kube.auth import key_material
from rankfall.kube.auth.access import Access
from rankfall.kube.auth.credentials import Credentials, Proof
from rankfall.kube.errors import ApiError, CredentialsError, KubeError, Unauthorized, Unreachable
from rankfall.kube.http import responses
from rankfall.kube.http.body_stream import BatchTimer, BodyStream, DirectBodyStream, ProxiedBodyStream, message, place
from rankfall.kube.http.connection import Buffers, Link
from rankfall.kube.http.sessions import Limits, Sockets, agent, pool, proxy_for, read, through
from rankfall.kube.request import Request, Retry, Risk, repeats
from rankfall.model.timestamps import Bound


class Limiter:
    """Rate limiter: ``burst`` requests without pause, ``rate`` per second on average."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("a limiter needs a rate above zero and a burst of at least one")
        self._rate, self._burst, self._clock = rate, burst, clock
        # Time at which the bucket is full.
        self._full_at = clock()

    def reserve(self) -> float:
        """Reserves the next request; returns the seconds to wait before sending it."""
        now = self._clock()
        # By durations: rounding must not delay a burst's first request.
        ahead = max(0.0, self._full_at - now) + 1 / self._rate
        self._full_at = now + ahead
        return max(0.0, ahead - self._burst / self._rate)

    async def wait(self) -> None:
        """Waits for permission to send; a canceled caller's place remains unused."""
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)


@dataclass
class Counters:
    """Counters since the client was created.

    Attributes:
        requests: Requests sent, including retries.
        retries: Retries after a pause, or with renewed credentials.
        failures: Requests without an answer.
        refreshes: Renewals of credentials after a 401.
        by_verb: Requests by verb: ``get``, ``watch`` …
        by_status: Answers by HTTP status.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    refreshes: int = 0
    by_verb: Counter[str] = field(default_factory=Counter)
    by_status: Counter[int] = field(default_factory=Counter)


_NS: Final = 1_000_000_000


class ServerClock:
    """Estimates the server's clock; ``ahead`` bounds its offset."""

    def __init__(self) -> None:
        self.ahead = Bound()

    def answered(self, headers: Mapping[str, str], *, asked: int, got: int) -> None:
        """Uses an answer's date, rounded down to seconds; ignores unreadable ones.

        ``asked`` and ``got`` (head received) are nanoseconds since the epoch.
        """
        try:
            date = round(parsedate_to_datetime(headers.get("Date", "")).timestamp()) * _NS
        except (TypeError, ValueError, OverflowError):
            return
        # The clock was set back meanwhile.
        if got >= asked:
            self.ahead = self.ahead.meet(Bound(date - got, date + _NS - asked))


T = TypeVar("T")
Websocket = aiohttp.ClientWebSocketResponse

_SWITCHED: Final = 101


class Transport:
    """Sends requests as one user to one server."""

    def __init__(self, access: Access, *, limiter: Limiter, retry: Retry, limits: Limits) -> None:
        self.counters = Counters()
        self.clock = ServerClock()
        self._access, self._limiter, self._retry, self._limits = access, limiter, retry, limits
        self._credentials = Credentials(access)
        self._proxy, self._proxy_headers = through(proxy_for(access.endpoint, os.environ))
        self._rng = random.Random()  # noqa: S311 - for pauses, not for secrets
        self._sockets = Sockets()
        # Weak, so that unused links disappear.
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._buffers, self._batch_timer = Buffers(), BatchTimer()
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    @property
    def secrets(self) -> frozenset[str]:
        """Credentials used so far, for masking in foreign messages."""
        return self._credentials.secrets

    async def open(self) -> None:
        """Creates the pools without connecting."""
        key_material.shrink_tls_buffers()
        limits = self._limits
        calls = aiohttp.ClientTimeout(total=limits.total, connect=limits.pool, sock_connect=limits.connect)
        streams = aiohttp.ClientTimeout(total=None, connect=limits.pool, sock_connect=limits.connect)
        self._calls = pool(limits.calls, calls, sockets=self._sockets)
        self._streams = pool(limits.streams, streams, sockets=self._sockets)

    async def close(self) -> None:
        """Closes every connection, including open streams."""
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()
        for link in tuple(self._links):
            link.close()
        await self._sockets.close()
        await self._credentials.close()

    async def call(self, request: Request) -> bytes:
        """Sends a request and returns the body of the answer.

        Raises:
            ApiError: Error status.
            Unreachable: No answer.
            CredentialsError: Authentication failed.
        """
        return await self._repeated(request, self._call_once)

    async def stream(
        self, request: Request, *, read_timeout: float | None, head: float | None
    ) -> aiohttp.ClientResponse:
        """Returns an answer with an unread body; the caller closes it.

        ``read_timeout`` in seconds of silence, None = unlimited.
        """

        async def once(request: Request, proof: Proof) -> aiohttp.ClientResponse:
            limits = self._limits
            timeout = aiohttp.ClientTimeout(
                total=None, connect=limits.pool, sock_connect=limits.connect, sock_read=read_timeout
            )
            asked = time.time_ns()
            async with asyncio.timeout(limits.head if head is None else head):
                response = await _open(self._streams).request(
                    request.method, **self._arguments(request, proof), timeout=timeout
                )
            self.clock.answered(response.headers, asked=asked, got=time.time_ns())
            self.counters.by_status[response.status] += 1
            return response

        return await self._repeated(request, once)

    @asynccontextmanager
    async def open_body(
        self, request: Request, *, read_timeout: float | None, head: float | None
    ) -> AsyncIterator[BodyStream]:
        """Like ``stream``, for sequential reading; much cheaper without a proxy."""
        if self._proxy is not None:
            proxied = ProxiedBodyStream(await self.stream(request, read_timeout=read_timeout, head=head))
            with contextlib.closing(proxied):
                yield proxied
            return

        async def once(request: Request, proof: Proof) -> DirectBodyStream:
            link = Link(self._buffers)
            self._links.add(link)
            try:
                async with asyncio.timeout(self._limits.head if head is None else head):
                    return await self._straight(link, request, proof, read_timeout=read_timeout)
            except BaseException:
                link.close()
                raise

        with contextlib.closing(await self._repeated(request, once)) as straight:
            yield straight

    async def _straight(
        self, link: Link, request: Request, proof: Proof, *, read_timeout: float | None
    ) -> DirectBodyStream:
        url = urlsplit(self._url(request))
        host, port = place(url)
        name = self._access.endpoint.tls_server_name
        await link.open(host, port, context=proof.context, name=name, limit_s=self._limits.connect)
        made = DirectBodyStream(link, self._batch_timer, read_timeout=read_timeout)
        given = [*proof.headers, ("Accept", "application/json"), ("User-Agent", agent())]
        answered = await made.ask(message(url, given))
        self.counters.by_status[answered.status] += 1
        return made

    async def websocket(
        self, request: Request, *, protocols: Sequence[str], heartbeat: float | None, largest: int
    ) -> Websocket:
        """Returns an open websocket; the caller closes it."""

        async def once(request: Request, proof: Proof) -> Websocket:
            arguments = self._arguments(request, proof)
            arguments.pop("data")
            arguments.pop("allow_redirects")
            # Before 1.30 the kubelet answers, which refuses JSON with 406.
            del arguments["headers"]["Accept"]
            async with asyncio.timeout(self._limits.head):
                socket: Websocket = await _open(self._streams).ws_connect(
                    **arguments, method=request.method, protocols=protocols, heartbeat=heartbeat, max_msg_size=largest
                )
            self.counters.by_status[_SWITCHED] += 1
            return socket

        return await self._repeated(request, once)

    async def _call_once(self, request: Request, proof: Proof) -> bytes:
        asked = time.time_ns()
        async with _open(self._calls).request(request.method, **self._arguments(request, proof)) as response:
            self.clock.answered(response.headers, asked=asked, got=time.time_ns())
            body, whole = await read(response, self._limits.body)
            self.counters.by_status[response.status] += 1
            if not whole:
                raise ApiError(
                    f"cannot {request.what}: the answer is larger than {self._limits.body} bytes",
                    status=response.status,
                    hint="request less data at a time",
                )
            return body

    async def _repeated(self, request: Request, once: Callable[[Request, Proof], Awaitable[T]]) -> T:
        began = time.monotonic()
        attempt, renewed = 0, False
        while True:
            attempt += 1
            proof = await self._credentials.current()
            await self._limiter.wait()
            self.counters.requests += 1
            self.counters.retries += attempt > 1
            self.counters.by_verb[request.verb] += 1
            failure = await self._tried(request, proof, once)
            if not isinstance(failure, KubeError):
                return failure
            if isinstance(failure, Unauthorized):
                if renewed:
                    raise _gone(failure, self._access, self._credentials.note)
                await self._renew(failure, proof)
                renewed = True
                continue
            if isinstance(failure, Unreachable) and failure.tls and not renewed:
                renewed = True
                if await self._credentials.changed(proof):
                    continue
            pause = self._pause(request, failure, attempt)
            if pause is None or time.monotonic() - began + pause > self._retry.total_s:
                raise failure
            await asyncio.sleep(pause)

    async def _tried(
        self, request: Request, proof: Proof, once: Callable[[Request, Proof], Awaitable[T]]
    ) -> T | KubeError:
        """Makes one attempt; returns errors, which must not be chained."""
        try:
            return await once(request, proof)
        except responses.Refusal as refusal:
            self.counters.by_status[refusal.status] += 1
            return responses.refused(
                refusal,
                what=request.what,
                secrets=self._credentials.secrets,
                maybe_done=request.risk is Risk.TWICE,
            )
        except aiohttp.WSServerHandshakeError as error:
            self.counters.by_status[error.status] += 1
            return ApiError(
                f"cannot {request.what}: the server did not open a websocket",
                status=error.status,
                hint="check proxies on the way: one may block websockets",
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.counters.failures += 1
            return responses.lost(
                error, what=request.what, server=self._access.server, repeatable=request.risk is not Risk.TWICE
            )

    async def _renew(self, failure: Unauthorized, proof: Proof) -> None:
        self.counters.refreshes += 1
        try:
            await self._credentials.refresh(proof)
        except CredentialsError as error:
            raise error from failure

    def _pause(self, request: Request, failure: KubeError, attempt: int) -> float | None:
        """Seconds until the next attempt; None = no retry."""
        if not request.repeat or attempt >= self._retry.attempts:
            return None
        if isinstance(failure, Unreachable):
            if failure.maybe_done or failure.tls:
                return None
            return self._retry.pause(attempt, retry_after=None, rng=self._rng)
        if isinstance(failure, ApiError) and repeats(
            request.risk, status=failure.status, retry_after=failure.retry_after
        ):
            return self._retry.pause(attempt, retry_after=failure.retry_after, rng=self._rng)
        return None

    def _arguments(self, request: Request, proof: Proof) -> dict[str, Any]:
        endpoint = self._access.endpoint
        headers = CIMultiDict(proof.headers)
        headers["Accept"] = "application/json"
        if not endpoint.compress:
            headers["Accept-Encoding"] = "identity"
        if request.body is not None:
            headers["Content-Type"] = request.kind
        return {
            # Already encoded: otherwise %2F becomes %252F or a slash.
            "url": URL(self._url(request), encoded=True),
            "headers": headers,
            "data": request.body,
            "ssl": True if proof.context is None else proof.context,
            "server_hostname": endpoint.tls_server_name,
            "proxy": self._proxy,
            "proxy_headers": self._proxy_headers,
            # A redirect would send impersonation headers to another host.
            "allow_redirects": False,
        }

    def _url(self, request: Request) -> str:
        query = f"?{urlencode(request.params)}" if request.params else ""
        return f"{self._access.endpoint.server}{request.path}{query}"


def _open(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    if session is None:
        raise RuntimeError("the client is not open: async with Kube(access) as kube")
    return session


def _gone(failure: Unauthorized, access: Access, note: str) -> CredentialsError:
    error = CredentialsError(
        f"{failure.message}; renewed credentials of user {access.user!r} were refused too{note and f'; {note}'}",
        hint="log in again; the job itself is not affected",
    )
    error.__cause__ = failure
    return error
