"""Writes streams: appends collected bytes, compresses ended streams, unpacks them to append.

The raw file is removed only after synced, compared compression. After a kill the next run finishes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rankfall.rundir.lease import private, write_file
from rankfall.rundir.streams.content import Packed, open_content, open_regular, pack, packed_path
from rankfall.rundir.streams.files import MAGIC, ROW, find_streams

if TYPE_CHECKING:
    from rankfall.rundir.directory import RunDir

# Smaller ones remain uncompressed: users grep them.
SMALLEST: Final = 1 << 20
MARK: Final = "compressing"
_HALF: Final = ".half"
_BLOCK: Final = 1 << 20


def compress_run(run_dir: RunDir, *, smallest: int = SMALLEST) -> list[str]:
    """Compresses a finished run's streams of at least ``smallest`` bytes; returns messages on streams that stay raw.

    The caller holds its lease.
    """
    problems: list[str] = []
    names = find_streams(run_dir.logs_dir)
    mark = run_dir.path / MARK
    if not any(_size(name.path) >= smallest for name in names):
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)
        return problems
    try:
        write_file(mark, b"")
        for name in names:
            if _size(name.path) >= smallest:
                why = compress(name.path)
                if why is not None:
                    problems.append(f"{name.stream} is not compressed: {why}")
        mark.unlink()
    except OSError as error:
        problems.append(f"compressing of streams stopped: {error.strerror or error}")
    return problems


def unfinished_compressions(home: Path, *, but: RunDir) -> list[Path]:
    """Returns other run directories of this home with an unfinished compression."""
    try:
        with os.scandir(home / "runs") as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.name != but.id and os.path.lexists(os.path.join(entry.path, MARK))  # noqa: PTH118 - of each run
            ]
    except OSError:
        return []


def compress(path: Path) -> str | None:
    """Compresses one stream; returns None, or the reason why it stays raw.

    Raises:
        OSError: Disk failure; the stream is unchanged.
    """
    fd = open_regular(path)
    with contextlib.closing(_Descriptor(fd)):
        why = _being_written(fd)
        if why is not None:
            return why
        size = _replace(packed_path(path), lambda target: _packed(fd, target, path))
        # A process that appended meanwhile would lose its data.
        why = _being_written(fd) or ("it grew meanwhile" if os.fstat(fd).st_size != size else None)
        if why is not None:
            packed_path(path).unlink()
            return why
        path.unlink()
    return None


def unpack(path: Path) -> None:
    """Restores a stream's raw form, for appending; a raw one is unchanged.

    Raises:
        OSError: Unwritable, or damaged compressed form.
    """
    packed = packed_path(path)
    if not packed.exists():
        return
    if not path.exists():
        _replace(path, lambda target: _copied(path, target))
    packed.unlink()


class _Descriptor:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


def _replace(path: Path, fill: Callable[[int], int]) -> int:
    """Writes a file that gets its name when fully on disk."""
    half = path.with_name(f".{path.name}{_HALF}")
    try:
        target = private(half, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        with contextlib.closing(_Descriptor(target)):
            size = fill(target)
            os.fsync(target)
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.closing(_Descriptor(folder)):
        os.fsync(folder)
    return size


def _packed(source: int, target: int, path: Path) -> int:
    """Compresses and verifies a stream; returns the uncompressed bytes."""
    size = pack(source, target)
    with Packed(os.dup(target), path) as again:
        at = 0
        while at < size:
            data = again.read(at, _BLOCK)
            if not data or data != os.pread(source, len(data), at):
                raise OSError(errno.EIO, "the compressed form differs from the stream", str(path))
            at += len(data)
    return size


def _copied(path: Path, target: int) -> int:
    with open_content(path) as content:
        at = 0
        while data := content.read(at, _BLOCK):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
            at += len(data)
    return at


def _being_written(fd: int) -> str | None:
    """Returns why a process may have the file open for writing, or None.

    The kernel grants a read lease only without writers.
    """
    try:
        # Released immediately. For a writer in between, the signal is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return "a process still has it open for writing"
    except OSError as error:
        return f"the file system does not show whether a process writes it ({error.strerror or error})"
    return None


def _size(path: Path) -> int:
    """Raw form's bytes; 0 without."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# Timestamp source in an index; 1 is the wrapper's clock (rankfall_inside.delivery.stream_files).
STAMP_RUNTIME: Final = 2


class Counted(NamedTuple):
    """Content of a stream: bytes, newlines, True if a newline is last."""

    size: int
    lines: int
    whole: bool


# Lines of a tenth of a second: first byte, newlines before it, first and last timestamp. In nanoseconds since the
# epoch, last 0 if unknown. A tuple, because some chunks have one per line.
Mark = tuple[int, int, int, int]


class StreamAppender:
    """Appends to one stream and its index.

    ``base``: path without endings, as ``.../0/r3.out``. ``counted``: counts of the existing content; None = count now.

    Attributes:
        size, index_size: Sizes of the files in bytes.

    Raises:
        OSError: The files are unusable.
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
        """Content counts, for the next opening."""
        return Counted(self.size, self._lines, self._at_line_start)

    def write(self, data: bytes, stamp: int | None) -> None:
        """Appends a chunk; ``stamp`` in nanoseconds since the epoch by the node's clock, None = no row.

        Raises:
            OSError: Not stored; the files are unchanged.
        """
        self.write_marked(data, () if stamp is None else ((0, 0, stamp, stamp),))

    def write_marked(self, data: bytes, marks: Iterable[Mark], *, lines: int | None = None) -> None:
        """Appends a chunk whose lines have separate timestamps.

        Raises:
            OSError: Not stored; the files are unchanged.
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
            # Rows before bytes: a reader of bytes finds their rows.
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
        """Truncates both files to these sizes.

        Raises:
            OSError: The files cannot be changed.
        """
        os.ftruncate(self._log, size)
        os.ftruncate(self._idx, index_size)
        self.size, self.index_size = size, index_size
        self._lines, self._at_line_start = _count(self._log, size)

    def close(self) -> None:
        """Closes the files; repeatable."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1


def _all(fd: int, data: bytes) -> int:
    """Writes all bytes; returns their number."""
    view = memoryview(data)
    done = 0
    while done < len(data):
        done += os.write(fd, view[done:])
    return done


def _count(fd: int, size: int) -> tuple[int, bool]:
    """Newlines of the first ``size`` bytes, and True if the next byte begins a line."""
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
