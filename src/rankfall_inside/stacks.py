"""Asks ranks where they are: Python stacks by faulthandler, state, wait channel and system call of each thread from /proc.

A rank gets the signal only when it has a handler for it: unhandled it would kill. A rank that cannot answer still gets a record, with
what the kernel says.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from rankfall_inside.ranks import Rank

# SIGRTMIN+7: far from the ones that libraries take (glibc's first two, profilers' next ones).
STACK_SIGNAL = signal.SIGRTMIN + 7
# A dump is whole when its file has not grown for QUIET_S; none is waited for longer than LIMIT_S.
QUIET_S, LIMIT_S = 0.2, 2.0
_MAX_TEXT = 128 * 1024


class Collector:
    """One request: asks at once, gathers in :meth:`step`."""

    def __init__(self, slot_dir: str, ranks: list[Rank], *, write: Callable[[str, dict[str, Any], bool], None]) -> None:
        self._folder = os.path.join(slot_dir, "stacks")
        self._write = write
        now = time.monotonic()
        self._limit = now + LIMIT_S
        # rank -> (offset of the dump in its file, size at the last look, time of the last growth)
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
        """Look whether dumps are whole; True when all are written."""
        now = time.monotonic()
        for rank, (offset, size, grown) in list(self._waiting.items()):
            seen = self._size(rank)
            if seen != size:
                self._waiting[rank] = (offset, seen, now)
            elif (seen > offset and now - grown >= QUIET_S) or now >= self._limit:
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
