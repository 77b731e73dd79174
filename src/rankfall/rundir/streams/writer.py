"""Writes streams: appends bytes collected from elsewhere, compresses ended streams, unpacks them to append.

A raw file is removed only after its compressed form was synced, compared byte by byte, and no process has
the raw file open for writing. A kill at any point loses nothing: half-written files have names that no
reader opens, and a mark lets the next run of this home finish.
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

# Smaller streams stay as they are: what a person greps by hand costs no space worth having.
SMALLEST: Final = 1 << 20
MARK: Final = "compressing"
_HALF: Final = ".half"
_BLOCK: Final = 1 << 20


def compress_run(run_dir: RunDir, *, smallest: int = SMALLEST) -> list[str]:
    """Compress each stream of at least ``smallest`` bytes. Whoever calls this holds the run's lease, and the run is over.

    Returns:
        Why streams were left as they are, in words.
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
        problems.append(f"the streams are not compressed any further: {error.strerror or error}")
    return problems


def unfinished_compressions(home: Path, *, but: RunDir) -> list[Path]:
    """Other run directories of this home in which compressing was begun and not ended."""
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
    """Compress one stream.

    Returns:
        Why it is left as it is; None when it is compressed.

    Raises:
        OSError: the disk is full, or fails; the stream is as it was.
    """
    fd = open_regular(path)
    with contextlib.closing(_Descriptor(fd)):
        why = _being_written(fd)
        if why is not None:
            return why
        size = _replace(packed_path(path), lambda target: _packed(fd, target, path))
        # Whoever appended meanwhile would lose what they wrote.
        why = _being_written(fd) or ("it grew meanwhile" if os.fstat(fd).st_size != size else None)
        if why is not None:
            packed_path(path).unlink()
            return why
        path.unlink()
    return None


def unpack(path: Path) -> None:
    """Give a stream its raw form back, so that it can be appended to; does nothing where it has it.

    Raises:
        OSError: it cannot be written, or the compressed form is damaged.
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
    """A file that has its name only when all of it is on the disk; what ``fill`` said."""
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
    """Compress, and read back what was written; the number of bytes that both forms have."""
    size = pack(source, target)
    with Packed(os.dup(target), path) as again:
        at = 0
        while at < size:
            data = again.read(at, _BLOCK)
            if not data or data != os.pread(source, len(data), at):
                raise OSError(errno.EIO, "the compressed form reads otherwise than the stream", str(path))
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
    """Whether somebody may have the file open for writing, in words; the kernel gives a read lease only where nobody has."""
    try:
        # Asked and given back at once; should a writer come between, its signal is one that nobody minds.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return "a process still has it open for writing"
    except OSError as error:
        return f"the file system does not tell whether it is being written ({error.strerror or error})"
    return None


def _size(path: Path) -> int:
    """Bytes of the raw form; 0 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# Sources of a stamp in an index; 1 is the wrapper's clock (rankfall_inside.delivery.stream_files).
STAMP_RUNTIME: Final = 2


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
