"""Starts processes like a shell's foreground job, and ends all descendants of the wrapper.

No thread may run during a fork. As subreaper the wrapper inherits orphans.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from rankfall_inside import procfs
from rankfall_inside.wrapper import signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Mapping, NoReturn, Sequence

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# linux/ptrace.h
_PTRACE_DETACH = 17
# As in POSIX shells: not found, not executable.
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def _prctl(option: int, value: int) -> bool:
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def become_subreaper() -> bool:
    """Makes orphaned descendants children of this process; False if refused."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Makes the kernel send ``signum`` when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def start(argv: Sequence[str], environ: Mapping[str, str], *, out: int, err: int) -> int:
    """Starts ``argv`` with fd 1 and 2 on ``out`` and ``err``; a failed exec exits with 127 or 126."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        try:
            # In both processes: the order is open.
            os.setpgid(pid, pid)
        except OSError:
            pass
        return pid
    try:
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signals.reset_in_child()
        # Not SIGKILL: a launcher ends its workers on SIGTERM.
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
        replace(argv, environ)
    finally:
        os._exit(NOT_EXECUTABLE)


def replace(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Becomes ``argv``; on failure writes a message to fd 2 and exits with 127 or 126."""
    code = NOT_EXECUTABLE
    try:
        os.execvpe(argv[0], list(argv), dict(environ))  # noqa: S606 - the user's own command
    except FileNotFoundError:
        code = NOT_FOUND
        text = "command not found" if "/" not in argv[0] else "No such file or directory"
        if os.path.exists(argv[0]):
            # A script or program whose interpreter is missing.
            text = "bad interpreter: " + text
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
    os.write(2, f"rankfall: {argv[0]}: {text}\n".encode("utf-8", "backslashreplace"))
    os._exit(code)


# Seconds; a remaining process hangs in the kernel (D state).
GIVE_UP_S = 30.0


def ended() -> Iterator[tuple[int, int]]:
    """Reaps ended children; yields pid and status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if os.WIFSTOPPED(status):
            # A process that its parent shall trace waits for this process.
            _detach(pid, os.WSTOPSIG(status))
            continue
        yield pid, status


def _detach(pid: int, signum: int) -> None:
    """Lets a traced child continue with the signal that stopped it, as without a tracer."""
    try:
        ctypes.CDLL(None).ptrace(_PTRACE_DETACH, pid, None, ctypes.c_void_p(signum))
    except (OSError, AttributeError):
        return


class DescendantKiller:
    """Sends SIGTERM to all descendants, SIGKILL after ``grace`` seconds; marks each signal before."""

    def __init__(self, root: int, *, grace: float, reason: str, mark: Callable[[int, int, str], None]) -> None:
        self._root = root
        self._reason = reason
        self._mark = mark
        self._sent: set[tuple[int, int, int]] = set()
        self._deadline = time.monotonic() + grace
        self.left: list[procfs.Stat] = []

    def shorten_grace(self, grace: float) -> None:
        """Shortens the grace time."""
        self._deadline = min(self._deadline, time.monotonic() + grace)

    def step(self) -> bool:
        """Sends due signals; returns True if no process remains, or the remaining ones cannot be killed."""
        self.left = [one for one in procfs.descendants(self._root) if one.state not in ("Z", "X")]
        if not self.left:
            return True
        now = time.monotonic()
        if now > self._deadline + GIVE_UP_S:
            return True
        signum = signal.SIGKILL if now >= self._deadline else signal.SIGTERM
        for one in self.left:
            self._send(one, signum)
        return False

    def _send(self, one: procfs.Stat, signum: int) -> None:
        sent = (one.pid, one.start, signum)
        if sent in self._sent:
            return
        self._sent.add(sent)
        self._mark(one.pid, signum, self._reason)
        # The pid may be reused meanwhile.
        if procfs.start_ticks(one.pid) != one.start:
            return
        try:
            os.kill(one.pid, signum)
            if signum == signal.SIGTERM:
                # Stopped processes need SIGCONT.
                os.kill(one.pid, signal.SIGCONT)
        except OSError:
            return
