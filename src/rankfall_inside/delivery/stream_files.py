"""Stores raw pipe bytes in ``<name>.log``, one row per chunk in ``<name>.idx``.

A failed write never blocks the job: lost bytes are counted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from rankfall_inside import private_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

# Index format: docs/architecture.md, "The slot directory".
INDEX_MAGIC = b"RFIDX1\0\0"
INDEX_ROW = struct.Struct("<QQqQB7x")
STAMP_WRAPPER = 1
CHUNK = 1 << 20
SMALL_CHUNK = 1 << 16
# F_SETPIPE_SZ; Python has it from 3.10. 1 MiB is the limit without privileges.
_F_SETPIPE_SZ = 1031
PIPE_SIZE = 1 << 20
# Further gaps extend the last.
_MAX_GAPS = 100


class Gap:
    """``lost`` bytes after ``offset`` stored ones; times in nanoseconds since the epoch, 0 if unknown."""

    __slots__ = ("lines", "lost", "offset", "reason", "since", "until")

    def __init__(self, offset: int, lost: int, reason: str, *, lines: int = 0, since: int = 0, until: int = 0) -> None:
        self.offset = offset
        self.lost = lost
        self.reason = reason
        self.lines = lines
        self.since = since
        self.until = until

    def why(self) -> str:
        """Returns the reason as the operating system's error text."""
        return os.strerror(getattr(errno, self.reason)) if self.reason in errno.errorcode.values() else self.reason

    def text(self, stream: str) -> str:
        """Returns a note for a record."""
        return f"{stream}: {self.lost} bytes after offset {self.offset} not stored ({self.reason})"


class Sink:
    """Files of one stream; ``offset`` counts stored bytes, ``lost`` missing ones."""

    def __init__(self, base: str, *, tee: Callable[[bytes], None] | None = None) -> None:
        self.base = base
        self.offset = 0
        self.lost = 0
        self.gaps: list[Gap] = []
        self._lines = 0
        self._at_line_start = True
        # Nothing stored since a loss; it ended a line; its first line is partly stored.
        self._broken = False
        self._lost_whole = True
        self._cut_line = False
        self._tee = tee
        self._log = -1
        self._idx = -1
        self._idx_offset = 0

    def write(self, data: bytes, stamp: int = 0) -> None:
        """Stores one chunk received at ``stamp`` (nanoseconds; 0 for now); counts losses."""
        stamp = stamp or time.time_ns()
        new = self._from_line_start(data, stamp) if self._broken else data
        # Ends a cut line, so that the next is separate.
        kept = b"\n" + new if new and self._broken and not self._at_line_start else new
        first = self._lines if self._at_line_start else self._lines + 1
        row = INDEX_ROW.pack(self.offset, first, stamp, 0, STAMP_WRAPPER)
        stored, reason = self._store(kept, row) if kept else (0, "")
        if stored:
            done = kept if stored == len(kept) else kept[:stored]
            self.offset += stored
            self._lines += done.count(b"\n")
            self._at_line_start = done.endswith(b"\n")
            self._broken = False
        if reason:
            self._drop(kept[stored:] if stored else new, reason, stamp)
        if self._tee is not None:
            self._tee(data)

    def _from_line_start(self, data: bytes, stamp: int) -> bytes:
        """Returns data without the remainder of a line whose begin was lost."""
        if not self._lost_whole:
            end = data.find(b"\n") + 1
            self._drop(data[:end] if end else data, self.gaps[-1].reason, stamp)
            data = data[end:] if end else b""
        return data

    def _store(self, data: bytes, row: bytes) -> tuple[int, str]:
        """Number of stored bytes, and the error for the rest or ""."""
        stored, before = 0, self._idx_offset
        try:
            if self._log < 0:
                self._open()
            # Row first: readers of the bytes find it.
            self._index(row)
            view = memoryview(data)
            while stored < len(data):
                stored += os.write(self._log, view[stored:])
        except OSError as error:
            if not stored:
                self._unindex(before)
            return stored, errno.errorcode.get(error.errno or 0, "EIO")
        return stored, ""

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = private_files.open_file(self.base + ".log", flags)
        try:
            self._idx = private_files.open_file(self.base + ".idx", flags)
        except OSError:
            os.close(log)
            raise
        self._log = log

    def _index(self, row: bytes) -> None:
        row = row if self._idx_offset else INDEX_MAGIC + row
        try:
            written = os.write(self._idx, row)
            if written < len(row):
                # A torn row would shift later ones.
                os.ftruncate(self._idx, self._idx_offset)
                return
            self._idx_offset += written
        except OSError:
            return

    def _unindex(self, size: int) -> None:
        """Removes the row of unstored bytes."""
        try:
            if self._idx >= 0:
                os.ftruncate(self._idx, size)
                self._idx_offset = size
        except OSError:
            return

    def _drop(self, data: bytes, reason: str, stamp: int) -> None:
        if not self._broken:
            self._broken, self._cut_line = True, not self._at_line_start
        lines = data.count(b"\n")
        if lines and self._cut_line:
            self._cut_line, lines = False, lines - 1
        self._lost_whole = data.endswith(b"\n")
        self.lost += len(data)
        last = self.gaps[-1] if self.gaps else None
        if last is None or (last.offset != self.offset and len(self.gaps) < _MAX_GAPS):
            last = Gap(self.offset, 0, reason, since=stamp)
            self.gaps.append(last)
        last.lost += len(data)
        last.lines += lines
        last.until = stamp

    def take_gaps(self) -> list[Gap]:
        """Returns finished gaps, each once."""
        if self._broken:
            return []
        found, self.gaps = self.gaps, []
        return found

    def sync(self) -> None:
        """Syncs files to disk as far as possible."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                try:
                    os.fsync(fd)
                except OSError:
                    continue

    def close(self) -> None:
        """Closes the files; idempotent."""
        if self._broken and not self._lost_whole and not self._cut_line:
            self._lost_whole = True
            self.gaps[-1].lines += 1
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1


class Tee:
    """Stream that is not stored: chunks only go to ``tee``."""

    def __init__(self, tee: Callable[[bytes], None] | None) -> None:
        self.gaps: list[Gap] = []
        self._tee = tee

    def take_gaps(self) -> list[Gap]:
        """Returns nothing: no bytes get lost."""
        return []

    def write(self, data: bytes) -> None:
        """Forwards one chunk."""
        if self._tee is not None:
            self._tee(data)

    def close(self) -> None:
        """Does nothing."""


def grow(fd: int) -> None:
    """Enlarges a pipe, so that ranks rarely wait."""
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        pass


class Pool:
    """Named pipes ``pipes/<ordinal>.out`` and ``.err``; opened for reading before the name exists."""

    def __init__(self, folder: str, *, spare: int) -> None:
        self._folder = folder
        self._spare = spare
        self._next = 0

    def refill(self, claimed: int) -> list[tuple[int, str, int]]:
        """Opens ``spare`` pipe pairs beyond ``claimed`` ordinals; returns (ordinal, "out" | "err", fd)."""
        found: list[tuple[int, str, int]] = []
        while self._next < claimed + self._spare:
            try:
                for kind in ("out", "err"):
                    path = os.path.join(self._folder, f"{self._next}.{kind}")
                    os.mkfifo(path + ".new", 0o600)
                    fd = os.open(path + ".new", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                    found.append((self._next, kind, fd))
                    os.rename(path + ".new", path)
            except OSError:
                # Ranks continue on the slot's stream; nothing is lost.
                break
            self._next += 1
        return found
