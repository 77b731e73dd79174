"""Reads a file that a job may have put where records lie: never through a link, never waiting for a pipe, never more than was asked for.

Whoever can write into the folder of records can also put a named pipe there, which an ordinary open would wait for without end, or a link to a
file of somebody else's. Both are refused by name.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_left(path: Path, *, limit: int) -> tuple[bytes, int]:
    """The beginning of a plain file, and when it was written.

    Args:
        path: its last part is not followed where it is a link.
        limit: bytes at most; a caller that must know whether there is more asks for one more.

    Returns:
        Its bytes, and its time in nanoseconds since the epoch by the clock of the file system.

    Raises:
        OSError: it is no plain file, or cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", str(path)) from None
        raise
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        parts: list[bytes] = []
        left = limit
        # One read of a file over a network may give less than there is.
        while left > 0 and (data := file.read(left)):
            parts.append(data)
            left -= len(data)
    return b"".join(parts), status.st_mtime_ns
