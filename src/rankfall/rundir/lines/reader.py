"""Reads whole lines of one stream, forward or backward, in bounded memory.

Only LF ends a line. Lines beyond MAX_LINE are truncated for display.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.rundir.streams.content import Packed, Raw, content_size, open_content, read_bytes
from rankfall.rundir.streams.files import IndexReader, IndexRow, stamps_backward

MAX_LINE: Final = 1 << 20
MIN_BLOCK: Final = 2048
_REST: Final = 2048


class Span(NamedTuple):
    """Adjacent lines of one timestamp.

    Attributes:
        at: Chunk's arrival, nanoseconds since the epoch, non-decreasing, or None.
        offset: First byte.
        data: Bytes with LFs, except at the stream's end or a cut.
        cut: First part of a longer line.
    """

    at: int | None
    offset: int
    data: bytes
    cut: bool


class Forward:
    """Reads a stream forward, also while it grows.

    ``start`` begins a line, or with ``skip`` reading begins after the next LF. ``whole``: long lines in pieces,
    each with ``cut`` except the last.
    """

    def __init__(
        self,
        path: Path,
        *,
        start: int = 0,
        skip: bool = False,
        end: int | None = None,
        block: int = MAX_LINE,
        whole: bool = False,
    ) -> None:
        self.path = path
        self.offset = start
        self.index = IndexReader(path)
        self._skip = skip
        self._end = end
        self._block = max(MIN_BLOCK, min(block, MAX_LINE + 1))
        self.whole = whole
        self._inside = False
        self._at: int | None = None
        # Size at the last poll without data: most streams are silent.
        self._looked_at = -1
        self._packed = False
        # Thousands of streams are open: small blocks, few cached rows.
        self._batch = max(8, self._block // 2048)
        self._rows: list[IndexRow] = []
        self._next = 0
        self._row_number = -1
        self._more_rows = True
        self._rest = (0, b"")

    def take(self, *, final: bool) -> list[Span]:
        """Returns the next lines; empty if there are none now.

        ``final``: the last line counts without an LF.

        Raises:
            OSError: The stream cannot be read.
        """
        if not final and self._looked_at >= 0 and (self._packed or content_size(self.path) == self._looked_at):
            return []
        with open_content(self.path) as content:
            size = content.size if self._end is None else min(content.size, self._end)
            if not final and self._goes_on(content, size):
                self._looked_at = content.size
                return []
            found = not self._skip or self._skip_line(content, size)
            data = self._whole_lines(content, size, final=final) if found else b""
        self._packed = isinstance(content, Packed)
        self._looked_at = content.size if not data or self.offset + len(data) == content.size else -1
        if not data:
            return []
        cut = self._inside
        self._more_rows = True
        spans = self._split(data) if not cut else [Span(self._stamp_of(self.offset), self.offset, data, cut=True)]
        self.offset += len(data)
        if cut and not self.whole:
            self._skip, self._inside = True, False
        return spans

    def _goes_on(self, content: Raw | Packed, size: int) -> bool:
        """True if the new bytes do not end a line whose begin was read before: a bar grows at each poll."""
        known = self._looked_at
        if self._skip or self._inside or not self.offset < known < size or size - self.offset > MAX_LINE:
            return False
        return b"\n" not in content.read(known, size - known)

    def unfinished(self) -> bytes:
        """Last bytes of a line whose LF the last :meth:`take` did not find; empty if there is none.

        Raises:
            OSError: The stream cannot be read.
        """
        size = self._looked_at
        if self._packed or size <= 0 or (size == self.offset and not self._skip):
            return b""
        if self._rest[0] != size:
            start = max(0, size - _REST) if self._skip else max(self.offset, size - _REST)
            self._rest = (size, read_bytes(self.path, start, size - start))
        return self._rest[1]

    def _whole_lines(self, content: Raw | Packed, size: int, *, final: bool) -> bytes:
        """Returns bytes up to a block's last LF; sets ``_inside`` for pieces of a line."""
        left = size - self.offset
        if left <= 0:
            return b""
        data = content.read(self.offset, min(left, self._block))
        cut = data.rfind(b"\n") + 1
        if self._inside:
            # Up to the LF, else all available bytes.
            cut = data.find(b"\n") + 1
            self._inside = not cut
            return data[:cut] if cut else data
        if not cut and self._block <= MAX_LINE and left > len(data):
            data = content.read(self.offset, min(left, MAX_LINE + 1))
            cut = data.rfind(b"\n") + 1
        if cut:
            return data[:cut]
        if len(data) > MAX_LINE:
            self._inside = True
            return data[:MAX_LINE]
        return data if final else b""

    def _skip_line(self, content: Raw | Packed, size: int) -> bool:
        """Skips an unwanted line's rest; True if its LF was found."""
        while self.offset < size:
            data = content.read(self.offset, min(MAX_LINE, size - self.offset))
            if not data:
                return False
            found = data.find(b"\n")
            if found >= 0:
                self.offset += found + 1
                self._skip = False
                return True
            self.offset += len(data)
        return False

    def _split(self, data: bytes) -> list[Span]:
        """Splits at the lines that begin a new chunk."""
        spans = []
        pos = 0
        while pos < len(data):
            at = self._stamp_of(self.offset + pos)
            following = self._following()
            if following is None or following >= self.offset + len(data):
                end = len(data)
            else:
                # The next chunk's first line follows an LF at or after the byte before.
                end = data.find(b"\n", following - self.offset - 1) + 1 or len(data)
            spans.append(Span(at, self.offset + pos, data[pos:end], cut=False))
            pos = end
        return spans

    def _stamp_of(self, byte: int) -> int | None:
        """Timestamp of the chunk with ``byte``, None without index; calls must have rising ``byte``."""
        if self._row_number < 0:
            # A start in the middle skips earlier rows.
            self._row_number = max(0, self.index.find(byte))
        while (following := self._following()) is not None and following <= byte:
            stamp = self._rows[self._next].stamp
            self._at = stamp if self._at is None else max(self._at, stamp)
            self._next += 1
        return self._at

    def _following(self) -> int | None:
        """Offset of the next index row's chunk; None after the last."""
        if self._next >= len(self._rows) and self._more_rows:
            self._rows = self.index.rows(max(0, self._row_number), self._batch)
            # Opens the index once, unless it has very many rows.
            self._more_rows = len(self._rows) == self._batch
            self._row_number += len(self._rows)
            self._next = 0
        return self._rows[self._next].offset if self._next < len(self._rows) else None


class Backward(NamedTuple):
    """One line found from the end: timestamp, first byte, bytes without LF, and whether it was truncated."""

    at: int | None
    offset: int
    data: bytes
    cut: bool


def lines_backward(path: Path, *, end: int, block: int = 65536) -> Iterator[Backward]:
    """Yields the lines of ``path[:end]`` from the last to the first, with timestamps.

    Raises:
        OSError: The stream cannot be read.
    """
    stamps = stamps_backward(IndexReader(path), max(0, end - 1))
    row = next(stamps, None)
    at: int | None = None
    for offset, data, cut in _raw_backward(path, end, max(MIN_BLOCK, block)):
        while row is not None and row.offset > offset:
            row = next(stamps, None)
        if row is not None:
            at = row.stamp if at is None else min(at, row.stamp)
        yield Backward(at if row is not None else None, offset, data, cut)


def _raw_backward(path: Path, end: int, block: int) -> Iterator[tuple[int, bytes, bool]]:
    if end <= 0:
        return
    # ``base``: file offset of ``buffer``; ``high``: end of the searched line; no LF from ``clean`` to it.
    high = end - 1 if read_bytes(path, end - 1, 1) == b"\n" else end
    base, buffer, clean = high, b"", 0
    while True:
        found = buffer.rfind(b"\n", 0, clean)
        if found >= 0:
            yield base + found + 1, *_bounded(buffer, found + 1, high - base)
            high = base + found
            clean = found
            continue
        if base == 0:
            yield 0, *_bounded(buffer, 0, high)
            return
        if high - base > MAX_LINE:
            start = _line_start(path, base)
            yield start, read_bytes(path, start, MAX_LINE), True
            if start == 0:
                return
            high = start - 1
            base, buffer, clean = high, b"", 0
            continue
        clean = min(base, max(block, high - base))
        base -= clean
        buffer = read_bytes(path, base, clean) + buffer[: high - base - clean]


def _bounded(buffer: bytes, start: int, end: int) -> tuple[bytes, bool]:
    cut = end - start > MAX_LINE
    return buffer[start : start + MAX_LINE if cut else end], cut


def _line_start(path: Path, byte: int) -> int:
    """Offset of the first byte of the line that extends to ``byte``."""
    while byte > 0:
        length = min(MAX_LINE, byte)
        found = read_bytes(path, byte - length, length).rfind(b"\n")
        if found >= 0:
            return byte - length + found + 1
        byte -= length
    return 0
