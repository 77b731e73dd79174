"""The lease that makes one process the only writer of a run.

The lease is a flock; on network file systems, where flock is unreliable, a hard link. A holder on another host counts
as alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankfall.model import LockHeld, StoreError, decoding, numbers

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
# Most FUSE file systems are network ones; sqlite's WAL needs reliable shared memory.
_NETWORK: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "ncpfs", "nfs",
        "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "quobyte", "smb3", "smbfs", "virtiofs", "weka",
        "wekafs", "fuse", "fuseblk",
    }
)  # fmt: skip


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """File system of a path: kernel name (empty if unknown), and True for network ones."""

    name: str
    network: bool

    @property
    def lock(self) -> str:
        """Kind of writer lock: ``flock`` or ``link``."""
        return "link" if self.network else "flock"

    @property
    def journal(self) -> str:
        """Journal mode of sqlite: ``WAL`` or ``DELETE``."""
        return "DELETE" if self.network else "WAL"


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file, also as ``opener``; a new one is private to its user.

    Raises:
        OSError: The file cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def append_to(path: Path) -> BinaryIO:
    """Opens a file for appending; creates it if missing.

    Raises:
        OSError: The file cannot be opened.
    """
    return open(path, "ab", opener=private)


def write_file(path: Path, data: bytes, *, new: bool = False, sync: bool = False) -> None:
    """Writes a whole file; ``new``: fail if it exists.

    Raises:
        OSError: The file cannot be written.
    """
    with open(path, "xb" if new else "wb", opener=private) as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def make_folder(path: Path, *, new: bool = False) -> None:
    """Creates a folder and missing parents, each private to its user; ``new``: fail if it exists.

    Raises:
        OSError: The folder cannot be created.
    """
    try:
        path.mkdir(FOLDER_MODE)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=not new)
    except FileExistsError:
        if new or not path.is_dir():
            raise


@contextlib.contextmanager
def locked_folder(path: Path, kind: int) -> Iterator[None]:
    """Holds a flock of a folder; without effect where the folder cannot be opened or locked. ``kind``: as of flock.

    Raises:
        BlockingIOError: Another process holds it, with ``LOCK_NB``.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            fcntl.flock(folder, kind)
        except BlockingIOError:
            raise
        except OSError:
            pass
        yield


def file_system(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> FileSystem:
    """File system of an existing path; unknown ones count as local."""
    name = _name(path, mountinfo)
    return FileSystem(name=name, network=name in _NETWORK or name.startswith("fuse."))


def _name(path: Path, mountinfo: Path) -> str:
    try:
        device = path.stat().st_dev
        text = os.fsencode(mountinfo.read_bytes()).decode("utf-8", "surrogateescape")
        real = os.path.realpath(path)
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    longest, name = -1, ""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:  # noqa: PLR2004 - proc(5): id, parent, major:minor, root, mount point
            continue
        kind = after.split(" ", 1)[0]
        if fields[2] == number:
            return kind
        # btrfs reports another device number than its mount; then the longest mount point decides.
        point = _unescape(fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            longest, name = len(point), kind
    return name


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


_POLL_S: Final = 0.05
# A supervisor killed while starting a slot leaves a child between fork and exec with the lock open, for microseconds on
# an idle machine. A caller waits for a lock without a live holder.
_ORPHANED_S: Final = 10.0
_START_FIELD: Final = 19


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Holder of a lease: process, host, start in clock ticks, boot, time (nanoseconds)."""

    pid: int
    host: str = ""
    start: int | None = None
    boot: str = ""
    at: int | None = None

    def alive(self) -> bool | None:
        """True if alive; None on another host."""
        if self.host != socket.gethostname():
            return None
        if self.boot and self.boot != boot_id():
            return False
        if not has_proc():
            return _exists(self.pid)
        start = start_ticks(self.pid)
        return start is not None and (self.start is None or start == self.start)


def has_proc() -> bool:
    """True if /proc shows the processes of this machine; macOS has none."""
    return Path("/proc/self/stat").exists()


def _exists(pid: int) -> bool:
    """True if a process has this number, without a check of its start: for systems without /proc (macOS)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def start_ticks(pid: int) -> int | None:
    """Returns a process's start in clock ticks since boot; None if ended or zombie.

    A zombie holds no lock.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or fields[0] in "ZX":
        return None
    return numbers.whole(fields[_START_FIELD])


def boot_id() -> str:
    """Returns the id of this machine's boot, or empty."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def holder(path: Path) -> Holder | None:
    """Holder in the lease file, or None."""
    try:
        with path.open("rb") as file:
            data = file.read(4096)
        return decoding.decode(data, kind=Holder) if data.strip() else None
    except (OSError, msgspec.MsgspecError):
        return None


def held(path: Path) -> bool:
    """True if a live process holds the lease; a holder on another host counts as live."""
    found = holder(path)
    return found is not None and found.alive() is not False


@contextlib.contextmanager
def hold(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Holds the lease at ``path`` in the context; its folder must exist.

    ``wait`` in seconds. For a dead holder at least ten: its half-started process releases the lease once it runs.

    Raises:
        LockHeld: Another process holds the lease.
        StoreError: The file cannot be created.
    """
    link = file_system(path.parent).network
    began = time.monotonic()
    me = Holder(
        pid=os.getpid(), host=socket.gethostname(), start=start_ticks(os.getpid()), boot=boot_id(), at=time.time_ns()
    )
    text = msgspec.json.encode(me)
    take = _take_link if link else _take_flock
    while True:
        try:
            release = take(path, text)
        except OSError as error:
            raise StoreError(
                f"cannot take the writer lock {path}: {error.strerror or error}",
                hint="free space, or make the run directory writable",
            ) from error
        if release is not None:
            break
        patience = max(wait, _ORPHANED_S) if _orphaned(path) else wait
        left = began + patience - time.monotonic()
        if left <= 0:
            raise _refusal(path)
        time.sleep(min(_POLL_S, left))
    with release:
        yield


def _orphaned(path: Path) -> bool:
    """True if the holder that the lease names is dead."""
    found = holder(path)
    return found is not None and found.alive() is False


def _refusal(path: Path) -> LockHeld:
    found = holder(path)
    who = f"process {found.pid} on {found.host}" if found else "another process"
    return LockHeld(
        f"run {path.parent.name} is locked by {who}",
        hint=f"watch it with: rankfall attach {path.parent.name}; or end that process first",
    )


def _take_flock(path: Path, text: bytes) -> contextlib.ExitStack | None:
    fd = private(path, os.O_RDWR | os.O_CREAT)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        # A full disk must not block: the lock needs no space.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)
        stack.callback(_clear, fd)
        return stack.pop_all()


def _clear(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)


def _take_link(path: Path, text: bytes) -> contextlib.ExitStack | None:
    """Links a new file to the lease's name, the only reliable lock on NFS; removes a dead holder.

    Returns None if another process has the lease.
    """
    own = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = private(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                os.link(own, path)
            # The reply to link may be lost; the link count is reliable.
            if own.stat().st_nlink == 2:  # noqa: PLR2004 - its first name and the lease
                stack = contextlib.ExitStack()
                stack.callback(_unlink_ours, path, text)
                return stack
            found = holder(path)
            if found is None or found.alive() is not False:
                return None
            _set_aside(path, found)
        return None
    finally:
        own.unlink(missing_ok=True)


def _set_aside(path: Path, dead: Holder) -> None:
    """Removes a dead holder's lease, renamed and checked again: never a new holder's."""
    aside = path.with_name(f".{path.name}.dead.{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):
        path.rename(aside)
        if holder(aside) != dead:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _unlink_ours(path: Path, text: bytes) -> None:
    with contextlib.suppress(OSError):
        if path.read_bytes() == text:
            path.unlink()
