"""Records of one attempt as they come in: from the folder, from a record store, or of a job of one rank without reading any until that is needed."""

from __future__ import annotations

from typing import Final

from rankfall.model import JobSpec
from rankfall.model.evidence import SlotLauncher
from rankfall.model.foreign import FOREIGN
from rankfall.observe.facts import Facts
from rankfall.observe.isolation import ReaderGuard
from rankfall.observe.lone import PATIENCE_S, LoneSlot
from rankfall.observe.record_store import RecordStore
from rankfall.observe.records import Found, RecordFolder
from rankfall.observe.starts import Starts
from rankfall.store import RunDir

_MAX_NOTES: Final = 64


class Incoming:
    """Where the records of one attempt come from; each is given once.

    Args:
        run_dir: the run.
        spec: its job spec: which slots there are, and whether a record store is configured.
        attempt: counted from 1.
        facts: of the attempt: slots that joined count too.
        starts: which start of a slot is looked at; records of later ones wait.
        lone: what started the one rank of a job whose records are not listed while nothing is wrong; None = they are read as they come.
        guard: takes what a reader fails on.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        spec: JobSpec,
        attempt: int,
        facts: Facts,
        starts: Starts,
        lone: SlotLauncher | None,
        guard: ReaderGuard | None = None,
    ) -> None:
        self._spec, self._facts, self._starts = spec, facts, starts
        self._guard = guard or ReaderGuard()
        self._folder = RecordFolder(
            run_dir.records_dir, run=run_dir.id, attempt=attempt, ranks=spec.world_size, guard=self._guard
        )
        self._store = (
            RecordStore(spec.record_store, run=run_dir.id, attempt=attempt, into=run_dir.records_dir)
            if spec.record_store is not None
            else None
        )
        self._lone = self._lone_slot(run_dir.id, attempt, lone) if lone is not None else None
        # Records of starts that are not looked at yet.
        self._later: list[Found] = []
        self._notes: list[str] = []

    @property
    def settled(self) -> bool:
        """The records are read as they come, or the job of one rank whose records are not read has succeeded."""
        return self._lone is None or self._lone.succeeded

    @property
    def behind(self) -> bool:
        """There are records that the newest look had no time for."""
        return self._folder.behind

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read or was not used, in words."""
        return (*self._folder.problems, *(self._store.problems if self._store else ()), *self._notes)

    def new(self) -> list[Found]:
        """What has come since."""
        told: list[Found] = []
        if self._lone is not None:
            lone = self._lone
            # None: it failed, so the records themselves are read.
            from_files = self._guard.read(lone.poll, otherwise=None, what="slot directory", where="slots")
            told = from_files or []
            if from_files is not None and not lone.over:
                return told
            self._lone = None
        found = [*self._later, *filter(self._is_ours, self._folder.poll())]
        when = [self._starts.of_record(item.record) for item in found]
        self._later = [item for item, one in zip(found, when, strict=True) if one == "later"]
        return [*told, *(item for item, one in zip(found, when, strict=True) if one == "now")]

    def read_all(self) -> None:
        """Read the records themselves from now on, also of a job of one rank."""
        self._lone = None

    def doubt(self) -> list[Found]:
        """What the records say of a job of one rank that is not known to have succeeded; nothing where they are read anyway."""
        if self.settled:
            return []
        self._lone = None
        return self.new()

    def fetch(self) -> list[Found]:
        """What a record store has beyond what came by itself."""
        if self._store is None or self._lone is not None:
            return []
        self._guard.read(self._store.fetch, otherwise=None, what="record store", where="record_store")
        return self.new()

    def _is_ours(self, item: Found) -> bool:
        """Whether the job has the slot that a record names: whoever writes into a shared folder may name any."""
        slot = item.record.slot
        # Members of an elastic gang come under new numbers, and of a job that Rankfall did not start only its pods tell.
        if slot is None or slot in self._facts.slots or self._spec.elastic or self._spec.backend == FOREIGN:
            return True
        note = f"{item.name} names slot {slot}, which this job has not, and was not used"
        if note not in self._notes and len(self._notes) < _MAX_NOTES:
            self._notes.append(note)
        return False

    def _lone_slot(self, run: str, attempt: int, launcher: SlotLauncher) -> LoneSlot:
        role = self._spec.role_of(0)
        place: dict[str, object] = {"run": run, "attempt": attempt, "role": role, "slot": 0}
        place["node"] = self._facts.slots[0].node
        folder = self._starts.slot_dir(role, 0)
        return LoneSlot(folder, place=place, hook=self._spec.inside != "off", patience=PATIENCE_S[launcher])
