"""Slot's command (one process or N plain ranks) and its signals.

When a plain rank fails, its siblings get a second to report errors, then they are ended.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import records, untrusted
from rankfall_inside.wrapper import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Mapping, Sequence

    from rankfall_inside.wrapper.options import Options
    from rankfall_inside.wrapper.slot_files import SlotFiles

# Seconds for siblings of a failed rank.
SETTLE_S = 1.0
REASON = "a rank of this slot failed"


def worker_environ(base: Mapping[str, str], *, local: int, nproc: int) -> dict[str, str]:
    """Returns local rank ``local``'s environment, as torchrun would set it."""
    nodes = records.whole(base, "RANKFALL_PLAIN_NNODES") or 1
    node = untrusted.whole(base.get("RANKFALL_PLAIN_NODE_RANK") or base.get("RANKFALL_SLOT")) or 0
    several = "RANKFALL_FIRST_RANK" in base
    role_rank = ((records.whole(base, "RANKFALL_INDEX") or 0) if several else node) * nproc + local
    rank = role_rank + (records.whole(base, "RANKFALL_FIRST_RANK") or 0)
    world = (records.whole(base, "RANKFALL_WORLD_SIZE") or 0) if several else nodes * nproc
    role_world = (records.whole(base, "RANKFALL_ROLE_SIZE") or 0) if several else world
    environ = dict(base)
    environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local),
        GROUP_RANK=str(node),
        ROLE_RANK=str(role_rank),
        ROLE_NAME=base.get("RANKFALL_ROLE") or "default",
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(nproc),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_WORLD_SIZE=str(role_world),
        MASTER_ADDR=base.get("MASTER_ADDR") or "127.0.0.1",
        MASTER_PORT=base.get("MASTER_PORT") or "29500",
        TORCHELASTIC_RUN_ID=base.get("TORCHELASTIC_RUN_ID") or base.get("RANKFALL_RUN") or "none",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        RANKFALL_ORDINAL=str(local),
    )
    if "SLURM_JOB_ID" in base:
        # As srun sets them with a task a rank.
        environ.update(
            SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(local),
            SLURM_NODEID=str(node),
            SLURM_NTASKS=str(world),
            SLURM_NPROCS=str(world),
            SLURM_NNODES=str(nodes),
        )
    # Otherwise every rank uses all cores.
    environ.setdefault("OMP_NUM_THREADS", "1")
    return environ


class Plain:
    """Plain ranks of one slot; ``status`` is the first failure's, else 0.

    Siblings of a failed rank get SIGTERM, after ``grace`` seconds SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        nproc: int,
        slot_dir: str,
        grace: float,
        signal_rank: Callable[[int, int, str], None],
    ) -> None:
        self._command = list(command)
        self._nproc = nproc
        self._errors = os.path.join(slot_dir, "errors")
        self._grace = grace
        self._signal_rank = signal_rank
        self._live: set[int] = set()
        self._next_signal = signal.SIGTERM
        self.status: int | None = None
        self.deadline: float | None = None

    def start(self, environ: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any], int, int]]:
        """Starts all ranks; yields (pid, identity, stdout, stderr)."""
        for local in range(self._nproc):
            own = worker_environ(environ, local=local, nproc=self._nproc)
            own["TORCHELASTIC_ERROR_FILE"] = os.path.join(self._errors, f"{local}.json")
            out, out_write = os.pipe()
            err, err_write = os.pipe()
            own["RANKFALL_PIPES"] = f"{os.fstat(out_write).st_ino}:{os.fstat(err_write).st_ino}"
            pid = processes.start(self._command, own, out=out_write, err=err_write)
            os.close(out_write)
            os.close(err_write)
            self._live.add(pid)
            named = {
                "rank": untrusted.whole(own["RANK"]),
                "local_rank": local,
                "group_rank": untrusted.whole(own["GROUP_RANK"]),
                "world_size": untrusted.whole(own["WORLD_SIZE"]),
                "local_world_size": self._nproc,
                "restart_count": 0,
                "rank_source": "launcher",
            }
            yield pid, named, out, err

    @property
    def done(self) -> bool:
        """True if all ranks have ended."""
        return not self._live

    def is_live(self, pid: int) -> bool:
        """Returns True if ``pid`` is a live rank."""
        return pid in self._live

    def ended(self, pid: int, status: int) -> None:
        """Handles a reaped rank with its wait(2) status."""
        if pid not in self._live:
            return
        self._live.discard(pid)
        if status and not self.status:
            self.status = status
            self.deadline = time.monotonic() + SETTLE_S
        elif self.status is None:
            self.status = 0

    def step(self) -> None:
        """Ends the siblings of a failed rank when their time is over."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        for pid in sorted(self._live):
            self._signal_rank(pid, self._next_signal, REASON)
        self.deadline = time.monotonic() + self._grace if self._next_signal == signal.SIGTERM else None
        self._next_signal = signal.SIGKILL


class Commands:
    """Command of one slot: one process (``exec``) or one per rank (``plain``)."""

    def __init__(self, options: Options, files: SlotFiles, *, fields: Callable[[int], dict[str, Any]]) -> None:
        self._options = options
        self._files = files
        self._fields = fields
        self._pids: list[int] = []
        # Last own signal per process, with reason.
        self._own: dict[int, tuple[int, str]] = {}
        self.plain: Plain | None = None
        # wait(2) status when all have ended.
        self.status: int | None = None

    @property
    def started(self) -> bool:
        """True if a process was started."""
        return bool(self._pids)

    def start(self, command: list[str], environ: dict[str, str]) -> tuple[int, int]:
        """Starts ``command`` once; returns read ends of stdout and stderr."""
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        # By the inode a hook detects a user's redirect of fd 1.
        environ["RANKFALL_PIPES"] = f"{os.fstat(out_write).st_ino}:{os.fstat(err_write).st_ino}"
        self._pids.append(processes.start(command, environ, out=out_write, err=err_write))
        os.close(out_write)
        os.close(err_write)
        return out, err

    def start_plain(self, command: list[str], environ: Mapping[str, str]) -> list[tuple[int, dict[str, Any], int, int]]:
        """Starts ``command`` per rank; returns (pid, identity, stdout, stderr) of each."""
        self.plain = Plain(
            command,
            nproc=self._options.nproc,
            slot_dir=self._files.path,
            grace=self._options.grace,
            signal_rank=self.send,
        )
        started = list(self.plain.start(environ))
        self._pids.extend(pid for pid, _, _, _ in started)
        return started

    def reaped(self, pid: int, status: int) -> bool:
        """Handles a reaped process with its wait(2) status; returns True for the slot's one command."""
        if self.plain is not None:
            self.plain.ended(pid, status)
            if self.plain.done and self.status is None:
                self.status = self.plain.status
        elif self._pids[:1] == [pid]:
            self.status = status
            return True
        return False

    def living(self) -> list[int]:
        """Returns pids of live commands."""
        if self.plain is not None:
            return [pid for pid in self._pids if self.plain.is_live(pid)]
        return self._pids if self.status is None else []

    def pass_on(self, number: int) -> None:
        """Forwards a signal to all process groups."""
        for pid in self.living():
            try:
                os.killpg(pid, number)
            except OSError:
                continue

    def send(self, pid: int, number: int, reason: str) -> None:
        """Marks and sends a signal to a command's process group."""
        self.mark(pid, number, reason)
        try:
            os.killpg(pid, number)
            if number == signal.SIGTERM:
                # Stopped processes need SIGCONT.
                os.killpg(pid, signal.SIGCONT)
        except OSError:
            return

    def mark(self, pid: int, number: int, reason: str) -> None:
        """Records the wrapper's next signal."""
        self._own[pid] = (number, reason)
        self._files.mark_kill(pid, number, reason, self._fields(pid))

    def own_reason(self, pid: int, number: int) -> str | None:
        """Returns why the wrapper sent this signal to ``pid``, or None."""
        sent = self._own.get(pid)
        return sent[1] if sent is not None and sent[0] == number else None
