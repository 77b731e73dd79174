"""One local slot: starts it exactly once, probes it, sends commands, kills remains, reserves its port.

The new process creates ``wrapper.log`` with O_EXCL, so a killed supervisor leaves both or neither.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from rankfall.backends.protocol import Life
from rankfall.model import InfrastructureError, Refused
from rankfall.rundir.layout import WRAPPER_LOG
from rankfall.rundir.lease import FILE_MODE, has_proc, make_folder, start_ticks
from rankfall.rundir.records import read_lock

MARK: Final = WRAPPER_LOG
# The system's name for people.
SYSTEM: Final = {"darwin": "macOS", "linux": "Linux without /proc"}.get(sys.platform, sys.platform)
# Seconds from exec to the wrapper's lock.
_UNSEEN_S: Final = 2.0
_STEP_S: Final = 0.02
_KILL_WAIT_S: Final = 5.0
_MAX_ENVIRON: Final = 1 << 20


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, slot_dir: Path) -> int | None:
    """Starts a wrapper in a new session; returns its pid, None if started before.

    Raises:
        InfrastructureError: The wrapper cannot be started.
    """
    mark = slot_dir / MARK
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
    words = list(argv)
    if cwd != _current_folder():
        # posix_spawn cannot change the folder; the shell execs the wrapper.
        words = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd, *words]
    try:
        make_folder(slot_dir)
    except OSError as error:
        raise _failed(slot_dir, error) from error
    try:
        return os.posix_spawn(
            words[0],
            words,
            dict(env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(mark), flags, FILE_MODE),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE],
        )
    except FileExistsError:
        return None
    except OSError as error:
        raise _failed(slot_dir, error) from error


def was_started(slot_dir: Path) -> bool:
    """True if :func:`start` has started the slot before."""
    return (slot_dir / MARK).exists()


def _failed(slot_dir: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"slot {slot_dir.name} could not be started: {error.strerror or error}",
        hint="check space and permissions of the run directory, and the limit of processes",
    )


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def life(slot_dir: Path) -> Life:
    """Slot's state from its files. Takes no lock: a held lock could block the wrapper."""
    if (slot_dir / "end.json").exists():
        # The process may still be exiting.
        return "running" if _holder_lives(slot_dir) else "ended"
    holder = _holder_lives(slot_dir)
    if holder is not None:
        return "running" if holder else "ended" if (slot_dir / "end.json").exists() else "dead"
    try:
        age = time.time() - (slot_dir / MARK).stat().st_mtime
    except OSError:
        return "absent"
    if age < _UNSEEN_S or members(slot_dir):
        return "starting"
    return "dead" if _holder_lives(slot_dir) is None else "running"


def _holder_lives(slot_dir: Path) -> bool | None:
    """True if the process in the slot's lock file lives; None if the file names none."""
    lock = read_lock(slot_dir)
    return None if lock is None else lock.lives()


def require_proc() -> None:
    """Checks that this system shows processes as Linux does.

    Raises:
        Refused: There is no /proc, as on macOS.
    """
    if not has_proc():
        raise Refused(
            f"$.backend: local and slurm need Linux with /proc, which shows the ends of ranks; this is {SYSTEM}",
            hint="start the job on a cluster (--backend job, jobset or trainjob) or on a Linux machine; files and cluster jobs can be explained here",
        )


def tell(slot_dir: Path, line: str) -> bool:
    """Writes a command into ``ctl``; False without a reader."""
    try:
        fd = os.open(slot_dir / "ctl", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        data = line.encode("utf-8", "replace").replace(b"\n", b" ")[:2000] + b"\n"
        return os.write(fd, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(fd)


def members(slot_dir: Path) -> list[int]:
    """Processes whose environment names this slot; unreadable ones do not count.

    Raises:
        Refused: There is no /proc, so an empty answer would call a live slot dead.
    """
    require_proc()
    me = os.getpid()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if pid != me and _is_member(pid, slot_dir)]


def living(slot_dir: Path) -> list[tuple[int, int]]:
    """Members that have not ended, with their start in clock ticks."""
    return [(pid, ticks) for pid in members(slot_dir) if (ticks := start_ticks(pid)) is not None]


def _is_member(pid: int, slot_dir: Path) -> bool:
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            words = file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return False
    return b"RANKFALL_SLOT_DIR=" + os.fsencode(slot_dir) in words


def end_members(slot_dir: Path, *, grace: float) -> int:
    """Ends the slot's processes by SIGTERM, after ``grace`` seconds SIGKILL; returns their number.

    Only without a responsive wrapper.
    """
    seen: set[tuple[int, int]] = set()
    sent: set[tuple[int, int, int]] = set()
    deadline = time.monotonic() + grace
    unseen = 0
    while True:
        alive = living(slot_dir)
        # A process that begins another program has no environment for a moment.
        unseen = 0 if alive else unseen + 1
        if unseen > 1 or time.monotonic() > deadline + _KILL_WAIT_S:
            return len(seen)
        number = signal.SIGKILL if time.monotonic() >= deadline else signal.SIGTERM
        for pid, ticks in alive:
            seen.add((pid, ticks))
            # The process may have ended before its ticks were read, and another one may have its number.
            if (pid, ticks, number) not in sent and _is_member(pid, slot_dir) and start_ticks(pid) == ticks:
                sent.add((pid, ticks, number))
                _send(pid, number)
        time.sleep(_STEP_S)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
        if number == signal.SIGTERM:
            # A stopped process handles SIGTERM only after SIGCONT.
            os.kill(pid, signal.SIGCONT)
    except OSError as error:
        if error.errno not in {errno.ESRCH, errno.EPERM}:
            raise


class Reservation:
    """One port, reserved from construction until ``close``; 0 = any free one.

    Raises:
        OSError: In use, or none is free.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Releases the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _bound(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OSError:
        # No IPv6, or in use.
        return _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - bound, never listening


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made
