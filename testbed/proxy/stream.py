"""A TLS connection whose socket stays in our hands, so that it can be reset, half closed or simply left lying.

asyncio's own TLS transports buffer by the quarter megabyte and hide the socket. Here a byte is read when somebody asks for it and a write ends
when the kernel has taken it: back-pressure needs no further care. All waiting can be broken off without losing a byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

_PIECE = 65536
# How long a connection that was ended waits for the other side to take it, before it is closed.
_LINGER_S = 2.0

Alarm = asyncio.Future[Any]


class TlsStream:
    """One connection.

    Args:
        sock: connected; set to non-blocking and closed by this object.
        context: of TLS.
        server: whether this is the server's side.
        name: the server's name that its certificate must bear (client's side).
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, name: str | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name)
        self._unsent = memoryview(b"")
        self._flushing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.closed = False

    async def handshake(self) -> None:
        """TLS's handshake.

        Raises:
            OSError: the peer went away, or TLS failed (``ssl.SSLError`` is one).
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                if not await self._fill(None):
                    raise ConnectionResetError("the peer closed in the handshake") from None
            except ssl.SSLError:
                # The peer learns why, as TLS wants it.
                with contextlib.suppress(OSError):
                    await self.flush()
                raise
            else:
                await self.flush()
                return

    def subject(self) -> list[tuple[str, str]]:
        """Parts of the name in the peer's certificate, which TLS has verified; empty = it showed none."""
        found = self._tls.getpeercert() or {}
        parts = found.get("subject", ())
        return [(str(pair[0]), str(pair[1])) for part in parts if isinstance(part, tuple) for pair in part]

    async def receive(self, alarm: Alarm | None = None) -> bytes | None:
        """The next bytes; empty = the peer has ended; None = the alarm rang first.

        Raises:
            OSError: the connection is broken.
        """
        while True:
            try:
                return self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                if self._out.pending:
                    await self.flush()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            if await self._fill(alarm) is None:
                return None

    def put(self, data: bytes) -> None:
        """Encrypt for the next ``flush``.

        Raises:
            OSError: TLS is shut.
        """
        if data:
            self._tls.write(data)

    async def flush(self, alarm: Alarm | None = None) -> bool:
        """Hand everything to the kernel; False = the alarm rang first, and a later call goes on.

        Raises:
            OSError: the connection is broken.
        """
        async with self._flushing:
            while True:
                if not self._unsent:
                    self._unsent = memoryview(self._out.read())
                    if not self._unsent:
                        return True
                try:
                    sent = self._sock.send(self._unsent)
                except BlockingIOError:
                    if not await self._ready(self._loop.add_writer, self._loop.remove_writer, alarm):
                        return False
                    continue
                self._unsent = self._unsent[sent:]

    async def send(self, data: bytes) -> None:
        """``put`` and ``flush``."""
        self.put(data)
        await self.flush()

    def reset(self) -> None:
        """Close with RST."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    async def finish(self, *, good_bye: bool) -> None:
        """Send FIN, give the peer a moment to take everything, close.

        Args:
            good_bye: say so in TLS too; a process that dies does not.
        """
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self.half_close(good_bye=good_bye)
                await self.wait_until_gone()
        self.close()

    async def half_close(self, *, good_bye: bool = True) -> None:
        """No more will be sent."""
        if good_bye:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        await self.flush()
        self._sock.shutdown(socket.SHUT_WR)

    async def wait_until_gone(self) -> None:
        """Read and drop until the peer ends; nothing is sent."""
        with contextlib.suppress(OSError):
            while True:
                await self._ready(self._loop.add_reader, self._loop.remove_reader, None)
                with contextlib.suppress(BlockingIOError):
                    if not self._sock.recv(_PIECE):
                        return

    def close(self) -> None:
        """Close the socket, at once."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()

    async def _fill(self, alarm: Alarm | None) -> bool | None:
        while True:
            if alarm is not None and alarm.done():
                return None
            try:
                data = self._sock.recv(_PIECE)
            except BlockingIOError:
                if not await self._ready(self._loop.add_reader, self._loop.remove_reader, alarm):
                    return None
                continue
            if data:
                self._in.write(data)
                return True
            self._in.write_eof()
            return False

    async def _ready(
        self,
        add: Callable[[socket.socket, Callable[[], None]], None],
        remove: Callable[[socket.socket], bool],
        alarm: Alarm | None,
    ) -> bool:
        if self.closed:
            raise ConnectionAbortedError("the connection is closed")
        ready: Alarm = self._loop.create_future()
        add(self._sock, lambda: _ring(ready))
        try:
            if alarm is None:
                await ready
                return True
            await asyncio.wait((ready, alarm), return_when=asyncio.FIRST_COMPLETED)
            return ready.done()
        finally:
            if not self.closed:
                remove(self._sock)


def _ring(alarm: Alarm) -> None:
    if not alarm.done():
        alarm.set_result(None)
