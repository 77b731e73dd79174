"""Compresses the streams of a run that is over, and takes that back where a stream goes on.

A stream's raw form goes only when its compressed form is whole, on the disk, compared with it byte by byte, and nobody has the raw one open
for writing; where that cannot be told, or the disk is full, the raw form stays. Killed anywhere, nothing is lost: half a file has a name that
no reader looks at, and the mark in the run directory lets the next run of this home finish it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankfall.store.content import open_content, open_regular, packed_path
from rankfall.store.fs import private, write_file
from rankfall.store.names import find_streams
from rankfall.store.packed import Packed, pack

if TYPE_CHECKING:
    from rankfall.store.rundir import RunDir

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


def left_halfway(home: Path, *, but: RunDir) -> list[Path]:
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
