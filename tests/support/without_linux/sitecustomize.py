"""Makes this Python look like one on macOS, as far as Rankfall can see: no /proc, no /sys, none of Linux's own calls.

Python imports it at its start where this folder is in ``PYTHONPATH``; children inherit it. What macOS has and Linux lacks
(kqueue, its own signals) is not imitated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
import types

# Names that the modules of CPython lack on macOS; a "*" stands for all names that begin so.
LINUX = {
    os: """pidfd_open memfd_create sched_* SCHED_* CLONE_* pipe2 posix_fallocate posix_fadvise POSIX_FADV_* getresuid getresgid setresuid
        setresgid eventfd* EFD_* MFD_* GRND_* SPLICE_* splice copy_file_range setns unshare getxattr setxattr listxattr removexattr
        XATTR_* P_PIDFD O_DIRECT O_TMPFILE O_PATH O_NOATIME O_LARGEFILE O_RSYNC fdatasync getrandom""",
    select: "epoll EPOLL*",
    selectors: "EpollSelector",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL SIGCLD",
    socket: """AF_NETLINK AF_PACKET AF_VSOCK AF_CAN AF_TIPC AF_ALG NETLINK_* PF_* CAN_* ALG_* TIPC_* VMADDR_* SO_VM_* SOCK_CLOEXEC
        SOCK_NONBLOCK SO_PEERCRED SO_PASSCRED SO_BINDTODEVICE SO_MARK SCM_CREDENTIALS TCP_USER_TIMEOUT TCP_KEEPIDLE""",
    time: "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    resource: """prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RLIMIT_OFILE
        RUSAGE_THREAD""",
    fcntl: "F_OFD_* F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_SEAL_* F_NOTIFY DN_* F_SETLEASE F_GETLEASE F_SETSIG F_GETSIG",
}
ABSENT = ("/proc", "/sys", "/dev/kmsg", "/dev/shm")


def absent(path: object) -> bool:
    """True for a path that macOS does not have."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(path)
    return any(text == one or text.startswith(one + "/") for one in ABSENT)


def refuse(event: str, args: tuple[object, ...]) -> None:
    """Audit hook: opening or listing such a path fails as it does where the path is missing."""
    if event in {"open", "os.listdir", "os.scandir"} and args and absent(args[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])


def guard(module: types.ModuleType, name: str) -> None:
    """Makes a call that no audit event reports fail for such a path."""
    real = getattr(module, name)

    def call(path: object, *args: object, **kwargs: object) -> object:
        if absent(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return real(path, *args, **kwargs)

    setattr(module, name, call)


def drop() -> None:
    """Removes the names."""
    for module, names in LINUX.items():
        for name in names.split():
            begun = name.removesuffix("*")
            for found in dir(module):
                if found == name or (begun != name and found.startswith(begun)):
                    delattr(module, found)


# It is read from a module that is named after the real platform.
sysconfig.get_config_vars()
sys.platform = "darwin"
drop()
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]
for each in ("stat", "lstat", "readlink", "statvfs"):
    guard(os, each)
sys.addaudithook(refuse)
# urllib asks it for the proxies of the system's settings.
proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
proxies._get_proxies = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = proxies
