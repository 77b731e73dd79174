"""Selects which start of a slot counts, where slots are restarted alone.

Output of an earlier start is ignored; output of a later one (a platform replaces pods when it likes) waits
until the supervisor is done with its predecessor. Starts count from 0 in order of creation.
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
    """The starts that are looked at in one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        numbers: by slot.
        pods: of the attempt: there a start is a pod; None on this machine.
    """

    def __init__(self, run_dir: RunDir, *, attempt: int, numbers: Mapping[int, int], pods: PodView | None) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._numbers = dict(numbers)
        self._pods = pods
        # Folders of container instances and whose they are; that never changes.
        self._owners: dict[Path, str] = {}
        # By slot, of those that are never started again alone: asked at each look, and always the same.
        self._dirs: dict[int, Path] = {}
        for slot, number in numbers.items():
            self.select_start(slot, number)

    def select_start(self, slot: int, number: int) -> None:
        """Look at this start of a slot from now on."""
        self._numbers[slot] = number
        if self._pods is not None:
            self._pods.select_start(slot, number)

    def number(self, slot: int) -> int:
        """The start of a slot that is looked at."""
        return self._numbers.get(slot, 0)

    def of_record(self, record: Record) -> When:
        """Which start a record is of."""
        if record.slot not in self._numbers:
            return "now"
        if self._pods is not None:
            return self._when(record.slot, self._pods.number_of(record.slot, record.pod_uid))
        return self._when(record.slot, numbers.whole(record.instance or "0"))

    def of_folder(self, slot: int, folder: Path) -> When:
        """Which start a folder of streams is of."""
        if slot not in self._numbers:
            return "now"
        if self._pods is None:
            return self._when(slot, numbers.whole(folder.name))
        return self._when(slot, self._pods.number_of(slot, self._owner(folder)))

    def slot_dir(self, role: str, slot: int) -> Path:
        """The slot's folder of the start that is looked at."""
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
        """Number of the container instance; a pod that never ran has none, so that it may differ from the number of the start."""
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
        """None: a pod that the journal does not know yet."""
        looked_at = self._numbers[slot]
        if number is None or number > looked_at:
            return "later"
        return "now" if number == looked_at else "past"
