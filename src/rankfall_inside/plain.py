"""Starts N ranks itself, for jobs that need no torchrun: the variables of torchrun's workers, own pipes for each rank.

One round, no restarts: when a rank fails, its siblings get a second to say their own errors, then they are ended, and the slot ends
with the first failing rank's code. A restart of the whole gang is the supervisor's decision.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import foreign, records, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Mapping, Sequence

# How long the siblings of a failed rank may go on before they get SIGTERM.
SETTLE_S = 1.0
REASON = "a rank of this slot failed"


def worker_environ(base: Mapping[str, str], *, local: int, nproc: int) -> dict[str, str]:
    """Environment of local rank ``local``: what torchrun would set, from ``RANKFALL_PLAIN_NNODES`` and ``RANKFALL_PLAIN_NODE_RANK``.

    In a job of several roles (``RANKFALL_FIRST_RANK``) slots may have different numbers of ranks, so the sums are given.
    """
    nodes = records.whole(base, "RANKFALL_PLAIN_NNODES") or 1
    node = foreign.whole(base.get("RANKFALL_PLAIN_NODE_RANK") or base.get("RANKFALL_SLOT")) or 0
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
    # torchrun says so too: without it every rank takes all cores.
    environ.setdefault("OMP_NUM_THREADS", "1")
    return environ


class Plain:
    """The ranks of one slot.

    Args:
        command: started once for each rank.
        nproc: number of ranks of this slot.
        slot_dir: error files go to ``errors/<local rank>.json`` there.
        grace: seconds between SIGTERM and SIGKILL for the siblings of a failed rank.
        signal_rank: called as ``signal_rank(pid, signum, reason)``; marks and sends.
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
        """Start all ranks; yields (pid, identity, read side of stdout, read side of stderr) for each."""
        for local in range(self._nproc):
            own = worker_environ(environ, local=local, nproc=self._nproc)
            own["TORCHELASTIC_ERROR_FILE"] = os.path.join(self._errors, f"{local}.json")
            out, out_write = os.pipe()
            err, err_write = os.pipe()
            own["RANKFALL_PIPES"] = f"{os.fstat(out_write).st_ino}:{os.fstat(err_write).st_ino}"
            pid = spawn.start(self._command, own, out=out_write, err=err_write)
            os.close(out_write)
            os.close(err_write)
            self._live.add(pid)
            named = {
                "rank": foreign.whole(own["RANK"]),
                "local_rank": local,
                "group_rank": foreign.whole(own["GROUP_RANK"]),
                "world_size": foreign.whole(own["WORLD_SIZE"]),
                "local_world_size": self._nproc,
                "restart_count": 0,
                "rank_source": "launcher",
            }
            yield pid, named, out, err

    @property
    def done(self) -> bool:
        """Whether all ranks have ended."""
        return not self._live

    def is_live(self, pid: int) -> bool:
        """Whether ``pid`` is a rank that has not ended."""
        return pid in self._live

    def ended(self, pid: int, status: int) -> None:
        """Take in that a rank was reaped with ``status`` (of wait(2))."""
        if pid not in self._live:
            return
        self._live.discard(pid)
        if status and not self.status:
            self.status = status
            self.deadline = time.monotonic() + SETTLE_S
        elif self.status is None:
            self.status = 0

    def step(self) -> None:
        """End the siblings of a failed rank when their time is over."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        for pid in sorted(self._live):
            self._signal_rank(pid, self._next_signal, REASON)
        self.deadline = time.monotonic() + self._grace if self._next_signal == signal.SIGTERM else None
        self._next_signal = signal.SIGKILL
