"""One attempt of a run, observed from its directory: records, ends, streams, counters. Incremental, and the same live or afterwards.

The observer reads only; it can be thrown away at any moment and made again from the directory without losing or doubling anything,
because every piece of evidence has an identity of its own.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Case, Evidence, JobSpec, RankFacts, Record, SlotFacts
from rankfall.observe import evidence as make
from rankfall.observe.catalogues import tolerant_catalogue
from rankfall.observe.facts import Facts
from rankfall.observe.flight import MAX_DUMP, Dump, dump_rank, flight_evidence, read_dump
from rankfall.observe.kernel import read_kernel
from rankfall.observe.progress import cpu_seconds, read_steps
from rankfall.observe.records import Found, RecordFolder
from rankfall.observe.stacks import stack_evidence
from rankfall.observe.streams import KEEP_FIRST, Placed, StreamTail
from rankfall.observe.text import digest
from rankfall.signatures.catalogue import Catalogue
from rankfall.store import RunDir, StreamRow

# How long all ranks may burn CPU without a line or a step before that counts as standing still too.
BUSY_LIMIT_S: Final = 3600.0
_NS: Final = 1_000_000_000
_SIGKILL: Final = 9


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one poll brought.

    Attributes:
        failures: new pieces of evidence of a failure (consequences too), and bad ends of ranks or slots.
        changed: anything at all that a verdict could depend on.
        bytes: of streams.
        new_streams: streams seen for the first time; a viewer waits for whose they are.
    """

    records: tuple[Record, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    failures: int = 0
    changed: bool = False
    bytes: int = 0
    new_streams: int = 0


class _Stream:
    """A stream with whose it is."""

    def __init__(self, path: Path, *, slot: int, role: str, name: str, catalogue: Catalogue) -> None:
        self.tail = StreamTail(path, catalogue)
        self.slot = slot
        self.role = role
        self.name = name
        stem = path.name.partition(".")[0]
        self.local = stem
        self.ordinal = int(stem) if stem.isdecimal() else None
        self.kept: dict[tuple[str, int | None], int] = {}
        self.finished = False


class AttemptObserver:
    """Observer of one attempt.

    Args:
        run_dir: the run.
        spec: its job spec: expected slots and ranks.
        attempt: counted from 1.
        catalogue: signatures; the packaged ones and those of the run's home by default.
    """

    def __init__(self, run_dir: RunDir, *, spec: JobSpec, attempt: int, catalogue: Catalogue | None = None) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.attempt = attempt
        self._activity = 0
        found, problem = (catalogue, None) if catalogue else tolerant_catalogue(run_dir.path.parent.parent)
        self._catalogue = found
        nodes = spec.nnodes_max or spec.nnodes
        expected = {n: SlotFacts(slot=n, role=spec.role, node=f"node{n}", state="expected") for n in range(nodes)}
        self._facts = Facts(expected)
        self._records = RecordFolder(run_dir.records_dir, run=run_dir.id, attempt=attempt)
        self._streams: dict[Path, _Stream] = {}
        self._evidence: dict[str, Evidence] = {}
        self._errors: list[Found] = []
        self._stacks: list[Found] = []
        self._notes: list[str] = [problem] if problem else []
        self._kernel_note: str | None = None
        self._kernel_done = False
        self._cpu: dict[int, tuple[int, float]] = {}
        self._busy_at = 0
        self._output_at = 0

    def poll(self, now: int) -> Delta:
        """Take what is new.

        Args:
            now: nanoseconds since the epoch by the caller's clock.
        """
        before = set(self._evidence)
        ends_before = self._bad_ends()
        found = self._records.poll()
        for item in found:
            self._take_record(item)
        streams_before = len(self._streams)
        fresh = self._poll_streams(now)
        self._poll_steps()
        self._poll_slots()
        self._poll_cpu(now)
        self._derive()
        new = tuple(piece for key, piece in self._evidence.items() if key not in before)
        ends = self._bad_ends()
        failures = sum(1 for piece in new if piece.role != "context") + len(ends - ends_before)
        changed = bool(found or new or ends != ends_before)
        return Delta(
            records=tuple(item.record for item in found),
            evidence=new,
            failures=failures,
            changed=changed,
            bytes=fresh,
            new_streams=len(self._streams) - streams_before,
        )

    def ranks(self) -> tuple[RankFacts, ...]:
        """Fact sheets of all rank processes, older rounds included."""
        return self._facts.ranks()

    def slots(self) -> tuple[SlotFacts, ...]:
        """Fact sheets of the slots."""
        return tuple(self._facts.slots[n] for n in sorted(self._facts.slots))

    def streams(self) -> tuple[StreamRow, ...]:
        """Which bytes belong to which rank; what is not known yet has rank None."""
        rows = []
        sheets = {(r.slot, r.pid): r for r in self.ranks()}
        by_ordinal = {
            (record.slot, record.ordinal): record
            for key in sheets
            if (record := self._facts.start_of(*key)) is not None and record.ordinal is not None
        }
        for stream in self._streams.values():
            record = by_ordinal.get((stream.slot, stream.ordinal)) if stream.ordinal is not None else None
            sheet = sheets.get((record.slot, record.pid)) if record else None
            rows.append(
                StreamRow(
                    stream=stream.name,
                    attempt=self.attempt,
                    round=sheet.round if sheet else None,
                    role=stream.role,
                    slot=stream.slot,
                    instance=int(stream.tail.path.parent.name) if stream.tail.path.parent.name.isdecimal() else 0,
                    local=stream.local,
                    rank=sheet.rank if sheet else None,
                    from_byte=0,
                    to_byte=None,
                    proof=f"start record of pid {sheet.pid}" if sheet else "",
                )
            )
        return tuple(rows)

    def case(self, *, cancelled: str | None = None, hung: bool = False) -> Case:
        """Everything known now, as the input of a diagnosis."""
        self._read_kernel()
        self._read_dumps()
        self._derive()
        slots = self.slots()
        ranks = self.ranks()
        ended = all(s.state in {"ended", "lost"} for s in slots if s.state != "expected") and any(
            s.state in {"ended", "lost"} for s in slots
        )
        succeeded = bool(slots) and all(
            s.state == "ended" and s.exit_code == 0 for s in slots if s.state != "expected" or not self.spec.elastic
        )
        missing = [*self._records.problems, *self._notes]
        killed = any(r.signal == _SIGKILL and r.killed_by == "foreign" for r in ranks)
        if killed and self._kernel_note:
            missing.append(self._kernel_note)
        absent = [r.rank for r in ranks if r.hook == "absent"]
        if absent and self.spec.inside != "off":
            shown = ", ".join(str(n) for n in absent[:16])
            missing.append(f"records of rank{'s' if len(absent) > 1 else ''} {shown}: the hook was not loaded there")
        return Case(
            run=self.run_dir.id,
            attempt=self.attempt,
            backend=self.spec.backend,
            role=self.spec.role,
            world_size=self._world_size(ranks),
            nnodes=self.spec.nnodes,
            ended=ended,
            succeeded=succeeded,
            cancelled=cancelled,
            hung=hung,
            hook_expected=self.spec.inside != "off",
            ranks=ranks,
            slots=slots,
            evidence=tuple(self._evidence.values()),
            missing=tuple(missing),
        )

    def _world_size(self, ranks: tuple[RankFacts, ...]) -> int | None:
        if self.spec.elastic or self.spec.launcher == "exec":
            sizes = [s.world_size for r in ranks if (s := self._facts.start_of(r.slot, r.pid)) and s.world_size]
            return max(sizes, default=None)
        return self.spec.world_size

    def _take_record(self, item: Found) -> None:
        record = item.record
        self._facts.add(item)
        self._activity = max(self._activity, item.mtime)
        if record.kind == "error":
            self._errors.append(item)
        elif record.kind == "stacks":
            self._stacks.append(item)
        elif record.kind == "gap":
            self._notes += [f"{item.name}: {note}" for note in record.notes[:4]]
        elif record.kind == "slot_end":
            self._notes += [f"slot {record.slot}: {note}" for note in record.notes[:4]]
        elif record.kind == "kill":
            piece = make.of_slot_signal(
                record, name=f"records/{item.name}", uncertainty=self._facts.uncertainty(record.slot)
            )
            if piece is not None:
                self._evidence[piece.id] = piece

    def _derive(self) -> None:
        """Evidence that depends on facts which may come later than the observation: made anew, under the same identity."""
        waiting: list[Found] = []
        for item in self._errors:
            record = item.record
            if not self._facts.exit_stands(record):
                waiting.append(item)
                continue
            rank = self._facts.rank_of(record.slot, record.pid)
            if rank is None:
                rank = record.rank
            piece = make.of_error(
                record,
                name=f"records/{item.name}",
                catalogue=self._catalogue,
                uncertainty=self._facts.uncertainty(record.slot),
                rank=rank,
            )
            start = self._facts.start_of(record.slot, record.pid)
            sheet_round = start.round if start else record.round
            self._evidence[piece.id] = msgspec.structs.replace(piece, round=sheet_round)
        self._errors = waiting
        ranks = self.ranks()
        for facts in ranks:
            end = make.of_rank_end(facts, attempt=self.attempt)
            if end is not None:
                self._evidence[end.id] = end
        self._derive_oom(ranks)
        for piece in stack_evidence(
            [(item.name, item.record) for item in self._stacks], ranks=ranks, attempt=self.attempt
        ):
            self._evidence[piece.id] = piece

    def _read_dumps(self) -> None:
        """Flight-recorder dumps of this attempt, where the job was told to put them."""
        dumps: list[Dump] = []
        for slot in self._facts.slots:
            for path in sorted((self.run_dir.slot_dir(self.attempt, self.spec.role, slot) / "flight").glob("*")):
                rank = dump_rank(path.name)
                if rank is None:
                    continue
                try:
                    with path.open("rb") as file:
                        data = file.read(MAX_DUMP + 1)
                except OSError:
                    continue
                dump = read_dump(data, rank=rank, name=str(path.relative_to(self.run_dir.path)))
                if isinstance(dump, str):
                    self._notes += [dump] if dump not in self._notes else []
                else:
                    dumps.append(dump)
        for piece in flight_evidence(dumps, attempt=self.attempt):
            self._evidence[piece.id] = piece

    def _derive_oom(self, ranks: tuple[RankFacts, ...]) -> None:
        for slot in self._facts.slots.values():
            kills = slot.oom_kills or 0
            if not kills:
                continue
            killed = [r for r in ranks if r.slot == slot.slot and r.signal == _SIGKILL and r.killed_by == "foreign"]
            loaders = {
                e.rank
                for e in self._evidence.values()
                if e.slug == "dataloader_died" and e.slot == slot.slot and e.rank is not None
            }
            targets = killed or [r for r in ranks if r.rank in loaders and r.slot == slot.slot]
            for facts in targets:
                piece = make.of_oom(facts, slot, kills=kills, where=slot.where, attempt=self.attempt)
                self._evidence[piece.id] = piece

    def _poll_streams(self, now: int) -> int:
        self._discover()
        fresh = 0
        for stream in self._streams.values():
            state = self._facts.slots[stream.slot].state if stream.slot in self._facts.slots else "running"
            final = state in {"ended", "lost"}
            if stream.finished:
                continue
            placed, reports, count = stream.tail.poll(final=final)
            fresh += count
            if final and not stream.tail.behind:
                stream.finished = True
            if count:
                self._output_at = max(self._output_at, stream.tail.last_at or now)
                if stream.ordinal is not None and stream.tail.last_at:
                    self._facts.add_line_time(slot=stream.slot, ordinal=stream.ordinal, at=stream.tail.last_at)
            for item in placed:
                self._take_placed(stream, item)
            for report in reports:
                where = f"{stream.name}:{report.line}"
                self._facts.add_report(report.reported, slot=stream.slot, where=where)
        return fresh

    def _take_placed(self, stream: _Stream, item: Placed) -> None:
        """Keep the first few and the last piece of a signature in a stream; a flood costs no more."""
        rank, round_number = self._owner(stream)
        kind = (item.finding.meaning.signature or item.finding.meaning.fingerprint, item.finding.prefix.rank)
        count = stream.kept[kind] = stream.kept.get(kind, 0) + 1
        piece = make.of_finding(
            item.finding,
            stream=stream.name,
            byte=item.byte,
            where=f"{stream.name}:{item.line}",
            at=item.at,
            rank=rank,
            slot=stream.slot,
            node=self._facts.slots[stream.slot].node if stream.slot in self._facts.slots else None,
            attempt=self.attempt,
            round_number=round_number,
        )
        if count > KEEP_FIRST:
            piece = msgspec.structs.replace(piece, id=digest("last", stream.name, *kind))
        self._evidence[piece.id] = piece

    def _owner(self, stream: _Stream) -> tuple[int | None, int | None]:
        if stream.ordinal is None:
            return None, None
        for facts in self.ranks():
            start = self._facts.start_of(facts.slot, facts.pid)
            if facts.slot == stream.slot and start is not None and start.ordinal == stream.ordinal:
                return facts.rank, facts.round
        return None, None

    def _discover(self) -> None:
        role = self.spec.role
        for slot in self._facts.slots:
            folder = self.run_dir.stream_dir(self.attempt, role, slot).parent
            try:
                instances = sorted(os.scandir(folder), key=lambda e: e.name)
            except OSError:
                continue
            for instance in instances:
                for path in _logs(Path(instance.path)):
                    if path not in self._streams:
                        relative = str(path.relative_to(self.run_dir.path))
                        self._streams[path] = _Stream(
                            path, slot=slot, role=role, name=relative, catalogue=self._catalogue
                        )

    def _poll_steps(self) -> None:
        for slot in self._facts.slots:
            steps = read_steps(self.run_dir.slot_dir(self.attempt, self.spec.role, slot))
            if not steps:
                continue
            pids = {
                start.ordinal: (facts.slot, facts.pid)
                for facts in self.ranks()
                if facts.slot == slot and (start := self._facts.start_of(facts.slot, facts.pid)) is not None
            }
            for step in steps:
                self._activity = max(self._activity, step.at)
                if step.ordinal in pids and step.step is not None:
                    self._facts.add_step(pids[step.ordinal], step.step, step.phase)

    def _poll_slots(self) -> None:
        """A slot whose wrapper holds its lock no longer and left no end is lost."""
        for number, facts in self._facts.slots.items():
            if facts.state != "running":
                continue
            lock = self.run_dir.slot_dir(self.attempt, self.spec.role, number) / "lock"
            if not lock_is_free(lock):
                continue
            for item in self._records.poll():
                self._take_record(item)
            if self._facts.slots[number].state == "running":
                self._facts.slots[number] = msgspec.structs.replace(facts, state="lost", where=str(lock.name))

    def _poll_cpu(self, now: int) -> None:
        """While every rank burns CPU, that counts as life for ``BUSY_LIMIT_S`` after the last output: a spin in a collective looks so too."""
        self._activity = max(self._activity, self._output_at)
        running = [r for r in self.ranks() if r.state == "running" and r.pid is not None]
        if not running or now - min((at for at, _ in self._cpu.values()), default=0) < 2 * _NS:
            return
        busy = True
        fresh: dict[int, tuple[int, float]] = {}
        for facts in running:
            pid = facts.pid or 0
            seconds = cpu_seconds(pid)
            if seconds is None:
                continue
            fresh[pid] = (now, seconds)
            held = self._cpu.get(pid)
            if held is None or (seconds - held[1]) * _NS < 0.3 * (now - held[0]):
                busy = False
        self._cpu = fresh
        if busy and fresh and now - self._activity < BUSY_LIMIT_S * _NS:
            self._busy_at = now

    @property
    def last_activity(self) -> int:
        """Nanoseconds since the epoch of the newest output, step or record; work of all ranks counts for a bounded time."""
        return max(self._activity, self._busy_at)

    def _read_kernel(self) -> None:
        """Kernel lines about ranks that were killed; read once, when a case is made and somebody was killed."""
        ranks = {
            r.pid: r for r in self.ranks() if r.pid is not None and r.signal is not None and r.killed_by == "foreign"
        }
        if not ranks or self._kernel_done:
            return
        self._kernel_done = True
        since = min((r.started_at for r in ranks.values() if r.started_at), default=0)
        lines, self._kernel_note = read_kernel(self._catalogue, since=since)
        for line in lines:
            facts = ranks.get(line.pid) if line.pid is not None else None
            if facts is None:
                continue
            piece = make.of_kernel(line, facts, attempt=self.attempt)
            self._evidence[piece.id] = piece

    def _bad_ends(self) -> set[tuple[str, int, int | None]]:
        ends = {
            ("rank", r.rank, r.pid)
            for r in self.ranks()
            if r.state == "ended" and (r.signal is not None or r.exit_code)
        }
        return ends | {
            ("slot", s.slot, None)
            for s in self._facts.slots.values()
            if s.state == "lost" or s.signal is not None or s.exit_code
        }


def _logs(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".log")
    except OSError:
        return []


def lock_is_free(path: Path) -> bool:
    """Whether nobody holds the ``flock`` of this file; False when it is not there yet or cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
