"""A connection that is read only when its reader wishes, straight from the socket: what has gathered there is taken at once.

asyncio's transports read by themselves, 16 KiB of TLS at a time, and each piece passes five callbacks: of the CPU that a follow of logs took that
was the largest part, a microsecond a line. Here one system call takes up to 64 KiB of whatever has come, and nothing is done in between. The
buffers for that are shared by all connections of a client, so that a silent one has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any, Final

import aiohttp

# Small enough for what is made of it to stay in the processor's cache: pieces of 600 KiB cost a third more a line than those of 60.
_RAW: Final = 64 * 1024
_PLAIN: Final = 160 * 1024
# OpenSSL keeps as much of what it was given at once for each connection, bytes.
_PIECE: Final = 32 * 1024
# So much of a record may wait for its rest.
_RECORD: Final = 17 * 1024


class Buffers:
    """Where bytes pass through; one for all connections of a client, because nothing stays in it."""

    def __init__(self) -> None:
        self.raw = memoryview(bytearray(_RAW))
        self.plain = memoryview(bytearray(_PLAIN))


class Link:
    """One connection. Not to be read by two at once.

    Args:
        buffers: of the client.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._waiting: asyncio.Future[None] | None = None
        self._fault: OSError | None = None
        self._ended = False

    async def open(
        self, host: str, port: int, *, context: ssl.SSLContext | None, name: str | None, limit_s: float
    ) -> None:
        """Connect.

        Args:
            host: name or address of the server.
            port: there.
            context: of TLS; None = none.
            name: that the server's certificate must have; None = the host's.
            limit_s: longest time until TCP and TLS stand, seconds.

        Raises:
            OSError: it cannot be reached, or its certificate is refused.
            aiohttp.ConnectionTimeoutError: not in time.
        """
        try:
            async with asyncio.timeout(limit_s):
                self._socket = await _connected(host, port)
                if context is not None:
                    self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name or host)
                    await self._handshake(self._socket, self._tls)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def send(self, data: bytes) -> None:
        """Send all of this.

        Raises:
            OSError: the connection is gone.
        """
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        await asyncio.get_running_loop().sock_sendall(self._open(), data)

    def take(self) -> bytes:
        """What has come by now; empty when nothing has, or nothing more will.

        Raises:
            OSError: the connection broke; raised once all that had come was taken.
        """
        buffers, sock, have = self._buffers, self._open(), 0
        try:
            while not self._over and have + _RAW + _RECORD <= _PLAIN:
                count = sock.recv_into(buffers.raw)
                have = self._opened(count, have) if self._tls is not None else self._passed(count, have)
                if count < _RAW:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._fault = error
        if self._fault is not None and not have:
            raise self._fault
        return bytes(buffers.plain[:have])

    @property
    def ended(self) -> bool:
        """The other side has ended the connection in order; what it had sent was taken."""
        return self._ended

    async def wait(self) -> None:
        """Until something may have come.

        Raises:
            ConnectionAbortedError: it was closed here meanwhile.
        """
        if self._over:
            return
        loop = asyncio.get_running_loop()
        number = self._open().fileno()
        waiting = self._waiting = loop.create_future()
        loop.add_reader(number, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            # Of one that was closed meanwhile the number may be another socket's by now.
            if self._socket is not None:
                loop.remove_reader(number)

    def close(self) -> None:
        """Close it; who waits for it is told. May be called again."""
        if self._socket is None:
            return
        if self._waiting is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            if not self._waiting.done():
                self._waiting.set_exception(ConnectionAbortedError("closed here"))
        self._socket.close()
        self._socket = None

    # -- bytes

    @property
    def _over(self) -> bool:
        return self._ended or self._fault is not None

    def _passed(self, count: int, have: int) -> int:
        """Take bytes of a connection without TLS."""
        self._ended = count == 0
        self._buffers.plain[have : have + count] = self._buffers.raw[:count]
        return have + count

    def _opened(self, count: int, have: int) -> int:
        """Take TLS off; the number of plain bytes afterwards. An end without TLS's own word is an error: anybody could have caused it."""
        raw = self._buffers.raw
        if not count:
            self._incoming.write_eof()
            return self._read(have)
        for at in range(0, count, _PIECE):
            self._incoming.write(raw[at : min(count, at + _PIECE)])
            have = self._read(have)
        self._answer()
        return have

    def _read(self, have: int) -> int:
        """Read what is whole of what TLS was given; the number of plain bytes afterwards."""
        plain, incoming = self._buffers.plain, self._incoming
        tls: Any = self._tls
        read = tls.read
        try:
            while incoming.pending or tls.pending() or incoming.eof:
                # Into a buffer it gives a number, which its type does not know.
                count = read(_PLAIN - have, plain[have:])
                if not count:
                    self._ended = True
                    break
                have += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fault = error
        return have

    def _answer(self) -> None:
        """TLS may have something to say by itself (a change of keys): a few bytes, for which there is always room."""
        if self._outgoing.pending:
            with contextlib.suppress(OSError):
                self._open().send(self._outgoing.read())

    async def _handshake(self, sock: socket.socket, tls: ssl.SSLObject) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._outgoing.read())
                # Not into the shared buffer: others use it while this one waits.
                data = await loop.sock_recv(sock, _PIECE)
                if not data:
                    raise aiohttp.ServerDisconnectedError from None
                self._incoming.write(data)
                continue
            except ssl.SSLError:
                # Why we refuse is said to the other side, where it still listens.
                self._answer()
                raise
            await loop.sock_sendall(sock, self._outgoing.read())
            return

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionAbortedError("closed here")
        return self._socket


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _connected(host: str, port: int) -> socket.socket:
    """A connected socket to the first address of a name that answers.

    Raises:
        OSError: none does; the error of the last one.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = ConnectionRefusedError("the name has no address")
    for family, kind, protocol, _, address in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure
