"""Starts a command as a shell would start a foreground job: own process group, default signals, its death tied to the wrapper's.

Exact control over what happens between fork and exec is the reason not to use ``subprocess``. Call before any thread is started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from rankfall_inside import signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, NoReturn, Sequence

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
