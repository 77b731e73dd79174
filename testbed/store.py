"""Folders of the cache that are made whole or not at all, by one program at a time, and then only read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

Say = Callable[[str], None]


def make(folder: Path, fill: Callable[[Path], None], *, what: str, say: Say) -> Path:
    """The folder, made by ``fill`` where it is not there yet.

    Args:
        folder: its name must change with its contents: what is there is never looked at again.
        fill: puts the contents into the folder that it is given. When it fails nothing is kept.
        what: for the line that says that another program makes it already.
        say: takes that line.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder, what, say):
        if folder.is_dir():
            return folder
        scratch = folder.parent / f".{folder.name}.new"
        # A killed builder leaves its scratch folder; the lock says that it is gone.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            fill(scratch)
            _flush(scratch)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def prune(parent: Path, keep: Collection[str]) -> list[Path]:
    """Remove the folders of ``parent`` whose names are not in ``keep``; those that were removed."""
    removed = []
    for path in sorted(parent.iterdir()) if parent.is_dir() else []:
        name = path.name.removeprefix(".").removesuffix(".new")
        if path.is_dir() and name not in keep:
            with (parent / f".{name}.lock").open("a") as lock, contextlib.suppress(BlockingIOError):
                # Another checkout with other versions may be filling it just now.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed.append(path)
    return removed


@contextlib.contextmanager
def _alone(folder: Path, what: str, say: Say) -> Iterator[None]:
    with (folder.parent / f".{folder.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what}: another program makes it already; waiting for that one")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _flush(folder: Path) -> None:
    # After a power cut the new name may be on the disk before the bytes are; an empty binary would stay in the cache for good.
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
