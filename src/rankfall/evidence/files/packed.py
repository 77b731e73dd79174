"""Unpacks compressed logs in chunks: gzip, bzip2, xz and zstandard.

Cost: linear in the unpacked bytes; memory is one chunk and what the format needs, for xz at most ``_XZ_MEMORY``.
"""

from __future__ import annotations

import bz2
import errno
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from rankfall.evidence.files.bounded_read import CHUNK
from rankfall.rundir.streams.content import PACKED_SUFFIX, read_zstd

_READ: Final = 64 << 10
_XZ_MEMORY: Final = 128 << 20


class _Unpacker(Protocol):
    """The decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_FORMATS: Final[dict[str, Callable[[], _Unpacker]]] = {
    ".gz": _Gzip,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
}
SUFFIXES: Final = frozenset({PACKED_SUFFIX, *_FORMATS})


def unpacked(fd: int, path: Path) -> Iterator[bytes]:
    """Yields the content of a compressed file; its name's suffix is one of ``SUFFIXES``.

    Raises:
        OSError: The file cannot be read, or is damaged; what precedes the damage was yielded.
    """
    if path.suffix == PACKED_SUFFIX:
        yield from read_zstd(fd, path)
        return
    start = _FORMATS[path.suffix]
    unpacker, data = start(), b""
    while True:
        if not data and (unpacker.needs_input or unpacker.eof):
            data = os.read(fd, _READ)
            if not data:
                if not unpacker.eof:
                    raise OSError(errno.EIO, "its compressed data is cut off", str(path))
                return
        if unpacker.eof:
            # Another member follows: such files can be concatenated.
            unpacker = start()
        try:
            text = unpacker.decompress(data, CHUNK)
        except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise OSError(errno.EIO, f"its compressed data is damaged ({error})", str(path)) from None
        data = unpacker.unused_data if unpacker.eof else b""
        if text:
            yield text
