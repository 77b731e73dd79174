"""Watches processes that are no children of the wrapper: a pidfd becomes readable when its process ends.

The exit status of another one's child is there twice: in /proc while it is a zombie, and on kernels from 6.15 through the pidfd after its
parent has reaped it (``PIDFD_GET_INFO`` with ``PIDFD_INFO_EXIT``, linux/pidfd.h). Neither is sure to be there; the answer says which was.
"""

from __future__ import annotations

import os
import struct

from rankfall_inside import procfs

# syscall number of pidfd_open: 434 on all architectures of Linux except alpha.
_NR_PIDFD_OPEN = 434
# struct pidfd_info, first version: u64 mask, u64 cgroupid, 11 u32 of ids, s32 exit_code.
_INFO_SIZE = 64
_INFO_EXIT = 1 << 3
_EXIT_OFFSET = 60
# _IOWR(0xFF, 11, struct pidfd_info)
_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11


def open_pid(pid: int) -> int | None:
    """A pidfd of ``pid``, or None where the kernel (before 5.3) or a policy refuses, or the process is gone."""
    opener = getattr(os, "pidfd_open", None)
    try:
        if opener is not None:
            return int(opener(pid))  # foreign-text: a file descriptor
        return _by_syscall(pid)
    except (OSError, ImportError, AttributeError):
        return None


def _by_syscall(pid: int) -> int | None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(_NR_PIDFD_OPEN, pid, 0))
    return fd if fd >= 0 else None


def exit_status(pid: int, start: int, fd: int | None) -> tuple[int | None, str]:
    """How ``pid``, started at ``start``, ended: its status as of wait(2) and who said so (``proc``, ``pidfd``), or (None, ``gone``)."""
    seen = procfs.stat(pid)
    if seen is not None and seen.start == start and seen.state == "Z":
        return seen.exit_status, "proc"
    if fd is not None:
        status = _info_status(fd)
        if status is not None:
            return status, "pidfd"
    return None, "gone"


def _info_status(fd: int) -> int | None:
    import fcntl

    info = bytearray(_INFO_SIZE)
    struct.pack_into("<Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("<Q", info, 0)
    if not mask & _INFO_EXIT:
        return None
    (status,) = struct.unpack_from("<i", info, _EXIT_OFFSET)
    return int(status)  # foreign-text: unpacked from four bytes
