"""Whole lines out of the chunks of a watch's body, with a bound: the bytes after the last LF are not given, because they may be half an object.

It refuses a line without end: a server that never sends LF must not fill the memory.
"""

from __future__ import annotations

from typing import Final

# An object is at most about 1.5 MiB in etcd; its JSON with managed fields is a few times that in the worst case.
MAX_LINE: Final = 16 << 20


class LineTooLong(ValueError):  # noqa: N818 - reads as the answer that it is
    """A line is longer than the bound."""


class Lines:
    """Cuts chunks into lines.

    Args:
        limit: longest line in bytes, without its LF.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of the line that has not ended yet."""
        return self._held

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, without LF; empty ones are left out.

        Raises:
            LineTooLong: a line is longer than the bound; what this object held is gone.
        """
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        found: list[bytes] = []
        for piece in rest:
            # Joined once per line: adding to a bytes object would make a long line cost the square of its length.
            found.append(b"".join(self._pieces))
            self._pieces, self._held = [], 0
            self._hold(piece)
        return [line for line in found if line]

    def _hold(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._limit:
            self._pieces, self._held = [], 0
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if piece:
            self._pieces.append(piece)
