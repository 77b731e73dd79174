"""Reads the bytes of one stream, raw while it grows or zstd-compressed once ended.

Always by raw name and offsets. The format is zstd's seekable one. The raw file is removed last, so a reader
always finds one.

Cost: time linear in packed and unpacked bytes; memory one frame of at most ``_MAX_FRAME`` bytes, or the window of
another program's file, and the caches.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

PACKED_SUFFIX: Final = ".zst"
# A whole frame is unpacked for one byte: a quarter of a millisecond.
FRAME: Final = 1 << 18
_MAX_FRAME: Final = 1 << 23
_LEVEL: Final = 3
# Caches: bytes of frames, and entries of tables (4,096 per GiB).
_FRAMES: Final = 32 << 20
_ENTRIES: Final = 1 << 19
_CHUNK: Final = 1 << 20
# Maximum windows: 128 MiB, zstd's default; and of Rankfall's frames.
_MAX_WINDOW_LOG: Final = 27
_MAX_FRAME_LOG: Final = 23
# Magic, two bytes of header, three of a block.
_LEAST_FRAME: Final = 9

# zstd's contrib/seekable_format: a skippable frame of entries, then count, flags, magic.
_SKIPPABLE: Final = struct.Struct("<II")
_SKIP_MAGIC: Final = 0x184D2A5E
_ENTRY: Final = struct.Struct("<II")
_FOOTER: Final = struct.Struct("<IBI")
_SEEK_MAGIC: Final = 0x8F92EAB1


class _Table(NamedTuple):
    """Start of each frame, packed and unpacked; one entry more than frames."""

    packed: Sequence[int]
    plain: Sequence[int]


class _Key(NamedTuple):
    """Identity of one file at the time of opening."""

    device: int
    inode: int
    size: int
    changed: int


class Packed:
    """One open compressed stream of ``size`` raw bytes; closes ``fd``.

    Raises:
        OSError: Unreadable or damaged.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path
        try:
            stat = os.fstat(fd)
            self._key = _Key(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            self._table = _tables.get(self._key, lambda: _table_of(fd, stat.st_size, path))
        except BaseException:
            os.close(fd)
            raise
        self.size = self._table.plain[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, start: int, length: int) -> bytes:
        """Returns bytes of the stream, fewer at its end.

        Raises:
            OSError: Unreadable or damaged.
        """
        end = min(start + length, self.size)
        if start >= end:
            return b""
        number = bisect_right(self._table.plain, start) - 1
        parts = []
        while start < end:
            first = self._table.plain[number]
            frame = self._frame(number)
            parts.append(frame[start - first : end - first])
            start = first + len(frame)
            number += 1
        return b"".join(parts)

    def _frame(self, number: int) -> bytes:
        return _frames.get((self._key, number), lambda: self._unpacked(number))

    def _unpacked(self, number: int) -> bytes:
        packed, plain = self._table
        size = plain[number + 1] - plain[number]
        data = os.pread(self._fd, packed[number + 1] - packed[number], packed[number])
        found: bytes
        zstd = _zstd()
        unpacker = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _MAX_FRAME_LOG})
        try:
            # One byte more detects a false size.
            found = unpacker.decompress(data, max_length=size + 1)
        except zstd.ZstdError as error:
            raise _damaged(self._path, f"frame {number}: {error}") from None
        if len(found) != size or not unpacker.eof:
            raise _damaged(self._path, f"frame {number} has another size than its table states")
        return found


def _table_of(fd: int, size: int, path: Path) -> _Table:
    """Table at the end of a file of this size."""
    footer = os.pread(fd, _FOOTER.size, max(0, size - _FOOTER.size))
    if len(footer) < _FOOTER.size:
        raise _damaged(path, "it has no table")
    count, flags, magic = _FOOTER.unpack(footer)
    length = count * _ENTRY.size + _FOOTER.size
    begin = size - length - _SKIPPABLE.size
    if magic != _SEEK_MAGIC or flags or begin < 0:
        raise _damaged(path, "it has no table")
    data = os.pread(fd, _SKIPPABLE.size + length, begin)
    if len(data) < _SKIPPABLE.size + length or _SKIPPABLE.unpack_from(data) != (_SKIP_MAGIC, length):
        raise _damaged(path, "its table is incomplete")
    rows = data[_SKIPPABLE.size : -_FOOTER.size]
    if any(packed < _LEAST_FRAME or not 0 < plain <= _MAX_FRAME for packed, plain in _ENTRY.iter_unpack(rows)):
        raise _damaged(path, "its table does not fit its frames")
    # Eight bytes per number: the table may have any length.
    packed = array("Q", accumulate((entry[0] for entry in _ENTRY.iter_unpack(rows)), initial=0))
    plain = array("Q", accumulate((entry[1] for entry in _ENTRY.iter_unpack(rows)), initial=0))
    if packed[-1] != begin:
        raise _damaged(path, "its table does not fit its frames")
    return _Table(packed, plain)


_K = TypeVar("_K")
_V = TypeVar("_V")


class _Recent(Generic[_K, _V]):
    """A thread-safe cache of recent values; one may exceed ``room``."""

    def __init__(self, room: int, cost: Callable[[_V], int]) -> None:
        self._room = room
        self._cost = cost
        self._lock = threading.Lock()
        self._found: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Value; computes it if uncached."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            if key not in self._found:
                self._found[key] = made
                self._room -= self._cost(made)
            while self._room < 0 and len(self._found) > 1:
                _, oldest = self._found.popitem(last=False)
                self._room += self._cost(oldest)
        return made


_frames: Final[_Recent[tuple[_Key, int], bytes]] = _Recent(_FRAMES, len)
_tables: Final[_Recent[_Key, _Table]] = _Recent(_ENTRIES, lambda table: len(table.plain))


def pack(source: int, target: int, *, frame: int = FRAME) -> int:
    """Writes a file's compressed form; returns the uncompressed bytes.

    Raises:
        OSError: Reading or writing failed.
    """
    zstd = _zstd()
    options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    entries = []
    start = 0
    while data := os.pread(source, frame, start):
        packed = zstd.compress(data, options=options)
        _write(target, packed)
        entries.append(_ENTRY.pack(len(packed), len(data)))
        start += len(data)
    table = b"".join(entries) + _FOOTER.pack(len(entries), 0, _SEEK_MAGIC)
    _write(target, _SKIPPABLE.pack(_SKIP_MAGIC, len(table)) + table)
    return start


class Unpacker(Protocol):
    """A decompressor as those of the standard library."""

    @property
    def eof(self) -> bool:
        """True after the end of the frame."""

    @property
    def needs_input(self) -> bool:
        """True if no more content can come without further input."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the frame."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Returns at most ``max_length`` bytes of content, and stores the rest of the input."""


def read_zstd(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Yields any zstd file, given in pieces, in pieces of at most 1 MiB; a piece may be empty.

    Its window, at most 128 MiB, bounds memory.

    Raises:
        OSError: Unreadable, not zstd, too large a window, truncated.
    """
    zstd = _zstd()
    options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
    yield from unpack(chunks, path, start=lambda: zstd.ZstdDecompressor(options=options), errors=(zstd.ZstdError,))


def unpack(
    chunks: Iterator[bytes], path: Path, *, start: Callable[[], Unpacker], errors: tuple[type[Exception], ...]
) -> Iterator[bytes]:
    """Yields the content of all frames of a compressed file in pieces of at most 1 MiB; a piece may be empty.

    ``chunks``: the file; none is empty.

    ``start`` makes the decompressor of a frame, which raises ``errors`` for damage.

    Raises:
        OSError: Unreadable, damaged or truncated.
    """
    unpacker = None
    data = next(chunks, b"")
    while data or unpacker is None or not unpacker.eof:
        if unpacker is None or unpacker.eof:
            unpacker = start()
        elif not data and unpacker.needs_input:
            raise _damaged(path, "it is cut off: it ends inside a frame")
        try:
            piece = unpacker.decompress(data, max_length=_CHUNK)
        except errors as error:
            raise _damaged(path, str(error)) from None
        yield piece
        # A new frame gets the old one's unused input.
        data = unpacker.unused_data if unpacker.eof else b""
        if not data and (unpacker.eof or unpacker.needs_input):
            data = next(chunks, b"")


def _zstd() -> ModuleType:
    """Zstd library; loaded late."""
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415
    else:
        from backports import zstd  # noqa: PLC0415
    return zstd


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _damaged(path: Path, why: str) -> OSError:
    return OSError(errno.EIO, f"is damaged: {why}", str(path))


class Raw:
    """One open uncompressed stream of ``size`` bytes; closes ``fd``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, start: int, length: int) -> bytes:
        """Returns bytes of the stream, fewer at its end.

        Raises:
            OSError: The file cannot be read.
        """
        return os.pread(self._fd, max(0, length), start)


def packed_path(stream: Path) -> Path:
    """Compressed form's path: ``0.out.log.zst``."""
    return stream.with_name(stream.name + PACKED_SUFFIX)


def open_content(path: Path) -> Raw | Packed:
    """Opens a stream by its raw form's path, whether or not that exists.

    Raises:
        OSError: Neither form is readable.
    """
    try:
        return Raw(open_regular(path))
    except FileNotFoundError:
        packed = packed_path(path)
        try:
            fd = open_regular(packed)
        except FileNotFoundError:
            pass
        else:
            return Packed(fd, packed)
        raise


def content_size(path: Path) -> int:
    """Returns the size of a stream in bytes.

    Raises:
        OSError: As :func:`open_content`.
    """
    try:
        return os.stat(path).st_size  # noqa: PTH116 - called for thousands at each poll
    except FileNotFoundError:
        with open_content(path) as content:
            return content.size


def read_bytes(path: Path, start: int, length: int) -> bytes:
    """Returns bytes of a stream, fewer at its end.

    Raises:
        OSError: As :func:`open_content`.
    """
    with open_content(path) as content:
        return content.read(start, length)


def open_regular(path: Path, *, links: bool = True) -> int:
    """Opens a regular file; a job's pipe must not block the reader.

    ``links``: its last part may be a link.

    Raises:
        OSError: Unopenable, not regular, or a refused link.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "is a link, and links are not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return fd


def lock_is_free(path: Path) -> bool:
    """True if no process holds this file's ``flock``; False if unopenable."""
    try:
        fd = open_regular(path, links=False)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
