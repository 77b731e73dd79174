"""Stores what pipes deliver: raw bytes into ``<name>.log``, one row per chunk into ``<name>.idx``.

Least work per byte: one read of up to 1 MiB, one write, one count of newlines. A write that fails (full disk, quota) never blocks or
ends the job: the pipe is drained on, the lost bytes are counted with their bounds, and storing goes on when writing works again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

# Format of the index: docs/architecture.md, "The slot directory".
INDEX_MAGIC = b"RFIDX1\0\0"
INDEX_ROW = struct.Struct("<QQqQB7x")
STAMP_WRAPPER = 1
CHUNK = 1 << 20
SMALL_CHUNK = 1 << 16
# F_SETPIPE_SZ of linux/fcntl.h; the name is in Python's fcntl only from 3.10. 1 MiB is what a user may have without privileges.
_F_SETPIPE_SZ = 1031
PIPE_SIZE = 1 << 20
# How many gaps of one stream are kept one by one; more are added to the last.
_MAX_GAPS = 100


class Gap:
    """Bytes of a stream that could not be stored: ``lost`` bytes were to follow the ``offset`` stored ones."""

    __slots__ = ("lost", "offset", "reason")

    def __init__(self, offset: int, lost: int, reason: str) -> None:
        self.offset = offset
        self.lost = lost
        self.reason = reason


class Sink:
    """One stream's files. ``offset`` is the number of stored bytes, ``lost`` of those that could not be stored."""

    def __init__(self, base: str, *, tee: Callable[[bytes], None] | None = None) -> None:
        self.base = base
        self.offset = 0
        self.lost = 0
        self.gaps: list[Gap] = []
        self._lines = 0
        self._at_line_start = True
        self._tee = tee
        self._log = -1
        self._idx = -1
        self._idx_offset = 0

    def write(self, data: bytes, stamp: int = 0) -> None:
        """Store one chunk; what does not fit anywhere is counted as a gap. ``stamp``: when it came, nanoseconds; 0 = now."""
        stamp = stamp or time.time_ns()
        stored = self._store(data)
        if stored:
            kept = data if stored == len(data) else data[:stored]
            first = self._lines if self._at_line_start else self._lines + 1
            self._index(INDEX_ROW.pack(self.offset, first, stamp, 0, STAMP_WRAPPER))
            self.offset += stored
            self._lines += kept.count(b"\n")
            self._at_line_start = kept.endswith(b"\n")
        if self._tee is not None:
            self._tee(data)

    def _store(self, data: bytes) -> int:
        stored = 0
        try:
            if self._log < 0:
                self._open()
            view = memoryview(data)
            while stored < len(data):
                stored += os.write(self._log, view[stored:])
        except OSError as error:
            self._drop(self.offset + stored, len(data) - stored, errno.errorcode.get(error.errno or 0, "EIO"))
        return stored

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(self.base + ".log", flags, 0o644)
        try:
            self._idx = os.open(self.base + ".idx", flags, 0o644)
        except OSError:
            os.close(log)
            raise
        self._log = log

    def _index(self, row: bytes) -> None:
        row = row if self._idx_offset else INDEX_MAGIC + row
        try:
            written = os.write(self._idx, row)
            if written < len(row):
                # A torn row would shift all that follow.
                os.ftruncate(self._idx, self._idx_offset)
                return
            self._idx_offset += written
        except OSError:
            return

    def _drop(self, offset: int, lost: int, reason: str) -> None:
        self.lost += lost
        last = self.gaps[-1] if self.gaps else None
        if last is not None and (last.offset == offset or len(self.gaps) >= _MAX_GAPS):
            last.lost += lost
        else:
            self.gaps.append(Gap(offset, lost, reason))

    def sync(self) -> None:
        """Make what is stored outlive this machine, as far as its file system can."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                try:
                    os.fsync(fd)
                except OSError:
                    continue

    def close(self) -> None:
        """Flush to the disk's queue and close; may be called again."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1


class Tee:
    """A stream that is stored nowhere: every chunk only goes to ``tee``."""

    def __init__(self, tee: Callable[[bytes], None] | None) -> None:
        self.gaps: list[Gap] = []
        self._tee = tee

    def write(self, data: bytes) -> None:
        """Pass one chunk on."""
        if self._tee is not None:
            self._tee(data)

    def close(self) -> None:
        """Nothing is open."""


def grow(fd: int) -> None:
    """Make a pipe as large as the kernel allows, so that a rank rarely waits for the wrapper."""
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        pass


class Pool:
    """Named pipes that wait for ranks: ``pipes/<ordinal>.out`` and ``.err``, read side open before any rank sees the name."""

    def __init__(self, folder: str, *, spare: int) -> None:
        self._folder = folder
        self._spare = spare
        self._next = 0

    def refill(self, claimed: int) -> list[tuple[int, str, int]]:
        """Open pipes until ``spare`` of them lie beyond the ``claimed`` ordinals; the new ones as (ordinal, "out" | "err", fd)."""
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
                # No room for pipes: ranks keep the slot's own stream, nothing is lost.
                break
            self._next += 1
        return found
