"""Reads whole lines of one stream, forward as it grows or backward from its end, in bounded memory.

Only LF ends a line: CR, NUL, form feed, U+2028 and invalid UTF-8 are text of the job and stay. A line
longer than MAX_LINE is cut in what is shown, never in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.rundir.streams.content import Packed, Raw, content_size, open_content, read_bytes
from rankfall.rundir.streams.files import IndexReader, IndexRow, stamps_backward

MAX_LINE: Final = 1 << 20
MIN_BLOCK: Final = 2048


class Span(NamedTuple):
    """Lines of one stamp that lie side by side.

    Attributes:
        at: when their chunk came, nanoseconds since the epoch, never before an earlier span's; None without an index.
        offset: first byte.
        data: the bytes with their LFs; without the last one where the stream ends or the line is cut.
        cut: the data is the first part of a longer line.
    """

    at: int | None
    offset: int
    data: bytes
    cut: bool


class Forward:
    """Reads a stream onward, also while it grows.

    Args:
        path: the stream.
        start: first byte, which must begin a line unless ``skip``.
        skip: begin after the next LF: ``start`` stands inside a line that is not wanted.
        end: stop at this byte; None = as far as the file goes.
        block: bytes read at once; at least one line of up to ``MAX_LINE`` is read even so.
        whole: give a long line in pieces (each with ``cut`` but the last) instead of its first part only.
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
        # Size of the stream when it had nothing to give: most streams are silent most of the time.
        self._looked_at = -1
        self._packed = False
        # Thousands of streams are read side by side: the rows at hand are few where the blocks are small.
        self._batch = max(8, self._block // 2048)
        self._rows: list[IndexRow] = []
        self._next = 0
        self._row_number = -1
        self._more_rows = True

    def take(self, *, final: bool) -> list[Span]:
        """The next lines; empty when there are none now.

        Args:
            final: the stream grows no more: its last line counts although it has no LF.

        Raises:
            OSError: the stream cannot be read.
        """
        if not final and self._looked_at >= 0 and (self._packed or content_size(self.path) == self._looked_at):
            return []
        with open_content(self.path) as content:
            size = content.size if self._end is None else min(content.size, self._end)
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

    def _whole_lines(self, content: Raw | Packed, size: int, *, final: bool) -> bytes:
        """Bytes from ``offset`` up to the last LF of a block; sets ``_inside`` when they are a piece of a longer line."""
        left = size - self.offset
        if left <= 0:
            return b""
        data = content.read(self.offset, min(left, self._block))
        cut = data.rfind(b"\n") + 1
        if self._inside:
            # Further pieces of a long line: up to its LF, else all there is.
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
        """Pass the rest of an unwanted line; whether its LF was found."""
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
        """Cut at the lines that begin a new chunk."""
        spans = []
        pos = 0
        while pos < len(data):
            at = self._stamp_of(self.offset + pos)
            following = self._following()
            if following is None or following >= self.offset + len(data):
                end = len(data)
            else:
                # The first line that begins in the next chunk follows an LF at its first byte's predecessor or later.
                end = data.find(b"\n", following - self.offset - 1) + 1 or len(data)
            spans.append(Span(at, self.offset + pos, data[pos:end], cut=False))
            pos = end
        return spans

    def _stamp_of(self, byte: int) -> int | None:
        """Stamp of the chunk that holds ``byte``; bytes are asked for in rising order."""
        if self._row_number < 0:
            # Starting in the middle: no walk over all earlier rows.
            self._row_number = max(0, self.index.find(byte))
        while (following := self._following()) is not None and following <= byte:
            stamp = self._rows[self._next].stamp
            self._at = stamp if self._at is None else max(self._at, stamp)
            self._next += 1
        return self._at

    def _following(self) -> int | None:
        """Offset of the next row's chunk."""
        if self._next >= len(self._rows) and self._more_rows:
            self._rows = self.index.rows(max(0, self._row_number), self._batch)
            # The index is opened once for what is read at once, unless it has very many rows.
            self._more_rows = len(self._rows) == self._batch
            self._row_number += len(self._rows)
            self._next = 0
        return self._rows[self._next].offset if self._next < len(self._rows) else None


class Backward(NamedTuple):
    """One line found from the end: stamp, first byte, bytes without LF, whether they were cut."""

    at: int | None
    offset: int
    data: bytes
    cut: bool


def lines_backward(path: Path, *, end: int, block: int = 65536) -> Iterator[Backward]:
    """Lines of ``path[:end]`` from the last to the first, with stamps.

    Raises:
        OSError: the stream cannot be read.
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
    # ``base`` is the file offset of ``buffer``; ``high`` the end of the line looked for; no LF lies from ``clean`` to ``high``.
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
    """Offset of the first byte of the line that reaches to ``byte``."""
    while byte > 0:
        length = min(MAX_LINE, byte)
        found = read_bytes(path, byte - length, length).rfind(b"\n")
        if found >= 0:
            return byte - length + found + 1
        byte -= length
    return 0
