"""What a process of a job knows of itself: whether it is a rank, and which. One process has at most one rank."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class State:
    """All of it; ``state`` is the only one."""

    def __init__(self) -> None:
        self.installed = False
        self.pid = os.getpid()
        self.slot_dir = ""
        self.claimed = False
        # A child of a rank, or a process whose claim was refused: it stays silent.
        self.silent = False
        # RANK was set in this process after it started; it is claimed at the next sign of life.
        self.pending = False
        # What is to be done once this process is a rank.
        self.then: Callable[[], None] = _nothing
        self.fields: dict[str, Any] = {}
        self.ordinal: int | None = None
        self.notes: list[str] = []
        self.step: int | None = None
        self.step_ns: int | None = None
        self.phase: str | None = None
        self.progress_due = 0.0
        # An error of the main thread is recorded.
        self.told = False


def _nothing() -> None:
    pass


state = State()


def orig_argv() -> list[str]:
    """The words with which this Python was started."""
    found = getattr(sys, "orig_argv", None)  # from 3.10
    if found is not None:
        return list(found)
    from rankfall_inside import procfs

    return list(procfs.cmdline(os.getpid()))


def is_spawn_child() -> bool:
    """Whether this Python was started by multiprocessing (spawn, forkserver)."""
    return any("multiprocessing" in word for word in orig_argv())
