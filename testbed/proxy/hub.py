"""What all connections of one proxy share: where the server is, certificates, rules, records."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from testbed.errors import TestbedError
from testbed.pki import Pair
from testbed.proxy.book import Book
from testbed.proxy.records import Records
from testbed.proxy.shift import NodeOf
from testbed.proxy.stream import TlsStream

_ALPN = ["http/1.1"]
_CONNECT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a proxy stands.

    Attributes:
        upstream: ``https://HOST:PORT`` of the real API server.
        authority: certificate that the server's is checked against.
        serving: what the proxy shows its clients.
        host: address to listen on.
        port: to listen on; 0 = any that is free.
        clients: authority of client certificates; None = clients are not asked for one.
        front: certificate with which the proxy tells the server who its client is; needed for client certificates.

    Raises:
        TestbedError: the address is none, or ``clients`` comes without ``front``.
    """

    upstream: str
    authority: Path
    serving: Pair
    host: str = "127.0.0.1"
    port: int = 0
    clients: Path | None = None
    front: Pair | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.upstream)
        if parts.scheme != "https" or not parts.hostname:
            raise TestbedError(f"{self.upstream!r} is no address of an API server", hint="write https://HOST:PORT")
        if self.clients is not None and self.front is None:
            raise TestbedError(
                "the proxy would take client certificates and could not tell the server whose they are",
                hint="give it a front-proxy client certificate too",
            )


class Hub:
    """Shared by all connections.

    Args:
        settings: of the proxy.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.book = Book()
        self.records = Records()
        self.node_of: NodeOf = lambda _namespace, _pod: None
        self.serving = self._server_context(settings.serving)
        self._plain = self._client_context(None)
        self._front = self._client_context(settings.front) if settings.front is not None else self._plain
        parts = urlsplit(settings.upstream)
        self._host, self._port = parts.hostname or "", parts.port or 443

    def present(self, pair: Pair) -> None:
        """Show another certificate to those who connect from now on.

        Raises:
            TestbedError: the files are not a certificate and its key.
        """
        self.serving = self._server_context(pair)

    async def connect(self, *, front: bool) -> TlsStream:
        """A new connection to the server.

        Args:
            front: show the front proxy's certificate.

        Raises:
            OSError: nobody there, or not the server that we trust.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                stream = TlsStream(sock, self._front if front else self._plain, server=False, name=self._host)
                await stream.handshake()
            except BaseException:
                sock.close()
                raise
        return stream

    def _server_context(self, pair: Pair) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(context, pair)
        context.set_alpn_protocols(_ALPN)
        # No resumption: a new connection sees the certificate that is shown now.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        if self.settings.clients is not None:
            context.load_verify_locations(self.settings.clients)
            # A real server answers 401 to a certificate that it does not know; here such a client fails in the handshake.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _client_context(self, pair: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.settings.authority))
        context.set_alpn_protocols(_ALPN)
        if pair is not None:
            _load(context, pair)
        return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    try:
        context.load_cert_chain(pair.cert, pair.key)
    except OSError as error:
        raise TestbedError(
            f"{pair.cert} and {pair.key} are not a certificate and its key: {error}", hint="make them anew"
        ) from error
