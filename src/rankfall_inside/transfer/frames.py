"""Frames of a file transfer: kind, length, body, over any byte stream.

Refuses an unknown or overlong frame before it reads the body.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

# Kind (a letter), length of the body.
_HEAD = struct.Struct(">cI")
ENTRY, MANIFEST, HAVE, READY, FILE, DATA, SUM, SAME, ALL, DONE, ERROR, PING = (
    b"E", b"M", b"H", b"R", b"F", b"D", b"S", b"O", b"Z", b"K", b"X", b"P",
)  # fmt: skip
_KINDS = frozenset((ENTRY, MANIFEST, HAVE, READY, FILE, DATA, SUM, SAME, ALL, DONE, ERROR, PING))
DATA_BYTES = 128 << 10
MAX_BODY = 256 << 10


class TransferError(Exception):
    """The transfer failed; the text is for users."""


class TransferInterruptedError(TransferError):
    """The connection ended early; a new try resumes."""


class Channel:
    """Sends and receives frames; ``read`` returns fewer bytes only at the end.

    ``tick`` is called on progress. Only one side may answer pings.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        write: Callable[[bytes], object],
        *,
        tick: Callable[[], object] = lambda: None,
        answers: bool = False,
    ) -> None:
        self._read = read
        self._write = write
        self.tick = tick
        self._answers = answers

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Writes one frame."""
        self._write(frame(kind, body))

    def get(self) -> tuple[bytes, bytes]:
        """Returns the next frame except pings.

        Raises:
            TransferInterruptedError: The stream ended.
            TransferError: The other side failed (its message), or sends invalid frames.
        """
        while True:
            # Received data counts even if the other side has ended.
            self.tick()
            kind, length = self._head()
            body = self._exactly(length)
            if kind == ERROR:
                raise TransferError(body.decode("utf-8", "backslashreplace")[:4000])
            if kind != PING:
                return kind, body
            if self._answers:
                self.put(PING)

    def _head(self) -> tuple[bytes, int]:
        kind, length = _HEAD.unpack(self._exactly(_HEAD.size))
        if kind not in _KINDS or length > MAX_BODY:
            msg = f"the other side of the transfer sent an unknown kind of frame, {kind!r}, or one that is too long"
            raise TransferError(msg)
        return kind, length

    def _exactly(self, size: int) -> bytes:
        data = self._read(size) if size else b""
        if len(data) < size:
            raise TransferInterruptedError("the connection ended before the transfer was complete")
        return data


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """Returns one frame as bytes."""
    return _HEAD.pack(kind, len(body)) + body


def printable(path: bytes) -> str:
    """Returns a path as readable text."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(text)
