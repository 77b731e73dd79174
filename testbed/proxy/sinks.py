"""Where a ``Passer`` puts bytes: into HTTP to the client, into HTTP to the server, or raw after the protocol was switched."""

from __future__ import annotations

import h11

from testbed.proxy.server_side import ServerSide, as_bytes
from testbed.proxy.stream import Alarm, TlsStream


class ClientSink:
    """Body of an answer."""

    def __init__(self, stream: TlsStream, wire: h11.Connection) -> None:
        self._stream, self._wire = stream, wire
        self.chunked = False

    def put(self, data: bytes) -> None:
        """As one chunk, as it came."""
        self._stream.put(as_bytes(self._wire.send(h11.Data(data=data))))

    def torn(self, data: bytes, size: int) -> None:
        """The start of a chunk whose end never comes."""
        if self.chunked:
            self._stream.put(b"%x\r\n" % max(len(data), size + 1))
        self._stream.put(data[:size])

    async def flush(self, alarm: Alarm | None = None) -> bool:
        """Hand everything to the kernel."""
        return await self._stream.flush(alarm)


class ServerGoneError(Exception):
    """The server takes no more; what it has answered is still passed on."""


class ServerSink:
    """Body of a request."""

    def __init__(self, server: ServerSide) -> None:
        self._server = server

    def put(self, data: bytes) -> None:
        """As one chunk, as it came."""
        self.torn(as_bytes(self._server.wire.send(h11.Data(data=data))), -1)

    def torn(self, data: bytes, size: int) -> None:
        """Raw bytes, up to a size."""
        try:
            self._server.stream.put(data if size < 0 else data[:size])
        except OSError as error:
            raise ServerGoneError from error

    async def flush(self, alarm: Alarm | None = None) -> bool:
        """Hand everything to the kernel."""
        try:
            return await self._server.stream.flush(alarm)
        except OSError as error:
            raise ServerGoneError from error


class RawSink:
    """Bytes as they are."""

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream

    def put(self, data: bytes) -> None:
        """As they are."""
        self._stream.put(data)

    def torn(self, data: bytes, size: int) -> None:
        """There are no chunks to tear."""
        self._stream.put(data[:size])

    async def flush(self, alarm: Alarm | None = None) -> bool:
        """Hand everything to the kernel."""
        return await self._stream.flush(alarm)
