"""Appends to a stream whose bytes come from somewhere else than a wrapper on this machine: its ``.log`` and its ``.idx`` side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.store.compress import unpack
from rankfall.store.fs import private
from rankfall.store.stream import MAGIC, ROW

# Sources of a stamp in an index; 1 is the wrapper's clock (rankfall_inside.streams).
STAMP_RUNTIME: Final = 2
_BLOCK: Final = 1 << 20


class Counted(NamedTuple):
    """What a stream holds: bytes, newlines, and whether the last byte is one."""

    size: int
    lines: int
    whole: bool


# Where in a chunk lines of one tenth of a second begin: byte (the first one of a line), newlines before it, stamps of the first and the last of
# these lines in nanoseconds since the epoch; the last one 0 = not known. A plain tuple, because some chunks have one for every line.
Mark = tuple[int, int, int, int]


class StreamAppender:
    """One stream's two files.

    Args:
        base: path without the endings, as ``.../0/r3.out``.
        counted: what it held when it was closed by the same process; otherwise its newlines are counted.

    Attributes:
        size, index_size: bytes of the two files.

    Raises:
        OSError: they cannot be opened or read.
    """

    def __init__(self, base: Path, *, counted: Counted | None = None) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        unpack(Path(f"{base}.log"))
        self._log = private(f"{base}.log", flags)
        try:
            self._idx = private(f"{base}.idx", flags)
        except OSError:
            os.close(self._log)
            raise
        self.size = os.fstat(self._log).st_size
        self.index_size = os.fstat(self._idx).st_size
        if not self.index_size:
            self.index_size = os.write(self._idx, MAGIC)
        if counted is not None and counted.size == self.size:
            self._lines, self._at_line_start = counted.lines, counted.whole
        else:
            self._lines, self._at_line_start = _count(self._log, self.size)

    @property
    def counted(self) -> Counted:
        """For whoever opens it again."""
        return Counted(self.size, self._lines, self._at_line_start)

    def write(self, data: bytes, stamp: int | None) -> None:
        """Append a chunk of one stamp.

        Args:
            data: not empty.
            stamp: when it was written, nanoseconds since the epoch by the node's clock; None = not known, the chunk gets no row.

        Raises:
            OSError: it was not stored as a whole; the files are as before.
        """
        self.write_marked(data, () if stamp is None else ((0, 0, stamp, stamp),))

    def write_marked(self, data: bytes, marks: Iterable[Mark], *, lines: int | None = None) -> None:
        """Append a chunk whose lines have stamps of their own.

        Args:
            data: not empty.
            marks: a row of the index each, in order.
            lines: newlines in ``data``, where they were counted already.

        Raises:
            OSError: it was not stored as a whole; the files are as before.
        """
        index_size = self.index_size
        size, line, torn = self.size, self._lines, not self._at_line_start
        rows = b"".join(
            [
                ROW.pack(size + at, line + (before if at or not torn else 1), first, last, STAMP_RUNTIME)
                for at, before, first, last in marks
            ]
        )
        try:
            # Before the bytes: whoever reads these then finds their rows.
            if rows:
                self.index_size += _all(self._idx, rows)
            _all(self._log, data)
        except OSError:
            self.index_size = index_size
            os.ftruncate(self._log, self.size)
            os.ftruncate(self._idx, index_size)
            raise
        self.size += len(data)
        self._lines += data.count(b"\n") if lines is None else lines
        self._at_line_start = data.endswith(b"\n")

    def cut(self, size: int, index_size: int) -> None:
        """Take back what was appended beyond these sizes.

        Raises:
            OSError: the files cannot be changed.
        """
        os.ftruncate(self._log, size)
        os.ftruncate(self._idx, index_size)
        self.size, self.index_size = size, index_size
        self._lines, self._at_line_start = _count(self._log, size)

    def close(self) -> None:
        """Let go of the files; may be called again."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1


def _all(fd: int, data: bytes) -> int:
    """Write all of it; how many bytes that were."""
    view = memoryview(data)
    done = 0
    while done < len(data):
        done += os.write(fd, view[done:])
    return done


def _count(fd: int, size: int) -> tuple[int, bool]:
    """Newlines of the first ``size`` bytes, and whether the next byte begins a line."""
    count = at = 0
    last = b"\n"
    while at < size:
        data = os.pread(fd, min(_BLOCK, size - at), at)
        if not data:
            break
        count += data.count(b"\n")
        at += len(data)
        last = data[-1:]
    return count, last == b"\n"
