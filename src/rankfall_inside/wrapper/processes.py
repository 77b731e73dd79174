"""Starts processes as a shell starts a foreground job, and ends every descendant of the wrapper.

Starting needs exact control between fork and exec (process group, default signals, death tied to the
wrapper's), which ``subprocess`` lacks; no thread may run yet. Descendants are found in /proc by ancestry: as
subreaper the wrapper inherits every orphan, so even a process that did setsid and a double fork is ended.
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
# What POSIX shells return: command not found, and found but not executable.
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def _prctl(option: int, value: int) -> bool:
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def become_subreaper() -> bool:
    """Orphaned descendants become children of this process; False where the kernel refuses."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> None:
    """Have the kernel send ``signum`` to this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def start(argv: Sequence[str], environ: Mapping[str, str], *, out: int, err: int) -> int:
    """Start ``argv`` with fd 1 and 2 on ``out`` and ``err``; the pid. A failed exec ends it with 127 or 126 and a line on ``err``."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        try:
            # In both processes, so that it is done whoever comes first.
            os.setpgid(pid, pid)
        except OSError:
            pass
        return pid
    try:
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signals.reset_in_child()
        # SIGTERM, not SIGKILL: a launcher that is asked ends its own workers.
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
        replace(argv, environ)
    finally:
        os._exit(NOT_EXECUTABLE)


def replace(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become ``argv``; when that fails, say so on fd 2 like a shell and exit with 127 or 126."""
    code = NOT_EXECUTABLE
    try:
        os.execvpe(argv[0], list(argv), dict(environ))  # noqa: S606 - the user's own command
    except FileNotFoundError:
        code = NOT_FOUND
        text = "command not found" if "/" not in argv[0] else "No such file or directory"
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
    os.write(2, f"rankfall: {argv[0]}: {text}\n".encode("utf-8", "backslashreplace"))
    os._exit(code)


# A killed process that is still there after this hangs in the kernel (D state); the wrapper then leaves without it.
GIVE_UP_S = 30.0


def ended() -> Iterator[tuple[int, int]]:
    """Pid and status of each child that has ended by now; each is reaped when it is asked for."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


class DescendantKiller:
    """Sends SIGTERM to what is left, SIGKILL after ``grace`` seconds, until nothing lives.

    Args:
        root: the wrapper's pid.
        grace: seconds between the two signals.
        mark: called as ``mark(pid, signum, reason)`` before each signal.
    """

    def __init__(self, root: int, *, grace: float, reason: str, mark: Callable[[int, int, str], None]) -> None:
        self._root = root
        self._reason = reason
        self._mark = mark
        self._sent: set[tuple[int, int, int]] = set()
        self._deadline = time.monotonic() + grace
        self.left: list[procfs.Stat] = []

    def shorten_grace(self, grace: float) -> None:
        """Shorten the grace time."""
        self._deadline = min(self._deadline, time.monotonic() + grace)

    def step(self) -> bool:
        """One look; True when nothing is left, or what is left does not die."""
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
        # The mark took time: the pid may be another's by now.
        if procfs.start_ticks(one.pid) != one.start:
            return
        try:
            os.kill(one.pid, signum)
            if signum == signal.SIGTERM:
                # A stopped process takes SIGTERM only when it runs again.
                os.kill(one.pid, signal.SIGCONT)
        except OSError:
            return
