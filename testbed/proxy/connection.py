"""One client's connection: TLS, then request after request."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import h11

from testbed.proxy import exchange
from testbed.proxy.book import Facts
from testbed.proxy.headers import header, identity
from testbed.proxy.hub import Hub
from testbed.proxy.job import Job
from testbed.proxy.server_side import MAX_HEAD, ServerSide, as_bytes, stop
from testbed.proxy.stream import TlsStream

_HANDSHAKE_S = 30.0


class Connection:
    """One client.

    Args:
        hub: of the proxy.
        sock: accepted.
    """

    def __init__(self, hub: Hub, sock: socket.socket) -> None:
        self._hub = hub
        self._client = TlsStream(sock, hub.serving, server=True)
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._server = ServerSide(hub)

    async def serve(self) -> None:
        """Serve it to its end, and close it."""
        records = self._hub.records
        records.connections += 1
        records.open_connections += 1
        try:
            try:
                async with asyncio.timeout(_HANDSHAKE_S):
                    await self._client.handshake()
            except (OSError, TimeoutError):
                records.refused += 1
                return
            with contextlib.suppress(OSError):
                await self._requests()
        except BaseException:
            # The proxy closes, all connections are to be cut, or something is wrong with the proxy itself: no good-bye.
            self._client.reset()
            raise
        finally:
            records.open_connections -= 1
            self._client.close()
            await self._server.close()

    async def _requests(self) -> None:
        who = identity(self._client.subject())
        while True:
            try:
                request = await self._next()
            except h11.RemoteProtocolError as error:
                await self._refuse(error)
                return
            if request is None:
                await self._client.finish(good_bye=True)
                return
            facts = Facts.of(
                request.method.decode("latin-1"), request.target.decode("latin-1"), header(request, b"user-agent")
            )
            entry = self._hub.records.begin(
                method=facts.method,
                path=facts.path,
                query=facts.query,
                user_agent=facts.user_agent,
                user=who[0] if who else "",
            )
            struck = self._hub.book.strikes(facts)
            how = await exchange.run(
                Job(self._hub, self._client, self._wire, self._server, who, request, facts, entry, struck)
            )
            if not await self._goes_on(how.how):
                return

    async def _goes_on(self, how: str) -> bool:
        """Do what an exchange's end means for the connection; whether it lives on."""
        if how == "rst":
            self._client.reset()
            return False
        if how in {"clean", "gone", "fin"}:
            await self._server.close()
        if how == "fin":
            await self._client.finish(good_bye=False)
            return False
        states = (self._wire.our_state, self._wire.their_state)
        if how in {"done", "clean"} and states == (h11.DONE, h11.DONE):
            self._wire.start_next_cycle()
            return True
        await self._client.finish(good_bye=True)
        return False

    async def _next(self) -> h11.Request | None:
        """The next request; None = the client, or the idle server, has ended."""
        gone = self._server.gone()
        try:
            while True:
                event = self._wire.next_event()
                if event is h11.NEED_DATA:
                    data = await self._client.receive(gone)
                    if data is None:
                        return None
                    self._wire.receive_data(data)
                elif isinstance(event, h11.Request):
                    if gone is not None and gone.done():
                        await self._server.close()
                    return event
                else:
                    return None
        finally:
            if gone is not None:
                await stop(gone)

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._wire.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            text = f"{error}\n".encode()
            head = h11.Response(
                status_code=error.error_status_hint,
                headers=[("Content-Length", str(len(text))), ("Connection", "close")],
            )
            for event in (head, h11.Data(data=text), h11.EndOfMessage()):
                self._client.put(as_bytes(self._wire.send(event)))
        await self._client.finish(good_bye=True)
