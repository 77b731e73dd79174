"""Runs a command and lists what outlives it: ``python contained.py FILE [--keep TEXT] COMMAND...``.

On Linux this process adopts every orphan of the command (PR_SET_CHILD_SUBREAPER), so a process that put itself into a session of its own is found too.
What still lives after a grace time is written to FILE, a line each, and killed. Mounts and named network namespaces that were not there before are
written too and left alone: somebody else may have made them. A process with TEXT in its command line is
a part of what the stage runs on, started anew by a test; it stays. The exit code is the command's. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
# A supervisor that was told to stop ends its job first, with a grace time of its own.
_GRACE_S = 20.0
_POLL_S = 0.05


def adopt_orphans() -> bool:
    """Whether orphaned descendants come to this process from now on."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children(keep: str) -> dict[int, str]:
    """Command lines of the direct children of this process, by process id; without those that have ended and those to be kept."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if not (keep and keep in command):
                    found[int(entry.name)] = command
    return found


def places() -> set[str]:
    """Mount points and named network namespaces."""
    found = set()
    with contextlib.suppress(OSError):
        found |= {f"mount {line.split()[1]}" for line in Path("/proc/self/mounts").read_text().splitlines()}
    with contextlib.suppress(OSError):
        found |= {f"network namespace {entry.name}" for entry in Path("/run/netns").iterdir()}
    return found


def reap(until: int | None = None) -> int:
    """Reap children; the exit code of ``until`` once it ended, without it 0 as soon as no ended child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if until else os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            return 0
        if pid == until:
            return os.waitstatus_to_exitcode(status)


def leftovers(before: set[str], keep: str) -> list[str]:
    """What is still there after the grace time; its processes are killed."""
    deadline = time.monotonic() + _GRACE_S * float(os.environ.get("RANKFALL_TEST_SCALE", "1"))
    while True:
        reap()
        alive = children(keep)
        if not alive or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    lines = [*(f"process {pid}: {command[:300]}" for pid, command in alive.items()), *sorted(places() - before)]
    while alive:
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        reap()
        # The children of a killed one come to this process.
        alive = children(keep)
    return lines


def main(report: Path, command: list[str], *, keep: str) -> int:
    """Run the command and write the report; the command's exit code, 128+N after a signal."""
    adopting = adopt_orphans()
    before = places()
    process = subprocess.Popen(command)

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    # The terminal sends its own to the whole group.
    signal.signal(signal.SIGINT, lambda *_: None)
    code = reap(process.pid)
    process.returncode = code
    report.write_text("".join(f"{line}\n" for line in leftovers(before, keep)) if adopting else "")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    words = sys.argv[2:]
    kept = words[1] if words[0] == "--keep" else ""
    sys.exit(main(Path(sys.argv[1]), words[2:] if kept else words, keep=kept))
