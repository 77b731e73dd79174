"""Tracks the latest activity of an attempt: output, steps, records, CPU use.

CPU use of all ranks counts for BUSY_LIMIT_S after the last output: a busy loop resembles work.

Cost: at most ``_MAX_FILE`` bytes of each step file a poll; only the newest steps are stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence.facts import Facts
from rankfall.model import decoding, numbers
from rankfall.rundir.records import read_untrusted_file
from rankfall.rundir.streams.files import Standing

_MAX_FILE: Final = 64 << 10


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The last step that a rank reported.

    Attributes:
        at: Nanoseconds since the epoch (by the file's time).
        cpu_s: CPU seconds of the process, if reported; ``cpu_at`` is when they were measured, by the process's clock.
    """

    ordinal: int
    step: int | None = None
    phase: str | None = None
    at: int = 0
    cpu_s: float | None = None
    cpu_at: int | None = None


class _File(msgspec.Struct):
    step: int | None = None
    phase: str | None = None
    at_ns: int | None = None
    cpu_s: float | None = None


def read_steps(slot_dir: Path) -> list[Step]:
    """Returns each process's newest step; skips damaged files, which are soon rewritten."""
    return list(_steps(f"{slot_dir}/progress"))


class StepFolders:
    """Reads steps of remote slots, whose step files are replaced and never modified in place.

    ``name``: their folder in each slot's directory.
    """

    def __init__(self, name: str = "progress") -> None:
        self._name = name
        self._standing = Standing()
        self._held: dict[Path, tuple[str, list[Step]]] = {}

    def read(self, slot_dir: Path) -> list[Step]:
        """Result of :func:`read_steps`."""
        held = self._held.get(slot_dir)
        folder = held[0] if held is not None else f"{slot_dir}/{self._name}"
        if held is None or not self._standing.stands(folder):
            held = self._held[slot_dir] = (folder, list(_steps(folder)))
        return held[1]


def _steps(folder: str) -> Iterator[Step]:
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError:
        return
    for entry in entries:
        stem = entry.name.removesuffix(".json")
        if not stem.isdecimal() or stem == entry.name:
            continue
        try:
            data, at = read_untrusted_file(Path(entry.path), limit=_MAX_FILE)
            item = decoding.decode(data, kind=_File)
        except (OSError, msgspec.DecodeError):
            continue
        yield Step(
            ordinal=numbers.matched(stem), step=item.step, phase=item.phase, at=at, cpu_s=item.cpu_s, cpu_at=item.at_ns
        )


def cpu_seconds(pid: int) -> float | None:
    """Returns a process's CPU seconds with all threads; None if the process ended."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = data.rpartition(b")")[2].split()
    user, system = (numbers.whole(each) for each in (*fields, b"", b"")[11:13])
    if user is None or system is None:
        return None
    return (user + system) / os.sysconf("SC_CLK_TCK")


# Seconds that CPU use alone counts as activity.
BUSY_LIMIT_S: Final = 3600.0
# Least share of a core of a working rank.
_BUSY_SHARE: Final = 0.3
_LOOK_S: Final = 2
# Working remote ranks report every 10 s (rankfall_inside.wrapper.liveness.EVERY_S).
_WORD_S: Final = 30.0
_NS: Final = 1_000_000_000


class Life:
    """Activity of one attempt; times are nanoseconds since the epoch.

    ``here``: the ranks run on this machine, so their CPU time is in /proc; else it comes with their steps in ``folder``
    of each slot.
    """

    def __init__(self, *, here: bool = True, folder: str = "progress") -> None:
        self._here = here
        self._read = read_steps if here else StepFolders(folder).read
        # By slot and process: newest report (its clock, CPU seconds), whether it worked since the earlier one, arrival
        # time.
        self._shares: dict[tuple[int, int], tuple[int, float, bool, int]] = {}
        self._seen = 0
        self._busy_at = 0
        self._cpu: dict[int, tuple[int, float]] = {}

    @property
    def last(self) -> int:
        """Time of the newest activity."""
        return max(self._seen, self._busy_at)

    def saw(self, at: int) -> None:
        """Records one activity at this time."""
        self._seen = max(self._seen, at)

    def look(self, facts: Facts, slot_dirs: Iterable[Path], now: int) -> None:
        """Reads the steps of all slots, and at intervals the CPU time of all ranks."""
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
                # Even idle ranks report CPU time: only a new step is activity.
                self._share(slot, step)
            if step.ordinal in processes and step.step is not None:
                if step.cpu_s is not None and facts.step_of(processes[step.ordinal]) != step.step:
                    self.saw(step.at)
                at = step.at if step.cpu_s is None else None
                facts.add_step(processes[step.ordinal], step.step, step.phase, at=at)

    def _share(self, slot: int, step: Step) -> None:
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
