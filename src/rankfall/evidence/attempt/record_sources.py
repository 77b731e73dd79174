"""Delivers the records of one attempt once each, and selects the observed start of each slot.

A single-rank job is read from known files of its slot directory; any anomaly switches to reading all records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from rankfall.evidence.facts import Facts
from rankfall.model import JobSpec, Record, decoding, numbers
from rankfall.model.evidence import SlotLauncher
from rankfall.model.foreign import FOREIGN
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import identity_of
from rankfall.rundir.lease import start_ticks
from rankfall.rundir.reader_guard import ReaderGuard
from rankfall.rundir.records import Found, RecordFolder, read_end, read_untrusted_file

if TYPE_CHECKING:
    from rankfall.evidence.cluster.pod_evidence import PodView

When = Literal["past", "now", "later"]


class Starts:
    """The observed starts of one attempt, where slots are restarted alone; ``pods`` is None on this machine.

    Earlier output is ignored; later output waits for the supervisor. Starts count from 0 by creation.
    """

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


# Seconds until a hook without a claim counts as absent.
_WAIT_S: Final = 2.0
# Seconds from a rank's end to its slot's; torchrun unloads torch on a busy machine.
PATIENCE_S: Final[Mapping[SlotLauncher, float]] = MappingProxyType({"plain": 2.0, "torchrun": 5.0})
_NS: Final = 1_000_000_000
# pid, start, root's pid and start, the identity; one more number if the wrapper created the claim.
_IDENTITY: Final = ("rank", "local_rank", "group_rank", "world_size", "local_world_size", "restart_count")
_NUMBERS: Final = 4 + len(_IDENTITY)


def stands_alone(spec: JobSpec, launcher: SlotLauncher | None) -> bool:
    """True if a job is one slot with one rank, without a strategy that may need more.

    The ranks of ``exec`` are unknown in advance.
    """
    return (
        spec.world_size == spec.slot_count == 1
        and not spec.elastic
        and spec.strategy is None
        and launcher in PATIENCE_S
    )


class SingleRankSlot:
    """Reads the slot and rank of a single-rank job from the slot directory alone.

    ``place``: fields common to the records; ``patience``: seconds that a launcher may take to exit after its rank.

    Attributes:
        succeeded: Slot and rank ended successfully.
        over: These few files do not suffice.
    """

    def __init__(self, slot_dir: Path, *, place: dict[str, object], hook: bool, patience: float) -> None:
        self._dir = slot_dir
        self._place = place
        self._hook = hook
        self._patience = patience
        self._slot_seen = False
        self._start: Record | None = None
        # The rank's topmost process: a shell may enclose it.
        self._top = (0, 0)
        self._gone_since: float | None = None
        self.succeeded = False
        self.over = False

    def poll(self) -> list[Found]:
        """Returns new data as records; if ``over`` is set, the caller must read all records from now on."""
        if self.succeeded or self.over:
            return []
        found = []
        if not self._slot_seen and (at := _written(self._dir / "lock")) is not None:
            self._slot_seen = True
            found.append(self._found("slot_start", "lock", at=at))
        # First the end, so that all earlier claims are found.
        try:
            end = read_end(self._dir)
            found += self._rank(final=end is not None)
        except ValueError:
            self.over = True
            return found
        if end is None:
            self.over = self._slot_outlives_rank()
            return found
        if self._start is None or end.exit is None or end.exit.code != 0:
            self.over = True
            return found
        self.succeeded = True
        return [*found, *self._good_end(end, self._start)]

    def _rank(self, *, final: bool) -> list[Found]:
        """Rank's start record, again when a hook claims the rank.

        Raises ValueError if the files do not suffice.
        """
        claims = self._dir / "claims"
        own, at = _numbers(claims / "o0"), _written(claims / "o0")
        if own is None or at is None:
            return []
        root = claims / f"r{own[2]}-{own[3]}"
        hooked = _numbers(root.with_name(f"{root.name}.0"))
        late = len(own) > _NUMBERS and self._hook
        if late or (claims / "o1").exists() or root.with_name(f"{root.name}.1").exists():
            raise ValueError
        self._top = own[0], own[1]
        loaded = hooked is not None and len(hooked) == _NUMBERS
        pid, ticks = hooked[:2] if loaded and hooked is not None else own[:2]
        if self._start is not None and (self._start.writer == "hook" or not loaded):
            return []
        if not loaded and self._hook and not final and time.time_ns() - at < _WAIT_S * _NS:
            return []
        named = {name: value for name, value in zip(_IDENTITY, own[4:_NUMBERS], strict=True) if value >= 0}
        writer = "hook" if loaded else "wrapper"
        start = self._found("start", "claims/o0", at=at, pid=pid, start_ticks=ticks, ordinal=0, writer=writer, **named)
        self._start = start.record
        return [start]

    def _good_end(self, end: Record, start: Record) -> list[Found]:
        at = end.at_ns or time.time_ns()
        # ``plain`` ends with its rank's exit code; torchrun with 0 only if its worker did.
        code = {"code": 0, "how": "wait"}
        rank = self._found("end", "end.json", at=at, pid=start.pid, rank=start.rank, ordinal=0, exit=code)
        name = f"slot_end-a{end.attempt}-{end.role}-{end.slot}-{end.id}.json"
        return [rank, Found(record=end, name=name, mtime=at)]

    def _slot_outlives_rank(self) -> bool:
        """True if the slot runs longer after its rank's end than a launcher needs to exit."""
        pid, ticks = self._top
        if self._start is None or start_ticks(pid) == ticks:
            self._gone_since = None
            return False
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        return now - self._gone_since > self._patience

    def _found(self, kind: str, file: str, *, at: int, **fields: object) -> Found:
        given = {"id": f"lone-{kind}", "kind": kind, "writer": "wrapper", "at_ns": at, **self._place, **fields}
        name = "/".join(("..", *self._dir.parts[-3:], file))
        return Found(record=decoding.convert(given, Record), name=name, mtime=at)


def _numbers(path: Path) -> tuple[int, ...] | None:
    """Numbers of a claim; None if it is missing or incomplete."""
    try:
        values = [numbers.whole(word) for word in read_untrusted_file(path, limit=256)[0].split()]
    except OSError:
        return None
    found = tuple(each for each in values if each is not None)
    return found if len(found) == len(values) >= _NUMBERS else None


def _written(path: Path) -> int | None:
    """Modification time of a non-empty file in nanoseconds since the epoch; else None."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns if found.st_size else None


_MAX_NOTES: Final = 64


class RecordStore(Protocol):
    """A place outside the run directory to which ranks write records."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about unreadable data."""

    def fetch(self) -> None:
        """Copies new records into the folder of records."""


class RecordSource:
    """Source of the records of one attempt; it returns each record once.

    ``starts``: observed starts; later records wait. ``single``: launcher of a single-rank job whose records are not
    listed; None = read all.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        spec: JobSpec,
        attempt: int,
        facts: Facts,
        starts: Starts,
        single: SlotLauncher | None,
        store: RecordStore | None = None,
        guard: ReaderGuard | None = None,
    ) -> None:
        self._spec, self._facts, self._starts = spec, facts, starts
        self._guard = guard or ReaderGuard()
        self._folder = RecordFolder(
            run_dir.records_dir, run=run_dir.id, attempt=attempt, ranks=spec.world_size, guard=self._guard
        )
        self._store = store
        self._single = self._single_rank_slot(run_dir.id, attempt, single) if single is not None else None
        # Records of unobserved starts.
        self._later: list[Found] = []
        self._notes: list[str] = []

    @property
    def settled(self) -> bool:
        """True if all records are read, or a single-rank job has succeeded."""
        return self._single is None or self._single.succeeded

    @property
    def behind(self) -> bool:
        """True if the last poll skipped records for lack of time."""
        return self._folder.behind

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about unreadable and unused data."""
        return (*self._folder.problems, *(self._store.problems if self._store else ()), *self._notes)

    def new(self) -> list[Found]:
        """New records."""
        collected: list[Found] = []
        if self._single is not None:
            single = self._single
            # None: it failed, so the records are read.
            from_files = self._guard.read(single.poll, otherwise=None, what="slot directory", where="slots")
            collected = from_files or []
            if from_files is not None and not single.over:
                return collected
            self._single = None
        found = [*self._later, *filter(self._is_ours, self._folder.poll())]
        when = [self._starts.of_record(item.record) for item in found]
        self._later = [item for item, one in zip(found, when, strict=True) if one == "later"]
        return [*collected, *(item for item, one in zip(found, when, strict=True) if one == "now")]

    def read_all(self) -> None:
        """Reads the records themselves from now on, even for a job of one rank."""
        self._single = None

    def read_skipped_records(self) -> list[Found]:
        """Unread records of a single-rank job, unless the job succeeded."""
        if self.settled:
            return []
        self._single = None
        return self.new()

    def fetch(self) -> list[Found]:
        """Returns further records from the record store."""
        if self._store is None or self._single is not None:
            return []
        self._guard.read(self._store.fetch, otherwise=None, what="record store", where="record_store")
        return self.new()

    def _is_ours(self, item: Found) -> bool:
        """True if the job has the record's slot: shared folders may contain any."""
        slot = item.record.slot
        # Elastic members get new numbers; a foreign job's pods define its slots.
        if slot is None or slot in self._facts.slots or self._spec.elastic or self._spec.backend == FOREIGN:
            return True
        note = f"{item.name} names slot {slot}, which this job does not have, and was not used"
        if note not in self._notes and len(self._notes) < _MAX_NOTES:
            self._notes.append(note)
        return False

    def _single_rank_slot(self, run: str, attempt: int, launcher: SlotLauncher) -> SingleRankSlot:
        role = self._spec.role_of(0)
        place: dict[str, object] = {"run": run, "attempt": attempt, "role": role, "slot": 0}
        place["node"] = self._facts.slots[0].node
        folder = self._starts.slot_dir(role, 0)
        return SingleRankSlot(folder, place=place, hook=self._spec.inside != "off", patience=PATIENCE_S[launcher])
