"""Remembers the checksums of a log's last lines, to recognize them when it is reopened.

Large chunks are stored in ``taken-<n>.raw`` and split only when needed.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rankfall.model import numbers
from rankfall.rundir.cluster.log_routes import StampParser
from rankfall.rundir.cluster.marks import Chunk
from rankfall.rundir.lease import private

# Remembered lines; a resume inside a second with more repeats the excess.
MAX_OVERLAP: Final = 1 << 20
# Bytes of chunks, with the same consequence.
MAX_BYTES: Final = 64 << 20
# Minimum of remembered lines.
KEEP: Final = 4096
_BLOCK: Final = 256
# Bytes of a chunk file: creating one costs more than writing a chunk.
SEGMENT: Final = 4 << 20
# Open newest files of a process: a thousand streams have no spare descriptors.
MOST_OPEN: Final = 64
_NS: Final = 1_000_000_000


class Run:
    """Consecutive lines: seconds and checksums as from the API."""

    __slots__ = ("high", "seconds", "sums")

    def __init__(self, seconds: Iterable[int], sums: Iterable[int]) -> None:
        self.seconds = array("q", seconds)
        self.sums = array("I", sums)
        self.high = max(self.seconds, default=0)

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.sums)

    def extend(self, other: Run) -> None:
        """Appends other lines."""
        self.seconds += other.seconds
        self.sums += other.sums
        self.high = max(self.high, other.high)


class Overlap:
    """The last lines of a log, in order.

    ``forgotten`` is the second of the newest forgotten line, ``top`` the newest second of all; None without lines.
    """

    # Objects with an open file.
    _open = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._held: deque[Run | Chunk] = deque()
        self._lines = 0
        self._bytes = 0
        self.forgotten: int | None = None
        self.top: int | None = None
        self._segment = -1
        self._offset = SEGMENT
        # Computed once, not for each chunk.
        self._oldest = 0
        self._newest = ""

    def held(self) -> Sequence[Run | Chunk]:
        """All remembered lines, in order."""
        return self._held

    def add(self, one: Run | Chunk) -> None:
        """Remembers lines, or a stored chunk."""
        if not one.lines:
            return
        last = self._held[-1] if self._held else None
        if isinstance(one, Chunk):
            self._bytes += one.size
            self._held.append(one)
        elif isinstance(last, Run) and last.lines + one.lines <= _BLOCK:
            last.extend(one)
        else:
            # The block grows.
            self._held.append(Run(one.seconds, one.sums))
        self._lines += one.lines
        self.top = one.high if self.top is None else max(self.top, one.high)

    def store(self, data: bytes, *, lines: int, high: int, low: int) -> Chunk:
        """Stores a chunk in its file and remembers it.

        Raises:
            OSError: The chunk was not completely written.
        """
        if self._offset >= SEGMENT:
            self.close()
            self._segment, self._offset = self._segment + 1, 0
            self._newest = str(self._path(self._segment))
        fd = self._fd
        if fd < 0:
            fd = private(self._newest, os.O_WRONLY | os.O_CREAT)
        try:
            done = os.pwrite(fd, data, self._offset)
        finally:
            if fd != self._fd:
                self._keep(fd)
        if done < len(data):
            raise OSError(28, "No space left on device", self._newest)
        chunk = Chunk(self._segment, self._offset, len(data), lines, high, low)
        self._offset += len(data)
        self.add(chunk)
        return chunk

    def forget(self, *, before: int, newest: int) -> None:
        """Forgets lines older than ``before`` outside the last ``KEEP`` lines, and any excess.

        The log is never requested from a second after ``newest``.
        """
        held = self._held
        gone: int | None = None
        while held:
            first = held[0]
            excess = self._lines > MAX_OVERLAP or self._bytes > MAX_BYTES
            if not excess and (self._lines - first.lines < KEEP or first.high >= before):
                break
            held.popleft()
            self._lines -= first.lines
            if isinstance(first, Chunk):
                self._bytes -= first.size
                gone = first.segment
            if first.high < newest:
                self.forgotten = max(first.high, self.forgotten or 0)
        if gone is not None:
            self._remove_before(next((one.segment for one in held if isinstance(one, Chunk)), self._segment))

    def since(self, second: int) -> array[int]:
        """Returns checksums of the remembered lines of this second and later."""
        found = array("I")
        for one in self._held:
            if isinstance(one, Chunk):
                found.extend(self._sums(one, second))
            else:
                found.extend(found_sum for at, found_sum in zip(one.seconds, one.sums, strict=True) if at >= second)
        return found

    def newest(self, count: int) -> array[int]:
        """Returns checksums of at most this many last lines."""
        found = array("I")
        for one in reversed(self._held):
            if len(found) >= count:
                break
            found = (array("I", self._sums(one, one.low)) if isinstance(one, Chunk) else one.sums) + found
        return found[-count:]

    def check(self) -> None:
        """Forgets chunks without bytes and removes unused files, after loading."""
        sizes = {number: path.stat().st_size for number, path in self._segments()}
        while any(isinstance(one, Chunk) and sizes.get(one.segment, 0) < one.offset + one.size for one in self._held):
            first = self._held.popleft()
            self._lines -= first.lines
            self._bytes -= first.size if isinstance(first, Chunk) else 0
            self.forgotten = max(first.high, self.forgotten or 0)
        used = {one.segment for one in self._held if isinstance(one, Chunk)}
        for number in sizes.keys() - used:
            self._unlink(number)
        # Uncommitted bytes of a killed process are never read.
        self._segment = max(sizes, default=-1)

    def close(self) -> None:
        """Closes the newest file; the next chunk reopens it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            Overlap._open -= 1

    def clear(self) -> None:
        """Forgets everything, because no line will repeat."""
        self.close()
        self._held.clear()
        self._lines = self._bytes = 0
        for number, _ in self._segments():
            self._unlink(number)

    def _keep(self, fd: int) -> None:
        if Overlap._open < MOST_OPEN:
            Overlap._open += 1
            self._fd = fd
        else:
            os.close(fd)

    def _sums(self, chunk: Chunk, second: int) -> Iterable[int]:
        if chunk.high < second:
            return ()
        with self._path(chunk.segment).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), chunk.size, chunk.offset)
        lines = data[:-1].split(b"\n")
        if chunk.low >= second:
            return map(zlib.crc32, lines)
        split = StampParser().split
        # Chunks with lines without timestamp are stored as lines.
        return (zlib.crc32(line) for line in lines if (split(line)[0] or 0) // _NS >= second)

    def _remove_before(self, segment: int) -> None:
        if segment > self._oldest:
            self._oldest = segment
            for number, _ in self._segments():
                if number < segment:
                    self._unlink(number)

    def _segments(self) -> list[tuple[int, Path]]:
        found = ((numbers.whole(path.stem.removeprefix("taken-")), path) for path in self._folder.glob("taken-*.raw"))
        return [(number, path) for number, path in found if number is not None]

    def _unlink(self, number: int) -> None:
        # The next process removes it.
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def _path(self, segment: int) -> Path:
        return self._folder / f"taken-{segment}.raw"
