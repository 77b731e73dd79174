"""The bytes of one stream, whichever form they lie in: raw while it may grow, compressed (``packed``) once it has ended.

All readers come through here, under the stream's own name (``0.out.log``); offsets and indexes are those of the raw bytes in both forms.
The raw form goes only after the compressed one has its name, so whoever looks for the raw one first always finds one of the two.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Self

from rankfall.store.packed import ENDING, Packed


class Raw:
    """A stream that is not compressed, open.

    Args:
        fd: of the file; closed with this object.

    Attributes:
        size: bytes when it was opened.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the stream, fewer where it ends.

        Raises:
            OSError: it cannot be read.
        """
        return os.pread(self._fd, max(0, length), start)


def packed_path(stream: Path) -> Path:
    """Where the compressed form of a stream lies: ``0.out.log`` -> ``0.out.log.zst``."""
    return stream.with_name(stream.name + ENDING)


def open_content(path: Path) -> Raw | Packed:
    """A stream for reading.

    Args:
        path: of its raw form, whether or not that is there.

    Raises:
        OSError: neither form is there, or what is there cannot be read.
    """
    try:
        return Raw(open_regular(path))
    except FileNotFoundError:
        packed = packed_path(path)
        try:
            fd = open_regular(packed)
        except FileNotFoundError:
            pass
        else:
            return Packed(fd, packed)
        raise


def content_size(path: Path) -> int:
    """Bytes of a stream.

    Raises:
        OSError: as :func:`open_content`.
    """
    try:
        return os.stat(path).st_size  # noqa: PTH116 - asked of thousands at each look
    except FileNotFoundError:
        with open_content(path) as content:
            return content.size


def read_bytes(path: Path, start: int, length: int) -> bytes:
    """Bytes of a stream, fewer where it ends.

    Raises:
        OSError: as :func:`open_content`.
    """
    with open_content(path) as content:
        return content.read(start, length)


def open_regular(path: Path, *, links: bool = True) -> int:
    """A descriptor for reading. A job can put anything in its folders: a pipe there must not make a reader wait for ever.

    Args:
        path: of the file.
        links: whether its last part may be a link, which may lead to any file of this machine.

    Raises:
        OSError: it cannot be opened, is no regular file, or is a link that is not to be followed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "is a link, and links are not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return fd


def lock_is_free(path: Path) -> bool:
    """Whether nobody holds the ``flock`` of this file; False when it is not there yet or cannot be opened."""
    try:
        fd = open_regular(path, links=False)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
