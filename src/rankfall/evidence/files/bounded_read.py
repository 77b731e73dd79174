"""Reads and unpacks logs within bounds: of a long or slow one, beginning and end.

The end best shows why a job ended. Memory is independent of the unpacked size: one chunk and what the format needs.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import lzma
import os
import select
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from rankfall.rundir.streams.content import PACKED_SUFFIX, Unpacker, read_zstd, unpack

CHUNK: Final = 1 << 20
# Compressed bytes of one read; each frame's end copies the rest.
_INPUT: Final = 16 << 10
# Bytes from the end of a long log.
TAIL: Final = 16 << 20
# Unpacked to packed size before only the end is read: text logs have 5 to 50.
RATIO: Final = 200
# Unpacked bytes allowed at any packed size.
LEAST_UNPACKED: Final = 4 << 20
# Maximum bytes of a file without a size, as in /proc.
MAX_UNSIZED: Final = 16 << 20
# Bytes for the evidence of all files, and of one piece without its line.
_MAX_KEPT: Final = 48 << 20
_PIECE: Final = 1000
# Share of a log's time for its beginning.
_HEAD_SHARE: Final = 0.75
# Minimum seconds a file: enough for 100 MB of text.
_LEAST_S: Final = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one explanation of files.

    Attributes:
        files: Number of files; enough for 10,000 ranks with two streams.
        size: Bytes after unpacking, more than can be read in ``seconds``.
        seconds: CPU or wall time; 10 GB of text take less on one core.
    """

    files: int = 20_000
    size: int = 16 << 30
    seconds: float = 60.0


class Input(Protocol):
    """An open binary file, as standard input."""

    def read(self, size: int, /) -> bytes | None:
        """Returns at most ``size`` bytes; None if a non-blocking file has none now."""
        ...

    def fileno(self) -> int:
        """Returns the descriptor to wait for."""
        ...


class Part(NamedTuple):
    """Bytes of a log at an offset; between two parts bytes were skipped."""

    start: int
    data: bytes


class Share(msgspec.Struct, kw_only=True):
    """Limits of one log; its reader records results here.

    Attributes:
        head_until, until: Deadlines for the beginning and for the whole log, by ``clock``.
        taken: Bytes read or unpacked.
        unread: Bytes unread because of ``why``.
        endless: More bytes of unknown number are unread.
    """

    size: int
    head_until: float
    until: float
    clock: Callable[[], float]
    taken: int = 0
    unread: int = 0
    endless: bool = False
    why: str = "it is larger than the limit of one explanation"

    def late(self, *, head: bool = False) -> bool:
        """True if the time for the log, or with ``head`` for its beginning, is over."""
        over = self.clock() >= (self.head_until if head else self.until)
        if over:
            self.why = "reading it takes longer than the limit of one explanation"
        return over


class Allowance:
    """Divides limits among files; unused parts go to later ones.

    ``clock`` may be CPU time, so that waiting does not count.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._until = clock() + limits.seconds
        self._size = limits.size

    @property
    def spent(self) -> str | None:
        """The limit that is reached, as text for users; None if none is."""
        if self._clock() >= self._until:
            return f"{self.limits.seconds:g} seconds"
        return f"{self.limits.size:,} bytes" if self._size <= 0 else None

    def share(self, files: int) -> Share:
        """Share of the next of ``files`` files."""
        now = self._clock()
        left = max(0.0, self._until - now)
        seconds = min(left, max(_LEAST_S, left / files))
        return Share(
            size=max(CHUNK, self._size // files),
            head_until=now + seconds * _HEAD_SHARE,
            until=now + seconds,
            clock=self._clock,
        )

    def settle(self, share: Share) -> None:
        """Subtracts the bytes that a share used."""
        self._size -= share.taken


class Room:
    """Remaining memory for evidence of all files."""

    def __init__(self) -> None:
        self._left = _MAX_KEPT

    def take(self, line: str) -> bool:
        """True if evidence with this line can be stored unchanged."""
        if self._left <= 0:
            return False
        self._left -= _PIECE + sys.getsizeof(line)
        return True


def parts_of_file(fd: int, size: int, share: Share) -> Iterator[Part]:
    """Yields the parts of a regular file up to its current size; later data is ignored.

    Raises:
        OSError: The file cannot be read.
    """
    sparse = os.fstat(fd).st_blocks * 512 < size
    head = size if size <= share.size else max(share.size - TAIL, share.size // 2)
    at = 0
    for begin, end, first in ((0, head, True), (size - min(TAIL, share.size // 2), size, False)):
        share.unread += max(0, begin - at)
        at = max(at, begin)
        while at < end and not share.late(head=first):
            at = _next_data(fd, at, end) if sparse else at
            data = os.pread(fd, min(CHUNK, end - at), at) if at < end else b""
            if not data:
                break
            share.taken += len(data)
            yield Part(at, data)
            at += len(data)
        if at >= size or (at < end and not share.late(head=first)):
            return  # complete, or truncated meanwhile
    share.unread += size - at


def _next_data(fd: int, at: int, end: int) -> int:
    try:
        return min(end, os.lseek(fd, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        return at  # no holes here


def parts_of_stream(chunks: Iterable[bytes], share: Share, *, head: int) -> Iterator[Part]:
    """Yields the parts of a source that is readable only once, from its beginning.

    ``head``: maximum bytes of the beginning, and of the end.

    Raises:
        OSError: From ``chunks``, after yielding earlier bytes.
    """
    tail: deque[bytes] = deque()
    at = held = 0
    most = min(TAIL, head)
    broken: OSError | None = None
    source = iter(chunks)
    while True:
        try:
            data = next(source, None)
        except OSError as error:
            broken = error
            break
        if data is None:
            break
        share.taken += len(data)
        if not tail and at < head and not share.late(head=True):
            if data:
                yield Part(at, data)
            at += len(data)
            continue
        tail.append(data)
        held += len(data)
        while held - len(tail[0]) >= most:
            dropped = len(tail.popleft())
            held -= dropped
            share.unread += dropped
            at += dropped
        if share.late() or share.taken >= share.size:
            share.endless = True
            break
    for data in tail:
        yield Part(at, data)
        at += len(data)
    if broken is not None:
        raise broken


def chunks_of_pipe(fd: int) -> Iterator[bytes]:
    """Yields the bytes of a non-blocking pipe; none without a writer."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    while True:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            waiter.poll()
            continue
        if not data:
            return
        yield data


def chunks_of_input(file: Input) -> Iterator[bytes]:
    """Yields the bytes of standard input, or of any other open file."""
    while True:
        data = file.read(CHUNK)
        if data is None:  # the parent process made it non-blocking
            select.select([file], [], [])
            continue
        if not data:
            return
        yield data


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
# First bytes of compressed files, whatever their names, and of files that are no logs.
_PACKED: Final = {
    b"\x1f\x8b\x08": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": PACKED_SUFFIX,
}
_NO_TEXT: Final = {
    b"\x7fELF": "a program",
    b"PK\x03\x04": "a zip archive",
    b"SQLite format 3\x00": "a database",
    b"%PDF-": "a PDF document",
    b"\x89PNG\r\n": "an image",
    b"\xff\xd8\xff": "an image",
    b"\x93NUMPY": "an array",
    # Their lines are those of logs that may lie beside them.
    b"<!doctype html><!-- Rankfall report -->": "a report of Rankfall",
    b"# Rankfall report of ": "a report of Rankfall",
    b'{\n  "schema": "rankfall.': "a document of Rankfall",
}
# Bytes that show what a file is. A multiple of 8: files of /proc as pagemap refuse other sizes.
HEAD: Final = 1024


def packing(head: bytes, path: Path) -> str | None:
    """Suffix of the compression that the first ``HEAD`` bytes or the name show; None for other files."""
    named = path.suffix if path.suffix in SUFFIXES else None
    return next((suffix for magic, suffix in _PACKED.items() if head.startswith(magic)), named)


def no_text(head: bytes) -> str | None:
    """Kind of a file without text, by its first ``HEAD`` bytes; None for other files."""
    return next((kind for magic, kind in _NO_TEXT.items() if head.startswith(magic)), None)


def unpacked_stream(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Yields a stream as UTF-8, uncompressed if its first bytes show a compression; exceptions as for :func:`unpacked`."""
    first, whole = _head_of(chunks)
    suffix = packing(first, path)
    yield from as_utf8(whole) if suffix is None else unpacked(whole, path, suffix=suffix)


# Fewest bytes that show an encoding without a mark.
_LEAST_WIDE: Final = 16
# The longer marks first: one begins with another.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS: Final = frozenset(map(chr, range(32))) - set("\a\b\t\n\v\f\r\x1b")


def wide_encoding(data: bytes) -> str | None:
    """Encoding of a text with two or four bytes a character, by its first ``HEAD`` bytes; None for other files.

    Without a mark nearly every other byte must be NUL, and the others text.
    """
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    data = data[: min(HEAD, len(data) & ~1)]
    if marked is not None or len(data) < _LEAST_WIDE:
        return marked
    even, odd = data[::2], data[1::2]
    for name, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if 4 * high.count(0) >= 3 * len(high) and 16 * low.count(0) <= len(low):
            return None if _CONTROLS & set(data.decode(name, "replace")) else name
    return None


def as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields a text as UTF-8 whose first bytes show a wider encoding, and any other one as it is.

    Raises:
        OSError: From ``chunks``, after yielding earlier bytes.
    """
    first, whole = _head_of(chunks)
    if (encoding := wide_encoding(first)) is None:
        yield from whole
    else:
        yield from (part.data for part in parts_as_utf8(_placed(whole), encoding))


def _head_of(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """First ``HEAD`` bytes of a stream, or a few more, and all of it; an error of the stream comes after its bytes."""
    first, rest = b"", chunks
    try:
        while len(first) < HEAD and (data := next(chunks, b"")):
            first += data
    except OSError as error:
        rest = _raising(error)
    return first, chain((first,) if first else (), rest)


def _raising(error: OSError) -> Iterator[bytes]:
    raise error
    yield


def parts_as_utf8(parts: Iterable[Part], encoding: str) -> Iterator[Part]:
    """Yields the parts of a text of a wide encoding as UTF-8, at offsets in that; what was skipped stays a gap.

    Raises:
        OSError: From ``parts``, after yielding earlier ones.
    """
    decode = codecs.getincrementaldecoder(encoding)
    width = 4 if "32" in encoding else 2
    decoder, following, at, torn = decode("replace"), 0, 0, 0
    for start, data in parts:
        if start != following:
            # A gap need not end where a character begins.
            decoder, at, torn = decode("replace"), max(at + 1, start), -start % width
        following = start + len(data)
        text = decoder.decode(data[torn:])
        torn = max(0, torn - len(data))
        yield Part(at, (part := (text if at else text.removeprefix("\ufeff")).encode()))
        at += len(part)
    yield Part(at, decoder.decode(b"", final=True).encode())


def _placed(chunks: Iterable[bytes]) -> Iterator[Part]:
    at = 0
    for data in chunks:
        yield Part(at, data)
        at += len(data)


def chunks_of_file(fd: int) -> Iterator[bytes]:
    """Yields the bytes of a regular file from its offset."""
    return iter(lambda: os.read(fd, _INPUT), b"")


def unpacked(chunks: Iterator[bytes], path: Path, *, suffix: str) -> Iterator[bytes]:
    """Yields the text of a compressed file in pieces, as UTF-8; ``suffix`` is one of ``SUFFIXES``.

    Raises:
        OSError: The file cannot be read, or is damaged; pieces before the damage come first.
    """
    if suffix == PACKED_SUFFIX:
        yield from as_utf8(read_zstd(chunks, path))
        return
    start, errors = _FORMATS[suffix]
    yield from as_utf8(unpack(chunks, path, start=start, errors=errors))


def parts_of(path: Path, fd: int, first: bytes, share: Share, *, pipe: bool) -> Iterator[Part]:
    """Yields the text of an open file or pipe as UTF-8, unpacked if need be; ``first``: its first bytes."""
    if pipe:
        return parts_of_stream(unpacked_stream(chunks_of_pipe(fd), path), share, head=share.size // 4 * 3)
    size = os.fstat(fd).st_size
    if (suffix := packing(first, path)) is not None:
        head = share.size // 4 * 3
        if head > (most := max(LEAST_UNPACKED, RATIO * size)):
            head, share.why = most, f"it unpacks to more than {RATIO} times its size"
        return parts_of_stream(unpacked(chunks_of_file(fd), path, suffix=suffix), share, head=head)
    if not size:
        share.size = min(share.size, MAX_UNSIZED + TAIL)
        return parts_of_stream(chunks_of_pipe(fd), share, head=MAX_UNSIZED)
    parts = parts_of_file(fd, size, share)
    return parts if (encoding := wide_encoding(first)) is None else parts_as_utf8(parts, encoding)
