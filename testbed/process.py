"""Daemons of a test bed: started with their output in a file, found again by the mark in their environment, ended by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import StartError
from testbed.layout import MARK, Layout

_STEP_S = 0.05
# num_threads of proc(5), counted from behind the name.
_THREADS = 17
_CHILD_S = 30.0


@dataclass(frozen=True)
class Daemon:
    """One component that runs.

    Attributes:
        name: of the component; also of its log file.
        pid: of the process; the command replaces nsenter and unshare, so it is the component itself.
    """

    name: str
    pid: int
    log: Path

    def alive(self) -> bool:
        """Whether the process runs (a zombie does not)."""
        return _runs(self.pid)


def start(
    layout: Layout,
    name: str,
    command: Sequence[str],
    *,
    namespace: str | None = None,
    env: Mapping[str, str] | None = None,
    own_tmp: Path | None = None,
    forks: bool = False,
) -> Daemon:
    """Start a component; its id is kept in ``logs/NAME.pid``.

    Args:
        layout: of the bed.
        name: of the component.
        command: program and arguments.
        namespace: network namespace to run in. ``nsenter`` and not ``ip netns exec``: the latter mounts /sys anew, and a kubelet finds no cgroups.
        env: added to the environment.
        own_tmp: a folder that the component sees as /tmp.
        forks: the command is one that enters a process namespace: the component is its child, and a signal must go there.

    Raises:
        StartError: the component ended at once.
    """
    layout.logs.mkdir(parents=True, exist_ok=True)
    words = list(command)
    if own_tmp is not None:
        own_tmp.mkdir(parents=True, exist_ok=True)
        words = ["unshare", "--mount", "sh", "-c", f'mount --bind "{own_tmp}" /tmp && exec "$@"', "sh", *words]
    if namespace is not None:
        words = ["nsenter", f"--net=/run/netns/{namespace}", *words]
    log = layout.logs / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=os.environ | dict(env or {}) | {MARK: layout.mark},
            start_new_session=True,
        )
    # The bed outlives this program: its children are init's, or are reaped by whoever asks for them.
    process.returncode = 0
    pid = process.pid
    if forks:
        pid = _await_child(process.pid) or 0
        if not pid:
            raise StartError(f"{name} ended while it started:\n{tail(log)}", hint=f"the whole log: {log}")
    # Popen returns before the kernel shows the environment of the new program, by which a component is found.
    poll(lambda: _is_ours(layout, pid) or not _runs(pid), _CHILD_S)
    (layout.logs / f"{name}.pid").write_text(f"{pid}\n")
    return Daemon(name, pid, log)


def child(pid: int) -> int | None:
    """The first child of a process, or None."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                return int(entry.name)
    return None


def _await_child(pid: int) -> int | None:
    poll(lambda: child(pid) is not None or not _runs(pid), _CHILD_S)
    return child(pid)


def find(layout: Layout, name: str) -> Daemon | None:
    """The component of this bed that runs under this name, or None."""
    try:
        pid = int((layout.logs / f"{name}.pid").read_text())
    except (OSError, ValueError):
        return None
    return Daemon(name, pid, layout.logs / f"{name}.log") if _is_ours(layout, pid) else None


def stop(layout: Layout, name: str, *, how: signal.Signals = signal.SIGTERM, patience_s: float = 10.0) -> None:
    """End one component: ``how`` first, SIGKILL when it is still there after ``patience_s``. Nothing happens where none runs."""
    daemon = find(layout, name)
    if daemon is None:
        return
    end([daemon.pid], how=how, patience_s=patience_s)
    (layout.logs / f"{name}.pid").unlink(missing_ok=True)


def end(pids: Sequence[int], *, how: signal.Signals = signal.SIGTERM, patience_s: float = 10.0) -> None:
    """End processes by id and wait until they are gone."""
    _signal(pids, how)
    if not poll(lambda: not any(map(_runs, pids)), patience_s):
        _signal([pid for pid in pids if _runs(pid)], signal.SIGKILL)
        poll(lambda: not any(map(_runs, pids)), patience_s)


def marked(layout: Layout) -> Iterator[int]:
    """Ids of all processes of this bed, whoever started them; this one is left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours(layout, int(entry.name)):
            yield int(entry.name)


def poll(ready: Callable[[], bool], limit_s: float) -> bool:
    """Whether ``ready`` came true within ``limit_s`` seconds."""
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() >= until:
            return False
        time.sleep(_STEP_S)
    return True


def await_ready(daemon: Daemon, ready: Callable[[], bool], *, limit_s: float) -> None:
    """Wait until a component answers.

    Raises:
        StartError: it ended, or did not answer in time; its last lines are in the message.
    """
    if poll(lambda: not daemon.alive() or ready(), limit_s) and daemon.alive():
        return
    what = "did not become ready" if daemon.alive() else "ended while it started"
    raise StartError(f"{daemon.name} {what}:\n{tail(daemon.log)}", hint=f"the whole log: {daemon.log}")


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented."""
    try:
        kept = path.read_bytes()[-16384:].decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in kept)


def _signal(pids: Sequence[int], how: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            continue


def _runs(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, threads = fields[0], int(fields[_THREADS])
    except (OSError, IndexError, ValueError):
        return False
    # A killed process shows its first thread as a zombie while others still hold its files: a port is free only when all are gone.
    return state not in {b"Z", b"X"} or threads > 1


def _is_ours(layout: Layout, pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={layout.mark}".encode() in environment and _runs(pid)
