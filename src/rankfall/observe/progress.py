"""Signs of life of a slot's ranks: step files (of the hook, or of the feed of a slot elsewhere), CPU time from /proc.

Cost: at most ``_MAX_FILE`` bytes of each step file a look; nothing is kept but the newest steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding, numbers
from rankfall.observe.left_file import read_left
from rankfall.store.standing import Standing

_MAX_FILE: Final = 64 << 10


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The last step that a rank reported.

    Attributes:
        at: nanoseconds since the epoch (by the file's time).
        cpu_s: CPU seconds since the process began, where it came with the step; ``cpu_at`` is when, by the process's own clock.
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
    """The newest step of each process ordinal of a slot; damaged files are passed over, the next one comes soon."""
    return list(_steps(f"{slot_dir}/progress"))


class StepFolders:
    """The same of slots whose step files are replaced and never written to, as the feed of slots elsewhere does: read again when one was."""

    def __init__(self) -> None:
        self._standing = Standing()
        self._held: dict[Path, tuple[str, list[Step]]] = {}

    def read(self, slot_dir: Path) -> list[Step]:
        """As :func:`read_steps`."""
        held = self._held.get(slot_dir)
        folder = held[0] if held is not None else f"{slot_dir}/progress"
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
            data, at = read_left(Path(entry.path), limit=_MAX_FILE)
            item = decoding.decode(data, kind=_File)
        except (OSError, msgspec.DecodeError):
            continue
        yield Step(
            ordinal=numbers.matched(stem), step=item.step, phase=item.phase, at=at, cpu_s=item.cpu_s, cpu_at=item.at_ns
        )


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process with all its threads, seconds; None when it is gone."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = data.rpartition(b")")[2].split()
    user, system = (numbers.whole(each) for each in (*fields, b"", b"")[11:13])
    if user is None or system is None:
        return None
    return (user + system) / os.sysconf("SC_CLK_TCK")
