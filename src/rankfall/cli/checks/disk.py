"""Where runs are kept: whether it can be written, what file system it is, and how much room is left."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from rankfall.cli.checks import Check
from rankfall.model import StoreError
from rankfall.store import default_home, home
from rankfall.store.fs import file_system

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_LITTLE: Final = 5 * _GIB
_NOTHING: Final = 200 * _MIB
_FEW_FILES: Final = 10_000
_SMALL_SHM: Final = 256 * _MIB
_SHM: Final = "/dev/shm"  # noqa: S108 - looked at, nothing is put there


def home_folder() -> Check:
    """Whether the home can be made and written."""
    path = default_home()
    try:
        home()
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"rankfall")
            file.flush()
            os.fsync(file.fileno())
    except StoreError as error:
        return Check(name="home", state="fail", text=error.message, next=error.hint)
    except OSError as error:
        return Check(
            name="home",
            state="fail",
            text=f"{path} cannot be written: {error.strerror or error}",
            next="set RANKFALL_HOME to a folder that you can write",
        )
    return Check(name="home", state="pass", text=f"runs are kept in {path}")


def modes() -> Check:
    """Whether other users can get at the runs."""
    folder = default_home() / "runs"
    try:
        others = folder.stat().st_mode & 0o077
    except OSError:
        others = 0
    if not others:
        return Check(name="modes", state="pass", text="runs are for this user alone")
    return Check(
        name="modes",
        state="warn",
        text=f"other users can open {folder}, which is not ours to close",
        next=f"its owner can: chmod -R go= {folder}",
    )


def journal() -> Check:
    """The file system of the home, and what it means for lock and journal."""
    kind = file_system(_existing(default_home()))
    text = f"file system {kind.name or 'unknown'}: sqlite journal {kind.journal}, lock {kind.lock}"
    if not kind.network:
        return Check(name="journal", state="pass", text=text)
    return Check(
        name="journal",
        state="warn",
        text=f"{text}; shared over a network, which is slower",
        next="set RANKFALL_HOME to a local disk if only this machine reads the runs",
    )


def space() -> Check:
    """Room for streams and records."""
    path = _existing(default_home())
    try:
        free = shutil.disk_usage(path).free
        stat = os.statvfs(path)
    except OSError as error:
        return Check(name="space", state="warn", text=f"free space is not known: {error.strerror or error}")
    text = f"{free / _GIB:.1f} GiB free for runs"
    told = "free space there, or set RANKFALL_HOME to a larger disk"
    if free < _NOTHING:
        return Check(name="space", state="fail", text=text, next=told)
    if stat.f_files and stat.f_favail < _FEW_FILES:
        return Check(name="space", state="warn", text=f"{text}, but only {stat.f_favail} more files", next=told)
    return Check(
        name="space", state="warn" if free < _LITTLE else "pass", text=text, next=told if free < _LITTLE else None
    )


def shared_memory() -> Check:
    """The shared memory file system, which data workers and NCCL use."""
    try:
        total = shutil.disk_usage(_SHM).total
    except OSError as error:
        return Check(name="shm", state="warn", text=f"{_SHM}: {error.strerror or error}", next="mount a tmpfs there")
    text = f"{_SHM} has {total / _GIB:.1f} GiB" if total >= _GIB else f"{_SHM} has {total // _MIB} MiB"
    if total < _SMALL_SHM:
        return Check(
            name="shm",
            state="warn",
            text=f"{text}: little for data workers",
            next="enlarge it (--shm-size in containers)",
        )
    return Check(name="shm", state="pass", text=text)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
