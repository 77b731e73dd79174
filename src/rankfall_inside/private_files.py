"""Makes the files of a slot: for the user alone on this machine; in a pod readable for other containers, which may run as other users.

The one exception is what a user asked for by a path of their own: that has the modes of their umask.
"""

from __future__ import annotations

import os

FILE = 0o600
FOLDER = 0o700
# Folders of a pod are shared with containers that Rankfall did not make, by a volume that nobody outside the pod can open.
_POD_FILE = 0o644
_POD_FOLDER = 0o777


def open_file(path: str, flags: int) -> int:
    """A file descriptor; a file that is new gets its mode at once.

    Args:
        path: of the file.
        flags: as of ``os.open``; ``O_CLOEXEC`` is added.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, _POD_FILE if _in_pod() else FILE)


def make_folders(path: str) -> None:
    """Make a folder and those above it, as far as they are missing.

    Raises:
        OSError: they cannot be made.
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
