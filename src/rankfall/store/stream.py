"""One raw stream and its index: when a byte came, and on which line it stands. Reads only, in bounded pieces.

The index (docs/architecture.md, "The slot directory") is a help, never the truth: a torn tail is passed over, and a damaged index costs
stamps and time but no byte of the stream.

Cost: a binary search a question, and at most one chunk to count lines in; nothing is kept.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from rankfall.model import StoreError
from rankfall.store.content import Raw, open_content, open_regular
from rankfall.store.packed import Packed

MAGIC: Final = b"RFIDX1\0\0"
ROW: Final = struct.Struct("<QQqqB7x")
# The stamps of the lines of one row lie within this, nanoseconds, where both ends of them are known.
MOST_APART_NS: Final = 100_000_000
BLOCK: Final = 1 << 20
_BATCH: Final = 512


class IndexRow(NamedTuple):
    """One chunk of a stream.

    Attributes:
        offset: its first byte.
        line: the first line that begins in it, from 0.
        stamp: when its first line came, nanoseconds since the epoch.
        last: when its last line came; 0 = not known, or as ``stamp`` where that is the wrapper's clock.
        source: of the stamps.
    """

    offset: int
    line: int
    stamp: int
    last: int
    source: int


class IndexReader:
    """Rows of a stream's index; the file may grow between calls. No file stays open.

    Args:
        stream: the stream's file, as ``0.out.log``; its index is ``0.out.idx``.

    Attributes:
        problem: why the index cannot be used, in words; None while it can. A missing index is a problem too.
    """

    def __init__(self, stream: Path) -> None:
        self.path = index_path(stream)
        self.problem: str | None = None

    def __len__(self) -> int:
        """Whole rows."""
        with _Opened(self) as file:
            return file.count

    def rows(self, first: int, count: int = _BATCH) -> list[IndexRow]:
        """Up to ``count`` rows from row ``first`` on."""
        with _Opened(self) as file:
            return file.rows(first, count)

    def find(self, byte: int) -> int:
        """Number of the row whose chunk holds ``byte``; -1 when none does."""
        with _Opened(self) as file:
            return file.bisect(lambda row: row.offset <= byte)

    def at(self, byte: int) -> IndexRow | None:
        """The row whose chunk holds ``byte``."""
        with _Opened(self) as file:
            number = file.bisect(lambda row: row.offset <= byte)
            return file.rows(number, 1)[0] if number >= 0 else None

    def stamp(self, byte: int) -> int | None:
        """When the chunk of ``byte`` came; for bytes after the last row its stamp, which is a lower bound. None = unknown."""
        row = self.at(byte)
        return row.stamp if row else None

    def last_stamp(self) -> int | None:
        """When the newest line came, as far as the newest row says."""
        with _Opened(self) as file:
            rows = file.rows(file.count - 1, 1)
            if not rows:
                return None
            stamp, last = rows[0].stamp, rows[0].last
            return last if stamp < last <= stamp + MOST_APART_NS else stamp

    def offset_since(self, stamp: int) -> int | None:
        """Offset of the first chunk that came at ``stamp`` or later; None when there is none.

        Where the clock stepped back between chunks, a chunk near the step may be taken for its neighbour.
        """
        with _Opened(self) as file:
            found = file.rows(file.bisect(lambda row: row.stamp < stamp) + 1, 1)
            return found[0].offset if found else None


class _Opened:
    """The index while one question is answered."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._fd = -1
        self.count = 0

    def __enter__(self) -> Self:
        path = self._reader.path
        try:
            self._fd = open_regular(path)
            head = os.pread(self._fd, len(MAGIC), 0)
            size = os.fstat(self._fd).st_size
        except OSError as error:
            self._reader.problem = f"{path.name} cannot be read: {error.strerror or error}"
            return self
        if head != MAGIC:
            # Shorter than its head: the writer is just beginning.
            self._reader.problem = f"{path.name} is no index" if size >= len(MAGIC) else None
            return self
        self._reader.problem = None
        self.count = (size - len(MAGIC)) // ROW.size
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def rows(self, first: int, count: int) -> list[IndexRow]:
        count = min(count, self.count - first)
        if first < 0 or count <= 0:
            return []
        data = os.pread(self._fd, count * ROW.size, len(MAGIC) + first * ROW.size)
        return [IndexRow._make(row) for row in ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size])]

    def bisect(self, before: Callable[[IndexRow], bool]) -> int:
        """Number of the last row for which ``before`` holds (it holds for a first part of the rows); -1 when for none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            row = self.rows(middle, 1)
            if row and before(row[0]):
                low = middle + 1
            else:
                high = middle
        return low - 1


def index_path(stream: Path) -> Path:
    """Where a stream's index lies: ``0.out.log`` -> ``0.out.idx``."""
    return stream.with_suffix(".idx")


def position(path: Path, byte: int) -> int:
    """The line (from 1) that holds byte ``byte`` of a stream: the number in ``path:line``.

    With an index at most one chunk is counted. A byte at or after the end is on the line that would come next.

    Raises:
        StoreError: the stream cannot be read.
    """
    row = IndexReader(path).at(byte)
    try:
        with open_content(path) as content:
            start, line = _anchor(content, row, byte)
            while start < byte:
                data = content.read(start, min(BLOCK, byte - start))
                if not data:
                    break
                line += data.count(b"\n")
                start += len(data)
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror or error}",
            hint="the stream was moved or is not readable; rankfall doctor",
        ) from error
    return line + 1


def _anchor(content: Raw | Packed, row: IndexRow | None, byte: int) -> tuple[int, int]:
    """A byte at or before ``byte`` and the line (from 0) that it stands on, from a row when that can be true."""
    if row is None or not 0 < row.offset <= byte or row.line > row.offset + 1:
        return 0, 0
    before = content.read(row.offset - 1, 1)
    line = row.line if before == b"\n" else row.line - 1
    return (row.offset, line) if before and line >= 0 else (0, 0)


def stamps_backward(index: IndexReader, byte: int) -> Iterator[IndexRow]:
    """Rows from the one that holds ``byte`` back to the first."""
    number = index.find(byte)
    while number >= 0:
        first = max(0, number - _BATCH + 1)
        yield from reversed(index.rows(first, number - first + 1))
        number = first - 1
