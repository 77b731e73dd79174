"""Observes one attempt from its run directory, live or afterwards; read-only.

An observer can be rebuilt without loss or duplicates. A local slot without end is lost if its wrapper's lock is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from rankfall.evidence.attempt.activity import Life
from rankfall.evidence.attempt.case import explained, make_case
from rankfall.evidence.attempt.evidence_set import EvidenceSet, LateEvidence
from rankfall.evidence.attempt.record_sources import RecordSource, RecordStore, Starts, stands_alone
from rankfall.evidence.attempt.slot_streams import SlotStreams
from rankfall.evidence.facts import Facts
from rankfall.model import Case, Evidence, JobSpec, RankFacts, Record, SlotFacts
from rankfall.model.evidence import SlotLauncher
from rankfall.rundir import RunDir, StreamRow
from rankfall.rundir.cluster.marks import StopMark
from rankfall.rundir.incomplete import lost_lines, sentences
from rankfall.rundir.reader_guard import POLL_BYTES, POLL_S, Budget, ReaderGuard
from rankfall.rundir.records import Found, read_end
from rankfall.rundir.streams.content import lock_is_free
from rankfall.rundir.user_signatures import tolerant_catalogue
from rankfall.verdict.signatures.catalogue import Catalogue

if TYPE_CHECKING:
    from rankfall.evidence.cluster.platform import PlatformView


def unrecorded_end(folder: Path, *, run: str, attempt: int) -> Found | None:
    """End record in a slot's folder that is missing among the records; None without one of this attempt."""
    try:
        end = read_end(folder)
    except ValueError:
        return None
    # A reused directory may contain another attempt's end.
    if end is None or end.kind != "slot_end" or (end.run, end.attempt) != (run, attempt):
        return None
    return Found(record=end, name="/".join(("..", *folder.parts[-3:], "end.json")), mtime=end.at_ns or 0)


T = TypeVar("T")

# Maximum gap records counted, named without counts; of all notes.
_MAX_GAPS: Final = 4096
_MAX_NAMED: Final = 16
_MAX_NOTES: Final = 512
_MAX_NOTE: Final = 1000
# Seconds for dumps and error files of a case.
_LATE_S: Final = 10.0
_NO_EVIDENCE: Final[list[Evidence]] = []
_NOTHING_NEW: Final[tuple[bool, list[Evidence]]] = (False, [])


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one poll.

    Attributes:
        failures: New failure evidence, and failed ends.
        changed: Anything that a verdict could depend on.
        bytes: Number of bytes read from streams.
        new_streams: True if streams appeared; a viewer waits for their ranks.
        behind: True if some data remained unread.
        printed_step: Newest step in the lines of all streams; None without one.
    """

    records: tuple[Record, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    failures: int = 0
    changed: bool = False
    bytes: int = 0
    new_streams: int = 0
    behind: bool = False
    printed_step: int | None = None


class AttemptObserver:
    """Observer of one attempt.

    ``launcher`` None = the plan is unknown. ``spare_listing``: list no records of a single-rank job until a problem.
    ``starts``: observed start number by slot, for slots that restart alone.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        spec: JobSpec,
        attempt: int,
        catalogue: Catalogue | None = None,
        launcher: SlotLauncher | None = None,
        spare_listing: bool = False,
        starts: Mapping[int, int] | None = None,
        context_path: Path | None = None,
        record_store: RecordStore | None = None,
    ) -> None:
        self._guard = ReaderGuard(run_dir.path)
        self._interrupted: Callable[[], bool] = lambda: False
        self.run_dir = run_dir
        self.spec = spec
        self.attempt = attempt
        here = spec.backend == "local"
        self._life = Life(here=here, folder="heartbeats" if spec.backend == "slurm" else "progress")
        found, problem = (catalogue, None) if catalogue else tolerant_catalogue(run_dir.path.parent.parent)
        self._catalogue = found
        numbers = {slot: (starts or {}).get(slot, 0) for slot in spec.alone}
        self._facts = Facts(_expected(spec, launcher, numbers), elastic=spec.elastic, here=spec.writes_run_dir)
        self._platform: PlatformView | None = None
        if not spec.writes_run_dir:
            from rankfall.evidence.cluster.platform import PlatformView  # noqa: PLC0415

            self._platform = PlatformView(run_dir.path, attempt=attempt, catalogue=found, context_path=context_path)
        pods = self._platform.pods if self._platform is not None else None
        self._starts = Starts(run_dir, attempt=attempt, numbers=numbers, pods=pods)
        alone = spare_listing and stands_alone(spec, launcher) and not numbers
        self._record_source = RecordSource(
            run_dir,
            spec=spec,
            attempt=attempt,
            facts=self._facts,
            starts=self._starts,
            single=launcher if alone else None,
            store=record_store,
            guard=self._guard,
        )
        # A user command next to a world of ranks has none.
        outside = {n for part in spec.parts if spec.several_roles and not part.in_world for n in part.slots}
        self._streams = SlotStreams(
            run_dir,
            attempt=attempt,
            role_of=spec.role_of,
            outside=outside,
            catalogue=found,
            starts=self._starts,
            guard=self._guard,
            step_output=spec.backend == "slurm",
        )
        stop = None if spec.writes_run_dir else StopMark(run_dir.path, attempt)
        self._evidence_set = EvidenceSet(
            attempt=attempt, catalogue=found, stop=stop, guard=self._guard, unattended=spec.unattended
        )
        self._late = LateEvidence(run_dir, attempt=attempt, catalogue=found, here=here, guard=self._guard)
        self._gaps: dict[str, Record] = {}
        self._named = 0
        self.polls = 0
        self._notes: list[str] = [problem] if problem else []

    def prepare(self) -> None:
        """Does work in advance that would otherwise delay the first line of a stream."""
        self._catalogue.prepare(Catalogue.STREAM)

    def interrupt_by(self, check: Callable[[], bool]) -> None:
        """Ends reading early while ``check`` returns True, because a caller waits for an answer."""
        self._interrupted = check

    def take_time(self) -> None:
        """Allows more reading of costly text; call before the first poll."""
        self._streams.take_time()

    def shorten_grace(self) -> None:
        """Bounds all further reading and ignores interruptions, because all slots have ended."""
        self._interrupted = lambda: False
        self._streams.shorten_grace()

    def take_new_problems(self) -> list[str]:
        """Returns what readers failed on or left out since the last call."""
        return self._guard.take_new()

    def poll(self, now: int) -> Delta:
        """Reads new data for a bounded time; ``now`` in nanoseconds since the epoch."""
        self.polls += 1
        before = self._evidence_set.ids()
        ends_before = self._bad_ends()
        found = self._record_source.new()
        for item in found:
            self._take_record(item)
            self._life.saw(min(self._facts.clocks.ours(item.record.slot, item.mtime), now))
        delta = self._streams.poll(self._facts, now, Budget(POLL_S, POLL_BYTES, interrupted=self._interrupted))
        self._evidence_set.keep(delta.evidence)
        self._life.saw(delta.output_at)
        self._read(lambda: self._life.look(self._facts, self._slot_dirs().values(), now), None, "steps of ranks")
        looked = False
        platform = self._platform
        if platform is not None:
            looked, pieces = self._read(lambda: platform.poll(self._facts), _NOTHING_NEW, "journal of the cluster")
            self._evidence_set.keep(pieces)
            self._note(platform.problems)
        elif self.spec.backend == "local":
            self._read(self._poll_slots, None, "slot directories")
        self._evidence_set.derive(self._facts)
        new = tuple(piece for piece in self._evidence_set.all if piece.id not in before)
        ends = self._bad_ends()
        failures = sum(1 for piece in new if piece.role != "context") + len(ends - ends_before)
        revised = any(piece.outlived and piece.id in before for piece in delta.evidence)
        changed = bool(found or new or looked or revised or ends != ends_before)
        return Delta(
            records=tuple(item.record for item in found),
            evidence=new,
            failures=failures,
            changed=changed,
            bytes=delta.bytes,
            new_streams=delta.new_streams,
            behind=delta.behind or self._record_source.behind,
            printed_step=delta.printed_step,
        )

    def select_start(self, slot: int, number: int) -> None:
        """Observes this start of a slot from now on, and forgets the one before."""
        self._starts.select_start(slot, number)
        self._facts.renew(slot, number)
        self._streams.forget(slot)
        self._evidence_set.forget(slot)
        self._late.again()

    def evidence_of(self, slot: int) -> tuple[str, ...]:
        """IDs of all evidence of a slot."""
        return self._evidence_set.of_slot(slot)

    def importing(self) -> dict[tuple[int | None, int | None], str]:
        """Ranks whose main thread is inside an import: a digest of the stack by (slot, pid)."""
        return self._evidence_set.importing()

    def forget_stacks(self) -> None:
        """Drops the stacks, because their ranks have made progress since."""
        self._evidence_set.forget_stacks()

    def read_records(self) -> None:
        """Reads the records themselves from now on, even for a job of one rank."""
        self._record_source.read_all()

    def ranks(self) -> tuple[RankFacts, ...]:
        """Facts of all rank processes, older rounds included, with times by this machine's clock."""
        clocks = self._facts.clocks
        return tuple(map(clocks.retimed, self._facts.ranks())) if clocks.off() else self._facts.ranks()

    def slots(self) -> tuple[SlotFacts, ...]:
        """Facts of the slots, with times by this machine's clock."""
        clocks = self._facts.clocks
        own = tuple(self._facts.slots[n] for n in sorted(self._facts.slots))
        return tuple(map(clocks.retimed, own)) if clocks.off() else own

    def waits(self) -> str | None:
        """Platform's reason why slots do not start; None if there is none."""
        platform = self._platform
        nothing: str | None = None
        return (
            None
            if platform is None
            else self._read(lambda: platform.waits(self._facts), nothing, "journal of the cluster")
        )

    def streams(self) -> tuple[StreamRow, ...]:
        """Returns rows that assign every byte of every stream to a rank; None if the rank is unknown."""
        return self._streams.rows(self._facts)

    @property
    def last_activity(self) -> int:
        """Time of the newest activity, nanoseconds since the epoch; CPU use counts for a bounded time."""
        return self._life.last

    def case(self, *, cancelled: str | None = None, hung: bool = False, only: int | None = None) -> Case:
        """Returns all current knowledge as the input of a diagnosis.

        ``hung``: no activity for the configured time. ``only``: the slot that failed alone.
        """
        for item in (*self._record_source.read_skipped_records(), *self._record_source.fetch()):
            self._take_record(item)
        self._find_late_evidence()
        evidence = list(self._evidence_set.all)
        platform = self._platform
        if platform is not None:
            # Waiting reasons and context: valid now, never stored.
            waiting = {
                piece.id: piece for piece in self._read(platform.waiting, _NO_EVIDENCE, "journal of the cluster")
            }
            evidence += [
                *waiting.values(),
                *self._read(lambda: platform.context_evidence(self._facts), _NO_EVIDENCE, "journal of the cluster"),
            ]
        evidence += self._late.left
        missing = [
            *sentences(lost_lines(self._gaps.values())),
            *self._record_source.problems,
            *self._streams.problems,
            *self._notes,
        ]
        if platform is not None and not explained(evidence):
            missing += self._read(platform.missing, [], "journal of the cluster")
        missing += self._guard.problems
        return make_case(
            self.spec,
            self._facts,
            evidence,
            run=self.run_dir.id,
            attempt=self.attempt,
            missing=missing,
            kernel_note=self._late.kernel_note,
            denied=self._late.denied,
            cancelled=cancelled,
            hung=hung,
            only=only,
        )

    def _find_late_evidence(self) -> None:
        folders = self._slot_dirs()
        budget = Budget(_LATE_S, interrupted=self._interrupted)
        found, problems = self._late.confirm(self._facts, folders, budget)
        self._evidence_set.keep(found)
        self._note(problems)
        self._evidence_set.derive(self._facts)
        found, problems = self._late.error_files(
            self._facts, folders, budget, known=self._evidence_set.all, shared=self._record_source.settled
        )
        self._evidence_set.keep(found)
        self._note(problems)

    def _read(self, reader: Callable[[], T], otherwise: T, what: str) -> T:
        return self._guard.read(reader, otherwise=otherwise, what=what, where=self.run_dir.id)

    def _take_record(self, item: Found) -> None:
        self._guard.read(
            lambda: self._take(item),
            otherwise=None,
            what="record",
            where=f"records/{item.name}",
            data=partial(msgspec.json.encode, item.record),
        )

    def _take(self, item: Found) -> None:
        record = item.record
        self._facts.add(item)
        self._evidence_set.take(item)
        if record.kind == "gap" and record.lost is not None:
            if len(self._gaps) < _MAX_GAPS:
                self._gaps[item.name] = record
        elif record.kind == "gap" and self._named < _MAX_NAMED:
            self._named += 1
            self._note(f"{item.name}: {note}" for note in record.notes[:4])
        elif record.kind == "slot_end":
            self._note(f"slot {record.slot}: {note}" for note in record.notes[:4])

    def _note(self, problems: Iterable[str]) -> None:
        for problem in problems:
            if len(self._notes) < _MAX_NOTES and (text := problem[:_MAX_NOTE]) not in self._notes:
                self._notes.append(text)

    def _slot_dir(self, slot: int) -> Path:
        return self._starts.slot_dir(self.spec.role_of(slot), slot)

    def _slot_dirs(self) -> dict[int, Path]:
        return {slot: self._slot_dir(slot) for slot in self._facts.slots}

    def _poll_slots(self) -> None:
        """Marks a slot as lost if its wrapper's lock is free and no end exists."""
        if self._record_source.behind:
            # Its end may be in a record not read yet.
            return
        for number, facts in self._facts.slots.items():
            if facts.state != "running":
                continue
            folder = self._slot_dir(number)
            if not lock_is_free(folder / "lock"):
                continue
            for item in (*self._record_source.new(), *self._record_source.read_skipped_records()):
                self._take_record(item)
            if self._facts.slots[number].state == "running":
                end = unrecorded_end(folder, run=self.run_dir.id, attempt=self.attempt)
                if end is not None:
                    self._take_record(end)
            if self._facts.slots[number].state == "running":
                self._facts.slots[number] = msgspec.structs.replace(facts, state="lost", where="lock")

    def _bad_ends(self) -> set[tuple[str, int, int | None]]:
        ends = {
            ("rank", r.rank, r.pid)
            for r in self._facts.ranks()
            if r.state == "ended" and (r.signal is not None or r.exit_code)
        }
        return ends | {
            ("slot", s.slot, None)
            for s in self._facts.slots.values()
            if s.state == "lost" or s.signal is not None or s.exit_code
        }


def _expected(spec: JobSpec, launcher: SlotLauncher | None, numbers: Mapping[int, int]) -> dict[int, SlotFacts]:
    """Planned slots before any observation."""
    here = spec.backend == "local"
    expected = {
        n: SlotFacts(
            slot=n,
            role=part.name,
            node=f"node{n}" if here else None,
            state="expected",
            launcher=launcher if part.in_world else "exec",
        )
        for part in spec.parts
        for n in part.slots
    }
    for slot, number in numbers.items():
        expected[slot] = msgspec.structs.replace(expected[slot], instance=number)
    return expected
