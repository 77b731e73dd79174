"""Creates slot files: private on this machine, open in a pod to other users' containers."""

from __future__ import annotations

import os

FILE = 0o600
FOLDER = 0o700
# Only the pod's own containers can access its volume.
_POD_FILE = 0o644
_POD_FOLDER = 0o777


def open_file(path: str, flags: int) -> int:
    """Opens a file with ``O_CLOEXEC``; a new file is created with mode 0600, in a pod 0644.

    Raises:
        OSError: Opening failed.
    """
    return os.open(path, flags | os.O_CLOEXEC, _POD_FILE if _in_pod() else FILE)


def replace_file(path: str, data: bytes, *, sync: bool = False) -> None:
    """Replaces a file by ``data`` in one step; a partly written new one is not used.

    Raises:
        OSError: Writing failed.
    """
    fd = open_file(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        whole = os.write(fd, data) == len(data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    if whole:
        os.rename(path + ".tmp", path)


def make_folders(path: str) -> None:
    """Creates a folder and its missing parents.

    Raises:
        OSError: Creation failed.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent and parent != path:
        make_folders(parent)
    try:
        os.mkdir(path, _POD_FOLDER if _in_pod() else FOLDER)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _in_pod() -> bool:
    return "RANKFALL_POD" in os.environ
