"""Tells local file systems from those shared over a network, where ``flock`` and shared memory cannot be trusted.

Reads the kernel's mount table instead of a number from ``statfs``: the names there need no table of magic numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

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
