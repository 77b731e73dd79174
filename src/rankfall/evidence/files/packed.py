"""Unpacks compressed logs in chunks: gzip, bzip2, xz and zstandard.

Cost: linear in the unpacked bytes; memory is one chunk and what the format needs, for xz at most ``_XZ_MEMORY``.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rankfall.rundir.streams.content import PACKED_SUFFIX, Unpacker, read_zstd, unpack

_XZ_MEMORY: Final = 128 << 20


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


# Decompressor of each suffix, and what it raises for damage.
_FORMATS: Final[dict[str, tuple[Callable[[], Unpacker], tuple[type[Exception], ...]]]] = {
    ".gz": (_Gzip, (zlib.error,)),
    ".bz2": (bz2.BZ2Decompressor, (OSError, ValueError)),
    ".xz": (lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY), (lzma.LZMAError,)),
}
SUFFIXES: Final = (PACKED_SUFFIX, *_FORMATS)


def unpacked(fd: int, path: Path) -> Iterator[bytes]:
    """Yields the content of a compressed file in pieces; its name's suffix is one of ``SUFFIXES``.

    Raises:
        OSError: The file cannot be read, or is damaged; pieces before the damage come first.
    """
    if path.suffix == PACKED_SUFFIX:
        yield from read_zstd(fd, path)
        return
    start, errors = _FORMATS[path.suffix]
    yield from unpack(fd, path, start=start, errors=errors)
