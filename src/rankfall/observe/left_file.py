"""Reads a file that a job may have put where records lie: never through a link, never waiting for a pipe, never more than was asked for.

Whoever can write into the folder of records can also put a named pipe there, which an ordinary open would wait for without end, or a link to a
file of somebody else's. Both are refused by name.
"""

from __future__ import annotations

import os
from pathlib import Path

from rankfall.store.content import open_regular


def read_left(path: Path, *, limit: int) -> tuple[bytes, int]:
    """The beginning of a regular file, and when it was written.

    Args:
        path: its last part is not followed where it is a link.
        limit: bytes at most; a caller that must know whether there is more asks for one more.

    Returns:
        Its bytes, and its time in nanoseconds since the epoch by the clock of the file system.

    Raises:
        OSError: it is no regular file, or cannot be read.
    """
    fd = open_regular(path, links=False)
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        parts: list[bytes] = []
        left = limit
        # One read of a file over a network may give less than there is.
        while left > 0 and (data := file.read(left)):
            parts.append(data)
            left -= len(data)
    return b"".join(parts), status.st_mtime_ns
