"""Makes the files and folders of Rankfall's home for its user alone, and tells local file systems from those shared over a network.

Everything in the home is made through here (``rankfall_inside.private`` for what runs in a slot), so that a mode is never wider, not even for a
moment and whatever the umask is. Over a network ``flock`` and shared memory cannot be trusted; the kernel's mount table is read for that instead
of a number from ``statfs``: the names there need no table of magic numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
# FUSE is among them: most of its users are network file systems, and sqlite's WAL needs a shared memory file to be honest.
_NETWORK: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "ncpfs", "nfs",
        "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "quobyte", "smb3", "smbfs", "virtiofs", "weka",
        "wekafs", "fuse", "fuseblk",
    }
)  # fmt: skip


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a path: its kernel name (empty = not known) and whether it is shared over a network."""

    name: str
    network: bool

    @property
    def lock(self) -> str:
        """Kind of writer lock used here: ``flock`` or ``link``."""
        return "link" if self.network else "flock"

    @property
    def journal(self) -> str:
        """Journal mode of sqlite used here: ``WAL`` or ``DELETE``."""
        return "DELETE" if self.network else "WAL"


def private(path: str | os.PathLike[str], flags: int) -> int:
    """A file descriptor, for ``os.open`` and as ``opener`` of ``open``: a file that is new is its user's alone at once.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def append_to(path: Path) -> BinaryIO:
    """A file to append to, made when it is missing.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, "ab", opener=private)


def write_file(path: Path, data: bytes, *, new: bool = False, sync: bool = False) -> None:
    """Write a whole file.

    Args:
        path: of the file.
        data: all of it.
        new: refuse one that is there.
        sync: wait until the disk has it.

    Raises:
        OSError: it cannot be written.
    """
    with open(path, "xb" if new else "wb", opener=private) as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def make_folder(path: Path, *, new: bool = False) -> None:
    """Make a folder, and those above it that are missing, each for its user alone.

    Args:
        path: of the folder.
        new: refuse one that is there.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(FOLDER_MODE)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=not new)
    except FileExistsError:
        if new or not path.is_dir():
            raise


def file_system(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> FileSystem:
    """The file system that holds ``path`` (which must exist). Unknown ones are taken as local."""
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
        # Some file systems (btrfs) report another device number than their mount: the longest mount point then decides.
        point = _unescape(fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            longest, name = len(point), kind
    return name


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
