"""Receives signals to the wrapper with their sender: a thread waits in ``sigwaitinfo`` and writes to a pipe.

A Python handler does not learn the sender; ``si_pid`` does. The signals are blocked in all threads of the
wrapper, and the mask is cleared in every process that it starts.
"""

from __future__ import annotations

import os
import signal
import struct
import threading

# What a supervisor, a kubelet or a person may send, and the end of children. SIGTSTP and its kin keep their meaning.
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
    """Block the watched signals; before the first process is started, so that none is missed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)


def reset_in_child() -> None:
    """Between fork and exec: handlers and mask as a shell would give them."""
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def start() -> int:
    """Start the waiting thread; the read side of its pipe."""
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
    """Signals that came since the last call, as (number, pid of the sender; 0 = the kernel or another pid namespace)."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            data = os.read(fd, _RECORD.size * 256)
        except BlockingIOError:
            return found
        if not data:
            return found
        found.extend((number, sender) for number, sender, _ in _RECORD.iter_unpack(data))
