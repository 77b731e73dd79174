"""What is done to a job from outside: signals, a real memory limit, a full disk, a taken port, a small /dev/shm, a clock that is off.

Each injector is a context manager around the job. It says what the command is prefixed with and which variables are added; it reads
the marks that the worker leaves to know whom to strike. What needs root carries that marker.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.table import Fault
from support.patience import scaled
from testbed.preload import compile_clock

MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")


@dataclass
class Setting:
    """How the job is started under the injector.

    Attributes:
        group: its memory cgroup.
    """

    prefix: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    group: Path | None = None


# What injects by a mount, a namespace or a memory cgroup.
NEEDS_ROOT = frozenset({"tmpfs", "small_shm", "network", "oom"})
# For the injection "clock".
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="a clock that is off needs a C compiler")


@contextmanager
def injected(fault: Fault, *, plan: Path, scratch: Path, second: str | None = None) -> Iterator[Setting]:
    """Everything around one job.

    Args:
        fault: its ``inject`` and ``arguments`` are used.
        plan: path of the worker's plan; marks lie beside it.
        scratch: an empty folder of this job.
        second: another fault of the same job; whoever brings it strikes when it is in place.
    """
    setting = Setting()
    stop = threading.Event()
    with ExitStack() as stack:
        stack.callback(stop.set)
        if fault.inject == "signal" and second is None:
            _start(stack, stop, lambda: strike(fault, plan, stop))
        elif fault.inject == "tmpfs":
            subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(scratch)), check=True)
            stack.callback(subprocess.run, ("umount", "-l", str(scratch)), check=True)
            setting.env["SCRATCH"] = str(scratch)
        elif fault.inject == "clock":
            setting.env["LD_PRELOAD"] = str(compile_clock(scratch))
            setting.env |= {f"CLOCK_{name.upper()}": str(value) for name, value in fault.arguments.items()}
        elif fault.inject == "busy_port":
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            setting.env["BUSY_PORT"] = str(server.getsockname()[1])
        elif fault.inject == "small_shm":
            setting.prefix = (
                "unshare",
                "-m",
                "sh",
                "-c",
                'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"',
                "sh",
            )
        elif fault.inject == "oom":
            group = stack.enter_context(memory_group(plan.stem))
            setting.prefix = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
            setting.group = group
            if second is None:
                _start(stack, stop, lambda: tighten(fault, plan, group, stop))
        yield setting


def _start(stack: ExitStack, stop: threading.Event, work: object) -> None:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(scaled(10))

    stack.callback(end)


def await_mark(plan: Path, rank: int, stop: threading.Event) -> dict[str, int] | None:
    """The note of a rank that is where it is to be struck; None = stopped before."""
    path = plan.with_suffix(f".{rank}.here")
    while not stop.wait(0.01):
        if path.exists():
            note: dict[str, int] = json.loads(path.read_text())
            return note
    return None


def strike(fault: Fault, plan: Path, stop: threading.Event) -> None:
    """Send the signal when its rank is there."""
    note = await_mark(plan, fault.arguments["rank"], stop)
    if note is not None:
        # Under plain torchrun there is no wrapper: the agent stands in its place.
        victim = int(note[fault.arguments["to"]] or note["ppid"])
        os.kill(victim, fault.arguments["number"])


def tighten(fault: Fault, plan: Path, group: Path, stop: threading.Event) -> None:
    """Leave the group a little more than it uses, then let the rank go on."""
    if await_mark(plan, fault.arguments["rank"], stop) is None:
        return
    room = fault.arguments["room_mib"] << 20
    if (group / "memory.max").exists():
        used = int((group / "memory.current").read_text())
        (group / "memory.max").write_text(str(used + room))
    else:
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + room))
    plan.with_suffix(".go").touch()


@contextmanager
def memory_group(name: str) -> Iterator[Path]:
    """A memory cgroup of our own below the present one (v1 where mounted, else v2); removed at the end.

    Raises:
        OSError: it cannot be made.
    """
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = next((line[2] for line in lines if "memory" in line[1].split(",")), None)
    top = MEMORY / first.lstrip("/") if first is not None else UNIFIED / lines[0][2].lstrip("/")
    group = top / f"t-{os.getpid()}-{name}"
    group.mkdir()
    try:
        if first is None and not (group / "memory.max").exists():
            raise PermissionError(13, "the memory controller is not delegated here")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            # What a failed test left behind must not outlive it.
            os.kill(int(pid), 9)
        _remove(group)


def _remove(group: Path) -> None:
    pause = threading.Event()
    for _ in range(500):
        try:
            group.rmdir()
        except OSError:
            pause.wait(0.02)
        else:
            return
