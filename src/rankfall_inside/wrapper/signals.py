"""Receives signals with their sender: a thread in ``sigwaitinfo`` writes to a pipe.

Python handlers lack ``si_pid``. All wrapper threads block the signals; children clear the mask.
"""

from __future__ import annotations

import os
import signal
import struct
import threading

# SIGTSTP and similar keep their default.
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGALRM,
)
WATCHED = (*FORWARDED, signal.SIGCHLD)
_RECORD = struct.Struct("<iii")


def block() -> None:
    """Blocks the watched signals; call before the first process starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)


def reset_in_child() -> None:
    """Resets handlers and mask between fork and exec, like a shell."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def start() -> int:
    """Starts the waiting thread; returns its pipe's read end."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)

    def wait() -> None:
        while True:
            try:
                info = signal.sigwaitinfo(WATCHED)
                os.write(writable, _RECORD.pack(info.si_signo, info.si_pid, info.si_code))
            except InterruptedError:
                continue
            except OSError:
                return

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return readable


def drain(fd: int) -> list[tuple[int, int]]:
    """Returns new signals as (number, sender pid; 0 for the kernel or another pid namespace)."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            data = os.read(fd, _RECORD.size * 256)
        except BlockingIOError:
            return found
        if not data:
            return found
        found.extend((number, sender) for number, sender, _ in _RECORD.iter_unpack(data))
