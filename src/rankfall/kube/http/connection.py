"""One HTTP/1.1 connection read directly from the socket.

asyncio reads 16 KiB of TLS through five callbacks: most CPU of following logs. One system call reads up to 64
KiB into shared buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from typing import Any, Final, NamedTuple

import aiohttp
from multidict import CIMultiDict

from rankfall.model import numbers
from rankfall.model.patterns import anchored

# Bytes of the head, and between chunks: more than servers send.
MAX_HEAD: Final = 64 * 1024
_MAX_SIZE_LINE: Final = 4096
_STATUS: Final = anchored(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?", limit=8_192)
_HEADER: Final = anchored(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)", limit=1 << 16)
_SIZE: Final = anchored(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n", limit=8_192)
_CONTINUES: Final = 200
_LF: Final = ord("\n")


class Head(NamedTuple):
    """Status and headers of an answer."""

    status: int
    headers: CIMultiDict[str]


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """Returns head and following bytes; None if incomplete. Skips interim answers (1xx).

    Raises:
        OSError: Not HTTP/1.1, or too long.
    """
    while True:
        text, ended, rest = data.partition(b"\r\n\r\n")
        if not ended:
            if len(data) > MAX_HEAD or (data and not b"HTTP/1.".startswith(data[:7])):
                raise _protocol_error("its head")
            return None
        first, *lines = text.split(b"\r\n")
        found = _STATUS.fullmatch(first)
        headers: CIMultiDict[str] = CIMultiDict()
        for line in lines:
            field = _HEADER.fullmatch(line)
            if field is None:
                raise _protocol_error("a header")
            headers.add(field[1].decode("ascii"), field[2].rstrip().decode("utf-8", "replace"))
        if found is None:
            raise _protocol_error("its first line")
        status = numbers.matched(found[1])
        if status >= _CONTINUES:
            return Head(status, headers), rest
        data = rest


class Body:
    """Removes the framing (chunk sizes) from a body; ``ended`` is True if nothing follows.

    Raises:
        OSError: The server used an encoding that was not requested.
    """

    def __init__(self, head: Head) -> None:
        coding = head.headers.get("Transfer-Encoding", "").strip().lower()
        length = head.headers.get("Content-Length")
        if coding not in {"", "chunked"} or head.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _protocol_error("the form of its body")
        self._chunked = coding == "chunked"
        # Remaining bytes of the chunk with CR and LF, or of the body; None = until the connection ends.
        self._left: int | None = 0 if self._chunked else None
        self._rest = b""
        self.ended = False
        if not self._chunked and length is not None:
            self._left = numbers.whole(length) if length.isdigit() else None
            if self._left is None:
                raise _protocol_error("the length of its body")
            self.ended = self._left == 0

    def push(self, data: bytes) -> bytes:
        """Returns the body's part of these bytes; may be empty.

        Raises:
            OSError: The bytes contradict the head.
        """
        if self.ended:
            return b""
        if not self._chunked:
            return self._plain(data)
        if not self._left and not self._rest and data[-2:] == b"\r\n" and (text := _whole_chunks(data)) is not None:
            return text
        data, self._rest = self._rest + data if self._rest else data, b""
        # Views avoid copies.
        view = memoryview(data)
        pieces: list[memoryview] = []
        at, size, left = 0, len(data), self._left or 0
        while at < size:
            if not left:
                found = _SIZE.match(data, at)
                if found is None:
                    if b"\n" in data[at : at + _MAX_SIZE_LINE] or size - at > _MAX_SIZE_LINE:
                        raise _protocol_error("the size of a chunk")
                    self._rest = data[at:]
                    break
                at, left = found.end(), (numbers.hexadecimal(found[1]) or 0) + 2
                if left == 2:  # noqa: PLR2004 - the chunk that ends a body; headers may follow
                    self.ended = True
                    break
            end = at + left
            if end <= size:
                if data[end - 2 : end] != b"\r\n":
                    raise _protocol_error("the end of a chunk")
                pieces.append(view[at : end - 2])
                at, left = end, 0
                continue
            # The last two bytes are checked as a pair.
            take = max(0, min(size - at, left - 2))
            pieces.append(view[at : at + take])
            self._rest = data[at + take :]
            left -= take
            break
        self._left = left
        return b"".join(pieces)

    def closed(self) -> bool:
        """Handles the connection's regular end; True if the body is complete."""
        self.ended = self.ended or (self._left is None)
        return self.ended

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.ended = not self._left
        return data


def _whole_chunks(data: bytes) -> bytes | None:
    """Texts of complete chunks without CR, the usual case; None for any other."""
    # Searching one byte takes half the time of two.
    parts = (b"\n" + data).split(b"\r")
    texts = parts[1::2]
    if parts[:-1:2] != [b"\n%x" % (len(text) - 1) for text in texts]:
        return None
    found = [text[1:] for text in texts]
    # Each text starts with a removed LF and has other content.
    return b"".join(found) if all(found) and {text[0] for text in texts} == {_LF} else None


def _protocol_error(what: str) -> OSError:
    return OSError(errno.EPROTO, f"{what} is not HTTP/1.1")


# Fits the processor's cache: pieces of 600 KiB cost a third more per line than of 60.
_RAW: Final = 64 * 1024
_PLAIN: Final = 160 * 1024
# OpenSSL retains this many bytes per connection.
_PIECE: Final = 32 * 1024
# Bytes of an incomplete record that may wait.
_RECORD: Final = 17 * 1024


class Buffers:
    """Transfer buffers of all connections; no data remains in them."""

    def __init__(self) -> None:
        self.raw = memoryview(bytearray(_RAW))
        self.plain = memoryview(bytearray(_PLAIN))


class Link:
    """One connection. Only one task may read it at a time."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLObject | None = None
        self._received, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._waiting: asyncio.Future[None] | None = None
        self._fault: OSError | None = None
        self._ended = False

    async def open(
        self, host: str, port: int, *, context: ssl.SSLContext | None, name: str | None, limit_s: float
    ) -> None:
        """Connects within ``limit_s`` seconds; ``context`` None = no TLS.

        Raises:
            OSError: Unreachable, or certificate refused.
            aiohttp.ConnectionTimeoutError: The time-out expired.
        """
        try:
            async with asyncio.timeout(limit_s):
                self._socket = await _connected(host, port)
                if context is not None:
                    self._tls = context.wrap_bio(self._received, self._outgoing, server_hostname=name or host)
                    await self._handshake(self._socket, self._tls)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    async def send(self, data: bytes) -> None:
        """Sends all bytes.

        Raises:
            OSError: The connection is closed.
        """
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        await asyncio.get_running_loop().sock_sendall(self._open(), data)

    def take(self) -> bytes:
        """Returns available bytes; empty if none are available now or the connection ended.

        Raises:
            OSError: The connection broke; raised after all received bytes were returned.
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
        """True if the server closed in order and all bytes are read."""
        return self._ended

    async def wait(self) -> None:
        """Waits until bytes may be available.

        Raises:
            ConnectionAbortedError: ``close`` was called.
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
            # After a close, another socket may have this number.
            if self._socket is not None:
                loop.remove_reader(number)

    def close(self) -> None:
        """Closes the connection; a waiting reader gets an error. Repeatable."""
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
        self._ended = count == 0
        self._buffers.plain[have : have + count] = self._buffers.raw[:count]
        return have + count

    def _opened(self, count: int, have: int) -> int:
        """Decrypts TLS; an end without TLS close is an error: any host can cause it."""
        raw = self._buffers.raw
        if not count:
            self._received.write_eof()
            return self._read(have)
        for at in range(0, count, _PIECE):
            self._received.write(raw[at : min(count, at + _PIECE)])
            have = self._read(have)
        self._answer()
        return have

    def _read(self, have: int) -> int:
        plain, received = self._buffers.plain, self._received
        tls: Any = self._tls
        read = tls.read
        try:
            while received.pending or tls.pending() or received.eof:
                # With a buffer it returns a number, despite its type hint.
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
        """Sends TLS's few bytes (a change of keys); there is always room."""
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
                # Other connections use the shared buffer meanwhile.
                data = await loop.sock_recv(sock, _PIECE)
                if not data:
                    raise aiohttp.ServerDisconnectedError from None
                self._received.write(data)
                continue
            except ssl.SSLError:
                # Sends the reason of the refusal.
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
