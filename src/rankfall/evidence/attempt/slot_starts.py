"""Selects the observed start of each slot, where slots are restarted alone.

Earlier output is ignored; later output waits for the supervisor. Starts count from 0 by creation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankfall.model import Record, numbers
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import identity_of

if TYPE_CHECKING:
    from rankfall.evidence.cluster.pod_evidence import PodView

When = Literal["past", "now", "later"]


class Starts:
    """The observed starts of one attempt; ``pods`` is None on this machine."""

    def __init__(self, run_dir: RunDir, *, attempt: int, numbers: Mapping[int, int], pods: PodView | None) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._numbers = dict(numbers)
        self._pods = pods
        # Container instance folders and their pods' UIDs, which never change.
        self._owners: dict[Path, str] = {}
        # By slot, for slots never restarted alone: constant, needed at each poll.
        self._dirs: dict[int, Path] = {}
        for slot, number in numbers.items():
            self.select_start(slot, number)

    def select_start(self, slot: int, number: int) -> None:
        """Observes start ``number`` of the slot from now on."""
        self._numbers[slot] = number
        if self._pods is not None:
            self._pods.select_start(slot, number)

    def number(self, slot: int) -> int:
        """Observed start of a slot."""
        return self._numbers.get(slot, 0)

    def of_record(self, record: Record) -> When:
        """Returns which start a record belongs to: past, observed or later."""
        if record.slot not in self._numbers:
            return "now"
        if self._pods is not None:
            return self._when(record.slot, self._pods.number_of(record.slot, record.pod_uid))
        return self._when(record.slot, numbers.whole(record.instance or "0"))

    def of_folder(self, slot: int, folder: Path) -> When:
        """Returns which start a folder of streams belongs to: past, observed or later."""
        if slot not in self._numbers:
            return "now"
        if self._pods is None:
            return self._when(slot, numbers.whole(folder.name))
        return self._when(slot, self._pods.number_of(slot, self._owner(folder)))

    def slot_dir(self, role: str, slot: int) -> Path:
        """Slot's folder of the observed start."""
        if slot not in self._numbers:
            held = self._dirs.get(slot)
            if held is None:
                held = self._dirs[slot] = self._run_dir.slot_dir(self._attempt, role, slot, 0)
            return held
        number = self.number(slot)
        if self._pods is not None:
            number = self._folder_number(role, slot)
        return self._run_dir.slot_dir(self._attempt, role, slot, number)

    def _folder_number(self, role: str, slot: int) -> int:
        """Container instance number; a pod that never ran has none."""
        number = self.number(slot)
        parent = self._run_dir.stream_dir(self._attempt, role, slot).parent
        candidates: list[int] = [number, *range(number)]
        for name in candidates:
            if self.of_folder(slot, parent / str(name)) == "now":
                return name
        return number

    def _owner(self, folder: Path) -> str | None:
        held = self._owners.get(folder)
        if held is None:
            identity = identity_of(folder)
            if identity is None:
                return None
            held = self._owners[folder] = identity.uid
        return held

    def _when(self, slot: int, number: int | None) -> When:
        """Returns past, observed or later for a start number; None = a pod unknown to the journal."""
        looked_at = self._numbers[slot]
        if number is None or number > looked_at:
            return "later"
        return "now" if number == looked_at else "past"
