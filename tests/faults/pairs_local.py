"""The pairs of faults that this machine can have without a cluster: a job of local processes, its supervisor, its disk, its clocks."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from faults.inject import Setting, await_mark, injected, strike, tighten
from faults.lines import Lines, lines_of
from faults.pairs_table import DISK_FULL_S, FIRST, SUPERVISOR_AWAY_S, with_survived
from faults.run import TIMEOUT_S, Ours, job_file, read, still_running, write_plan
from faults.supervised import Supervised, fill
from faults.table import Fault
from rankfall.rundir import list_runs
from support.helpers import gone, wait_until
from support.patience import scaled

ROWS: Final = ("exception", "sigkill", "oom", "hang")
SECONDS: Final = ("supervisor-killed", "disk-full", "clock", "survived")
# Enough for the run's start, and full soon.
_DISK: Final = "8m"
_ALONE: Final = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
# Ahead where rank 2 is, or behind where its peers are: in turn.
CLOCKS: Final[dict[str, dict[str, Any]]] = {
    name: {"slot": 1 - number % 2, "seconds": (90, -90)[number % 2], "spares": "torch.distributed.run"}
    for number, name in enumerate(ROWS)
}
REASONS: Final[dict[tuple[str, str], str]] = {
    (
        "exception",
        "supervisor-killed",
    ): "The wrapper writes streams and records by itself; attach finds the record of the exception.",
    (
        "exception",
        "disk-full",
    ): "The record of the exception may find no room; its text is on the way to the wrapper, which holds what is left in memory. Where even that is gone, unknown is honest.",
    (
        "exception",
        "clock",
    ): "Both slots share this machine; the ranks of one see a wall clock that is 90 s off. The exception is proven without any clock.",
    ("exception", "survived"): "An error that rank 0 survived is no cause.",
    ("sigkill", "supervisor-killed"): "The wrapper lives on and reaps the rank: signal 9, by nobody of ours.",
    ("sigkill", "disk-full"): "The wrapper keeps the end record until there is room; a full disk kills no rank.",
    ("sigkill", "clock"): "The signal is proven without any clock.",
    ("sigkill", "survived"): "A CUDA OOM that rank 0 survived says nothing about the SIGKILL of rank 2.",
    ("oom", "supervisor-killed"): "The counter of the cgroup is read by the wrapper.",
    ("oom", "disk-full"): "Memory, not the disk: host_oom by the cgroup's counter.",
    ("oom", "clock"): "The counter needs no clock.",
    ("oom", "survived"): "Two kinds of memory: a GPU's in the text, the cgroup's in the counter.",
    ("hang", "supervisor-killed"): "The successor finds the ranks silent.",
    (
        "hang",
        "disk-full",
    ): "Progress files and streams cannot be written while the disk is full; what hangs afterwards hangs.",
    ("hang", "clock"): "Silence is measured by the supervisor's clock, progress by steps.",
    ("hang", "survived"): "The text is older than the standstill.",
}


@dataclass(frozen=True)
class LocalPair:
    """One cell on this machine."""

    fault: Fault
    second: str

    @property
    def id(self) -> str:
        """A name for people; the code under test never sees it."""
        return f"local-{self.fault.name}-{self.second}"


@dataclass(frozen=True)
class LocalSeen:
    """What came of it; as of a cell on the bed."""

    ours: Ours | None
    lines: tuple[Lines, ...]
    excuse: str


def local_pairs() -> Iterator[LocalPair]:
    """Every first fault with every second one that needs no cluster."""
    for name in ROWS:
        for second in SECONDS:
            first = FIRST[name]
            fault = replace(first, inject="oom", arguments={"rank": 2, "room_mib": 120}) if name == "oom" else first
            if second == "survived":
                fault = with_survived(fault)
            yield LocalPair(fault, second)


def play(pair: LocalPair, folder: Path) -> LocalSeen:
    """Run a pair; ``folder`` is empty."""
    home, scratch = folder / "home", folder / "scratch"
    home.mkdir()
    scratch.mkdir()
    fault = pair.fault
    plan = write_plan(fault, folder, torch=fault.name == "hang")
    clock = replace(fault, inject="clock", arguments=CLOCKS[fault.name]) if pair.second == "clock" else fault
    with ExitStack() as stack:
        if pair.second == "disk-full":
            subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(home)), check=True)
            stack.callback(subprocess.run, ("umount", "-l", str(home)), check=True)
        setting = stack.enter_context(injected(fault, plan=plan, scratch=scratch, second=pair.second))
        if clock is not fault:
            setting.env |= stack.enter_context(injected(clock, plan=plan, scratch=scratch)).env
        file = job_file(fault, plan=plan, env=setting.env, launcher="plain")
        # Ports of its own: other tests of this machine may have the one beside the launcher's.
        supervisor = Supervised(home, prefix=(*_ALONE, *setting.prefix))
        threads = ThreadPoolExecutor(1)
        stack.callback(threads.shutdown)
        stop = threading.Event()
        acts = threads.submit(_act, pair, plan, supervisor, setting, stop)
        try:
            done = supervisor.run(file, timeout=scaled(TIMEOUT_S))
        finally:
            stop.set()
        acts.result()
        left = still_running(plan)
        (run,) = list_runs(home)
        ours = read(run, done, left)
        excuse = supervisor.cli("status", run.id).stdout

        def kept(rank: int) -> bytes:
            words = ("logs", run.id, "--attempt", "1", "--rank", str(rank), "--no-prefix")
            return supervisor.cli(*words).stdout.encode()

        return LocalSeen(ours, tuple(lines_of(plan, kept)), excuse)


def _act(pair: LocalPair, plan: Path, supervisor: Supervised, setting: Setting, stop: threading.Event) -> None:
    note = await_mark(plan, 2, stop)
    if note is None:
        return
    with _SECONDS[pair.second](supervisor):
        plan.with_suffix(".second").touch()
        if setting.group is not None:
            tighten(pair.fault, plan, setting.group, stop)
        elif pair.fault.inject == "signal":
            strike(pair.fault, plan, stop)
        else:
            plan.with_suffix(".go").touch()
        if pair.fault.name != "hang":
            wait_until(lambda: gone(note["pid"]), timeout=60, what="the end of rank 2")


@contextmanager
def _killed(supervisor: Supervised) -> Iterator[None]:
    with supervisor.killed():
        yield
        time.sleep(SUPERVISOR_AWAY_S)


@contextmanager
def _full(supervisor: Supervised) -> Iterator[None]:
    filler = supervisor.home / "filler"
    fill(filler)
    yield
    time.sleep(DISK_FULL_S)
    filler.unlink()


_SECONDS: Final[dict[str, Callable[[Supervised], AbstractContextManager[None]]]] = {
    "supervisor-killed": _killed,
    "disk-full": _full,
    "clock": lambda _: nullcontext(),
    "survived": lambda _: nullcontext(),
}
