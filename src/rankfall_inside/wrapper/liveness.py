"""Heartbeats (step, phase, CPU time) on the log channel, and stacks on request.

A rank sends at most one heartbeat in 10 s, without a change in 60 s. A rank without stack handler gets no signal.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from rankfall_inside.procfs import Stat
    from rankfall_inside.wrapper.ranks import Rank, Ranks

EVERY_S, QUIET_S = 10.0, 60.0
# Other facts are in start records.
_PLACE = ("run", "attempt", "role", "slot", "instance")


class Heartbeat:
    """Reports all live ranks of one wrapper, as ``tell("progress", fields)``."""

    def __init__(
        self, ranks: Ranks, *, place: Mapping[str, Any], tell: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._ranks = ranks
        self._place = {name: place[name] for name in _PLACE if name in place}
        self._tell = tell
        self._written: dict[int, tuple[float, tuple[Any, ...]]] = {}

    def write_marks(self, processes: Mapping[int, Stat]) -> None:
        """Reports each rank that is due; ``processes`` is a snapshot of /proc."""
        now = time.monotonic()
        living = self._ranks.live()
        for rank in living:
            at, before = self._written.get(rank.ordinal, (0.0, ()))
            if before and now - at < EVERY_S:
                continue
            seen = processes.get(rank.pid)
            cpu_s = round(seen.cpu_s, 2) if seen is not None and seen.start == rank.start else None
            last = self._ranks.last_progress(rank.ordinal)
            state = (cpu_s, *last.values())
            if state == before and now - at < QUIET_S:
                continue
            self._written[rank.ordinal] = (now, state)
            self._tell(
                "progress",
                dict(
                    self._place,
                    ordinal=rank.ordinal,
                    rank=rank.identity.get("rank"),
                    pid=rank.pid,
                    cpu_s=cpu_s,
                    **last,
                ),
            )
        if len(self._written) > len(living):
            self._written = {
                rank.ordinal: self._written[rank.ordinal] for rank in living if rank.ordinal in self._written
            }


# Far from signals of libraries (glibc, profilers).
STACK_SIGNAL = signal.SIGRTMIN + 7
# A dump is complete after STACKS_QUIET_S without growth, or LIMIT_S.
STACKS_QUIET_S, LIMIT_S = 0.2, 2.0
_MAX_TEXT = 128 * 1024


class Collector:
    """One request for stacks: signals immediately, collects in :meth:`step`."""

    def __init__(self, slot_dir: str, ranks: list[Rank], *, write: Callable[[str, dict[str, Any], bool], None]) -> None:
        self._folder = os.path.join(slot_dir, "stacks")
        self._write = write
        now = time.monotonic()
        self._limit = now + LIMIT_S
        # rank -> (dump's offset in its file, last size, time of last growth)
        self._waiting: dict[Rank, tuple[int, int, float]] = {}
        for rank in ranks:
            size = self._size(rank)
            if (
                procfs.catches(rank.pid, STACK_SIGNAL)
                and procfs.start_ticks(rank.pid) == rank.start
                and self._ask(rank)
            ):
                self._waiting[rank] = (size, size, now)
            else:
                self._finish(rank, None)

    @staticmethod
    def _ask(rank: Rank) -> bool:
        try:
            os.kill(rank.pid, STACK_SIGNAL)
        except OSError:
            return False
        return True

    def _path(self, rank: Rank) -> str:
        return os.path.join(self._folder, f"{rank.ordinal}.txt")

    def _size(self, rank: Rank) -> int:
        try:
            return os.stat(self._path(rank)).st_size
        except OSError:
            return 0

    def step(self) -> bool:
        """Checks for complete dumps; returns True when all are written."""
        now = time.monotonic()
        for rank, (offset, size, grown) in list(self._waiting.items()):
            seen = self._size(rank)
            if seen != size:
                self._waiting[rank] = (offset, seen, now)
            elif (seen > offset and now - grown >= STACKS_QUIET_S) or now >= self._limit:
                del self._waiting[rank]
                self._finish(rank, offset if seen > offset else None)
        return not self._waiting

    def _finish(self, rank: Rank, offset: int | None) -> None:
        text = ""
        notes = []
        if offset is None:
            notes.append("no Python stacks: the process has no handler for the signal, or did not answer")
        else:
            try:
                with open(self._path(rank), "rb", opener=procfs.at_once) as file:
                    file.seek(offset)
                    text = file.read(_MAX_TEXT).decode("utf-8", "replace")
            except OSError:
                notes.append("the file of Python stacks cannot be read")
        shape = "  thread {tid} ({comm}) state={state} cpu_s={cpu_s} wchan={wchan} syscall={syscall}\n"
        kernel = "".join([shape.format(**thread) for thread in procfs.threads(rank.pid)])
        text += ("\n" if text else "") + "Kernel view:\n" + kernel
        self._write("stacks", dict(rank.fields(), stacks=text, notes=notes), False)
