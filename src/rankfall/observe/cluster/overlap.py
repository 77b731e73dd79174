"""What was taken of a log lately, kept so that it is known when it comes again: lines by their checksums, or chunks as they came.

Lines that came in a large chunk are not looked at one by one: the chunk is kept as it is in a file of its own (``taken-<n>.raw``) and only
taken apart when the log is opened anew inside it. A chunk whose file cannot be read any more counts as forgotten.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from rankfall.observe.cluster.apilines import StampParser

# Lines remembered at most: a container that prints more in one second repeats the excess when its log is resumed inside that second.
MAX_OVERLAP: Final = 1 << 20
# Bytes of chunks kept at most, with the same consequence.
MAX_BYTES: Final = 256 << 20
# Lines remembered at least, whatever their second.
KEEP: Final = 4096
# A file of chunks is ended at this size, bytes. Whole files are removed, so that nothing is ever copied.
SEGMENT: Final = 1 << 20
_NS: Final = 1_000_000_000

Line = tuple[int, int]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of whole lines in one of the files.

    Attributes:
        segment, offset, size: where.
        lines: how many.
        high: newest whole second among their stamps.
    """

    segment: int
    offset: int
    size: int
    lines: int
    high: int


class Overlap:
    """The lines taken last, in order.

    Args:
        folder: of the instance's streams.

    Attributes:
        forgotten: newest second of which not all lines are remembered; None = nothing is forgotten.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: deque[Line | Chunk] = deque()
        self._lines = 0
        self._bytes = 0
        self.forgotten: int | None = None
        self._segment = -1
        self._offset = SEGMENT
        # The oldest file there may be, and the newest one's path: made once, not for each chunk.
        self._oldest = 0
        self._newest = ""

    def held(self) -> deque[Line | Chunk]:
        """All that is remembered, in order."""
        return self._held

    def add_lines(self, lines: Iterable[Line]) -> None:
        """Remember lines: (whole second, checksum of the line as the API gave it)."""
        before = len(self._held)
        self._held.extend(lines)
        self._lines += len(self._held) - before

    def add(self, chunk: Chunk) -> None:
        """Remember a chunk that is in its file."""
        self._held.append(chunk)
        self._lines += chunk.lines
        self._bytes += chunk.size

    def store(self, data: bytes, *, lines: int, high: int) -> Chunk:
        """Put a chunk into its file and remember it.

        Raises:
            OSError: it could not be written as a whole.
        """
        if self._offset >= SEGMENT:
            self._segment, self._offset = self._segment + 1, 0
            self._newest = str(self._path(self._segment))
        # Opened for each chunk: a thousand streams have no descriptors to spare, and chunks are large.
        fd = os.open(self._newest, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            done = os.pwrite(fd, data, self._offset)
        finally:
            os.close(fd)
        if done < len(data):
            raise OSError(28, "No space left on device", self._newest)
        chunk = Chunk(self._segment, self._offset, len(data), lines, high)
        self._offset += len(data)
        self.add(chunk)
        return chunk

    def forget(self, newest: int) -> None:
        """Let go of what is older than this second and not among the last ``KEEP`` lines, and of what is too much."""
        held = self._held
        gone: int | None = None
        while held:
            first = held[0]
            lines, high = (first.lines, first.high) if isinstance(first, Chunk) else (1, first[0])
            excess = self._lines > MAX_OVERLAP or self._bytes > MAX_BYTES
            if not excess and (self._lines - lines < KEEP or high >= newest):
                break
            held.popleft()
            self._lines -= lines
            if isinstance(first, Chunk):
                self._bytes -= first.size
                gone = first.segment
            if not excess:
                self.forgotten = max(high, self.forgotten or 0)
        if gone is not None:
            self._remove_before(next((one.segment for one in held if isinstance(one, Chunk)), self._segment))

    def since(self, second: int) -> deque[int]:
        """Checksums of the remembered lines of this second and later."""
        found: deque[int] = deque()
        for chunks, group in kinds(self._held):
            if chunks:
                for chunk in group:
                    found.extend(self._sums(chunk, second))  # type: ignore[arg-type]
            else:
                found.extend(line[1] for line in group if line[0] >= second)  # type: ignore[index]
        return found

    def check(self) -> None:
        """After loading: chunks whose bytes are not there are forgotten; files that nothing speaks of are removed."""
        sizes = {number: path.stat().st_size for number, path in self._segments()}
        while any(isinstance(one, Chunk) and sizes.get(one.segment, 0) < one.offset + one.size for one in self._held):
            first = self._held.popleft()
            self._lines -= first.lines if isinstance(first, Chunk) else 1
            self._bytes -= first.size if isinstance(first, Chunk) else 0
            high = first.high if isinstance(first, Chunk) else first[0]
            self.forgotten = max(high, self.forgotten or 0)
        used = {one.segment for one in self._held if isinstance(one, Chunk)}
        for number in sizes.keys() - used:
            self._unlink(number)
        # What a killed process wrote behind the last commit is never read: the next chunk begins a new file.
        self._segment = max(sizes, default=-1)

    def clear(self) -> None:
        """Nothing will come again."""
        self._held.clear()
        self._lines = self._bytes = 0
        for number, _ in self._segments():
            self._unlink(number)

    def _sums(self, chunk: Chunk, second: int) -> Iterator[int]:
        if chunk.high < second:
            return
        with self._path(chunk.segment).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), chunk.size, chunk.offset)
        split = StampParser().split
        for line in data[:-1].split(b"\n"):
            # Each has a stamp: chunks with other lines are not kept as chunks.
            if (split(line)[0] or 0) // _NS >= second:
                yield zlib.crc32(line)

    def _remove_before(self, segment: int) -> None:
        if segment > self._oldest:
            self._oldest = segment
            for number, _ in self._segments():
                if number < segment:
                    self._unlink(number)

    def _segments(self) -> list[tuple[int, Path]]:
        found = ((path.stem.removeprefix("taken-"), path) for path in self._folder.glob("taken-*.raw"))
        return [(int(number), path) for number, path in found if number.isdecimal()]

    def _unlink(self, number: int) -> None:
        # A file too many costs space and is removed by the next one who looks.
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def _path(self, segment: int) -> Path:
        return self._folder / f"taken-{segment}.raw"


def kinds(held: Iterable[Line | Chunk]) -> Iterator[tuple[bool, Iterable[Line | Chunk]]]:
    """Runs of lines and of chunks, in order."""
    return groupby(held, key=lambda one: isinstance(one, Chunk))
