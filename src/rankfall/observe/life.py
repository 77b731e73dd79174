"""When an attempt last showed life: output, steps, records, and for a bounded time the work of all its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankfall.observe.facts import Facts
from rankfall.observe.progress import Step, StepFolders, cpu_seconds, read_steps

# How long all ranks may burn CPU without a line or a step before that counts as standing still too.
BUSY_LIMIT_S: Final = 3600.0
# A rank that works takes at least this share of a core.
_BUSY_SHARE: Final = 0.3
_LOOK_S: Final = 2
# A rank elsewhere that works says so every 10 s (rankfall_inside.pulse.EVERY_S): what it said longer ago says nothing of now.
_WORD_S: Final = 30.0
_NS: Final = 1_000_000_000


class Life:
    """Signs of life of one attempt; times are nanoseconds since the epoch.

    Args:
        here: the ranks are processes of this machine: their CPU time is read from /proc. Elsewhere it comes with their steps.
    """

    def __init__(self, *, here: bool = True) -> None:
        self._here = here
        self._read = read_steps if here else StepFolders().read
        # By slot and process: its newest word (its own clock, CPU seconds), whether it worked since the one before, and when that came.
        self._shares: dict[tuple[int, int], tuple[int, float, bool, int]] = {}
        self._seen = 0
        self._busy_at = 0
        self._cpu: dict[int, tuple[int, float]] = {}

    @property
    def last(self) -> int:
        """The newest sign."""
        return max(self._seen, self._busy_at)

    def saw(self, at: int) -> None:
        """Take one sign."""
        self._seen = max(self._seen, at)

    def look(self, facts: Facts, slot_dirs: Iterable[Path], now: int) -> None:
        """Read the steps of all slots, and now and then the CPU time of all ranks."""
        for slot, folder in zip(facts.slots, slot_dirs, strict=True):
            self._steps(facts, slot, folder)
        if self._here:
            self._work(facts, now)
        else:
            self._work_elsewhere(facts, now)

    def _steps(self, facts: Facts, slot: int, folder: Path) -> None:
        steps = self._read(folder)
        if not steps:
            return
        processes = {
            start.ordinal: (sheet.slot, sheet.pid)
            for sheet in facts.ranks()
            if sheet.slot == slot and (start := facts.start_of(sheet.slot, sheet.pid)) is not None
        }
        for step in steps:
            if step.cpu_s is None:
                self.saw(step.at)
            elif step.cpu_at is not None:
                # It comes at its own pace, whether the rank does anything or not: only a new step is life.
                self._share(slot, step)
            if step.ordinal in processes and step.step is not None:
                if step.cpu_s is not None and facts.step_of(processes[step.ordinal]) != step.step:
                    self.saw(step.at)
                at = step.at if step.cpu_s is None else None
                facts.add_step(processes[step.ordinal], step.step, step.phase, at=at)

    def _share(self, slot: int, step: Step) -> None:
        """Whether a rank elsewhere worked between its two newest words."""
        at, seconds = step.cpu_at or 0, step.cpu_s or 0.0
        before = self._shares.get((slot, step.ordinal))
        if before is None or at > before[0]:
            worked = before is not None and (seconds - before[1]) * _NS >= _BUSY_SHARE * (at - before[0])
            self._shares[slot, step.ordinal] = (at, seconds, worked, step.at)

    def _work_elsewhere(self, facts: Facts, now: int) -> None:
        running = [
            (r.slot, start.ordinal)
            for r in facts.ranks()
            if r.state == "running" and (start := facts.start_of(r.slot, r.pid)) is not None
        ]
        shares = [
            self._shares.get((slot, number)) for slot, number in running if slot is not None and number is not None
        ]
        busy = bool(running) and len(shares) == len(running)
        busy = busy and all(share is not None and share[2] and now - share[3] < _WORD_S * _NS for share in shares)
        if busy and now - self._seen < BUSY_LIMIT_S * _NS:
            self._busy_at = now

    def _work(self, facts: Facts, now: int) -> None:
        """While every rank burns CPU, that is life for ``BUSY_LIMIT_S`` after the last output: a spin in a collective looks so too."""
        running = [r.pid for r in facts.ranks() if r.state == "running" and r.pid is not None]
        if not running or now - min((at for at, _ in self._cpu.values()), default=0) < _LOOK_S * _NS:
            return
        fresh = {pid: (now, seconds) for pid in running if (seconds := cpu_seconds(pid)) is not None}
        busy = bool(fresh) and all(
            pid in self._cpu and (seconds - self._cpu[pid][1]) * _NS >= _BUSY_SHARE * (now - self._cpu[pid][0])
            for pid, (_, seconds) in fresh.items()
        )
        self._cpu = fresh
        if busy and now - self._seen < BUSY_LIMIT_S * _NS:
            self._busy_at = now
