"""The frames of a file transfer: kind, length, body, over anything that carries bytes.

Both sides are this package: the user's machine, the copy pod, and a slot that unpacks its code. An unknown or
overlong frame is refused before its body is read.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

# kind (one letter) and length of the body.
_HEAD = struct.Struct(">cI")
ENTRY, MANIFEST, HAVE, READY, FILE, DATA, SUM, SAME, ALL, DONE, ERROR, PING = (
    b"E", b"M", b"H", b"R", b"F", b"D", b"S", b"O", b"Z", b"K", b"X", b"P",
)  # fmt: skip
_KINDS = frozenset((ENTRY, MANIFEST, HAVE, READY, FILE, DATA, SUM, SAME, ALL, DONE, ERROR, PING))
DATA_BYTES = 128 << 10
MAX_BODY = 256 << 10


class TransferError(Exception):
    """What was to be carried cannot be; the text is for people."""


class TransferInterruptedError(TransferError):
    """The other side is gone before all was there; the same may be tried again and goes on where it stopped."""


class Channel:
    """Frames both ways, one after the other.

    Args:
        read: gives exactly so many bytes, fewer only at the end.
        write: takes all bytes.
        tick: called whenever something moved: whoever watches over a silent side hears of it.
        answers: whether a ping is answered with one; only one side may.
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
        """Write one frame."""
        self._write(frame(kind, body))

    def get(self) -> tuple[bytes, bytes]:
        """The next frame that is no ping.

        Raises:
            CutError: there is none any more.
            CarryError: the other side cannot go on, in its own words; or it does not speak this language.
        """
        while True:
            # Before it is read, never after: what was read counts, also when the other side ended with it.
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
            msg = f"the other side of the transfer does not speak its language: {kind!r}"
            raise TransferError(msg)
        return kind, length

    def _exactly(self, size: int) -> bytes:
        data = self._read(size) if size else b""
        if len(data) < size:
            raise TransferInterruptedError("the connection ended before all was there")
        return data


def frame(kind: bytes, body: bytes = b"") -> bytes:
    """One frame as bytes."""
    return _HEAD.pack(kind, len(body)) + body


def printable(path: bytes) -> str:
    """A path for people; names may hold any byte but two."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(text)
