"""What the kernel lets us see and do: /proc, pidfds, the OOM counter, the kernel log, signals, ports, limits."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path
from typing import Final

from rankfall.backends.ports import Reservation
from rankfall.cli.checks import Check
from rankfall_inside import cgroup

_STACKS: Final = signal.SIGRTMIN + 7
_FEW_FDS: Final = 1024
_FEW_PROCESSES: Final = 512


def proc() -> Check:
    """Whether other processes of this user can be seen, and watched without races."""
    if not Path("/proc/self/stat").exists():
        return Check(name="proc", state="fail", text="/proc is not mounted", next="mount it: ranks are found there")
    if not hasattr(os, "pidfd_open"):
        return Check(
            name="proc", state="warn", text="/proc is there, this Python knows no pidfd", next="use Linux >= 5.3"
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Check(
            name="proc",
            state="warn",
            text=f"/proc is there, pidfd_open is not: {error.strerror}",
            next="ends of processes are read from /proc instead; allow the system call to see every exit code",
        )
    return Check(name="proc", state="pass", text="/proc and pidfd work")


def oom_counter() -> Check:
    """The cgroup's OOM counter, which proves a memory kill."""
    version = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    path = cgroup.counter_path()
    if path is None:
        return Check(
            name="oom-counter",
            state="warn",
            text=f"cgroup v{version}: no OOM counter of this group can be read",
            next="a killed rank is then called out of memory only when the kernel log says so",
        )
    return Check(name="oom-counter", state="pass", text=f"cgroup v{version}: OOM counter {path}")


def kernel_log() -> Check:
    """/dev/kmsg, which names the process that the OOM killer took, and faults of devices."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return Check(
            name="kernel-log",
            state="warn",
            text=f"/dev/kmsg cannot be read: {error.strerror}",
            next="as root: sysctl kernel.dmesg_restrict=0; without it device faults are not seen",
        )
    return Check(name="kernel-log", state="pass", text="/dev/kmsg can be read")


def stack_signal() -> Check:
    """The signal that asks ranks for their Python stacks."""
    blocked = _STACKS in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if blocked or signal.getsignal(_STACKS) != signal.SIG_DFL:
        what = "blocked" if blocked else "ignored or handled"
        return Check(
            name="stack-signal",
            state="warn",
            text=f"SIGRTMIN+7 is {what} here, and processes inherit that",
            next="start Rankfall from a shell that leaves it alone, else hangs come without Python stacks",
        )
    return Check(name="stack-signal", state="pass", text="SIGRTMIN+7 is free: hung ranks can show their stacks")


def ports() -> Check:
    """Whether ports can be kept for the rendezvous, and this host's name leads somewhere."""
    try:
        with Reservation() as kept, socket.create_server(("127.0.0.1", kept.port)):
            port = kept.port
    except OSError as error:
        return Check(
            name="ports",
            state="fail",
            text=f"no port could be kept on 127.0.0.1: {error.strerror or error}",
            next="bring the loopback interface up; allow binding of unprivileged ports",
        )
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        return Check(
            name="ports",
            state="warn",
            text=f"ports are free, but this host's own name has no address: {error.strerror or error}",
            next="add the host's name to /etc/hosts; libraries look it up at start",
        )
    return Check(name="ports", state="pass", text=f"ports can be kept (tried {port})")


def limits() -> Check:
    """Open files and processes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_limit(files)} open files, {_limit(processes)} processes"
    few_files = files != resource.RLIM_INFINITY and files < _FEW_FDS
    few = processes != resource.RLIM_INFINITY and processes < _FEW_PROCESSES
    if few_files or few:
        return Check(
            name="limits",
            state="warn",
            text=f"{text}: little for many ranks",
            next="raise them: ulimit -n 65536; ulimit -u 65536",
        )
    return Check(name="limits", state="pass", text=text)


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)
