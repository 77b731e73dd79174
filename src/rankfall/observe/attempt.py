"""One attempt of a run, observed from its directory: records, ends, streams, counters. Incremental, and the same live or afterwards.

The observer reads only; it can be thrown away at any moment and made again from the directory without losing or doubling anything,
because every piece of evidence has an identity of its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.diagnose.rules import NEVER_BEGAN
from rankfall.model import Case, Evidence, JobSpec, RankFacts, Record, SlotFacts
from rankfall.model.clocks import Bound
from rankfall.model.evidence import SlotLauncher
from rankfall.model.foreign import FOREIGN
from rankfall.observe import evidence as make
from rankfall.observe.cluster.clocks import ClockView, ProofView
from rankfall.observe.cluster.stops import StopMark
from rankfall.observe.confirm import dump_evidence, foreign_kills, kernel_evidence, oom_evidence
from rankfall.observe.facts import Facts
from rankfall.observe.incoming import Incoming
from rankfall.observe.left_errors import LeftErrors
from rankfall.observe.life import Life
from rankfall.observe.lone import stands_alone
from rankfall.observe.records import Found, read_end
from rankfall.observe.signals import Signals
from rankfall.observe.single import single_file_evidence
from rankfall.observe.slot_streams import SlotStreams
from rankfall.observe.stacks import imports, stack_evidence
from rankfall.observe.starts import Starts
from rankfall.signatures.catalogue import Catalogue
from rankfall.store import RunDir, StreamRow
from rankfall.store.catalogues import tolerant_catalogue

if TYPE_CHECKING:
    from rankfall.observe.cluster.around import AroundView
    from rankfall.observe.cluster.pods import PodView

_SIGKILL: Final = 9
_NS: Final = 1_000_000_000
# What a slot may wait for, as evidence has it.
_WAITS_FOR: Final = NEVER_BEGAN | {"command_not_found"}
# So many clocks that disagree are named, and so many gaps.
_MAX_CLOCKS: Final = 4
_MAX_GAPS: Final = 16
# torch 2.15, dynamic_rendezvous: a node is dropped whose last heartbeat is older than 3 intervals of 5 s, by the reader's own wall clock.
KEEP_ALIVE_S: Final = 15.0


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


class AttemptObserver:
    """Observer of one attempt.

    Args:
        run_dir: the run.
        spec: its job spec: expected slots and ranks.
        attempt: counted from 1.
        catalogue: signatures; the packaged ones and those of the run's home by default.
        launcher: what started the ranks in each slot, where the plan is known. Roles outside the world have ``exec`` by the spec.
        spare_listing: do not list the records of a job of one rank while nothing is wrong with it.
        starts: which start of slots that are started again alone is looked at; the first of those that are not named.
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
    ) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.attempt = attempt
        self._life = Life(here=spec.backend == "local")
        found, problem = (catalogue, None) if catalogue else tolerant_catalogue(run_dir.path.parent.parent)
        self._catalogue = found
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
        numbers = {slot: (starts or {}).get(slot, 0) for slot in spec.alone}
        for slot, number in numbers.items():
            expected[slot] = msgspec.structs.replace(expected[slot], instance=number)
        self._facts = Facts(expected, elastic=spec.elastic, here=here)
        self._pods: PodView | None = None
        self._around: AroundView | None = None
        if not here:
            from rankfall.observe.cluster.around import AroundView  # noqa: PLC0415 - a run on this machine has no pods
            from rankfall.observe.cluster.pods import PodView  # noqa: PLC0415 - as above

            self._pods = PodView(run_dir.path, attempt=attempt)
            self._around = AroundView(run_dir.path, attempt=attempt, catalogue=found)
        self._starts = Starts(run_dir, attempt=attempt, numbers=numbers, pods=self._pods)
        self._clocks = ClockView(run_dir.path, attempt=attempt)
        self._proofs = ProofView(run_dir.path, attempt=attempt)
        # Of slots without a word of their own: true only until they have one, so it is looked for when a case is made.
        self._left_found: list[Evidence] = []
        self._left = LeftErrors(run_dir.records_dir, catalogue=found, attempt=attempt)
        alone = spare_listing and stands_alone(spec, launcher) and not numbers
        self._incoming = Incoming(
            run_dir,
            spec=spec,
            attempt=attempt,
            facts=self._facts,
            starts=self._starts,
            lone=launcher if alone else None,
        )
        # A command of the user's own that is the whole job may have ranks all the same; one beside a world of ranks has none of them.
        outside = {n for part in spec.parts if spec.several_roles and not part.in_world for n in part.slots}
        self._streams = SlotStreams(
            run_dir, attempt=attempt, role_of=spec.role_of, outside=outside, catalogue=found, starts=self._starts
        )
        self._evidence: dict[str, Evidence] = {}
        # Why slots do not start: true only as long as they wait, so it is looked for when a case is made, and never kept.
        self._waiting: dict[str, Evidence] = {}
        self._errors: list[Found] = []
        self._stacks: list[Found] = []
        # What was made of them: with each further stack who is the odd one out may be another.
        self._by_stacks: frozenset[str] = frozenset()
        self._signals = Signals(None if here else StopMark(run_dir.path, attempt))
        self._gaps = 0
        self._notes: list[str] = [problem] if problem else []
        self._kernel_note: str | None = None
        self._kernel_done = False

    def poll(self, now: int) -> Delta:
        """Take what is new.

        Args:
            now: nanoseconds since the epoch by the caller's clock.
        """
        before = set(self._evidence)
        ends_before = self._bad_ends()
        found = self._incoming.new()
        for item in found:
            self._take_record(item)
            self._life.saw(min(self._facts.clocks.ours(item.record.slot, item.mtime), now))
        news = self._streams.poll(self._facts, now)
        self._keep(news.evidence)
        self._life.saw(news.output_at)
        self._life.look(self._facts, [self._slot_dir(slot) for slot in self._facts.slots], now)
        looked = False
        if self._pods is not None:
            looked = self._poll_pods(self._pods)
        else:
            self._poll_slots()
        self._derive()
        new = tuple(piece for key, piece in self._evidence.items() if key not in before)
        ends = self._bad_ends()
        failures = sum(1 for piece in new if piece.role != "context") + len(ends - ends_before)
        changed = bool(found or new or looked or ends != ends_before)
        return Delta(
            records=tuple(item.record for item in found),
            evidence=new,
            failures=failures,
            changed=changed,
            bytes=news.bytes,
            new_streams=news.new_streams,
        )

    def look_at(self, slot: int, number: int) -> None:
        """Look at this start of a slot from now on, and forget what was known of the one before.

        Args:
            slot: is started again.
            number: of the new start.
        """
        self._starts.look_at(slot, number)
        self._facts.renew(slot, number)
        self._streams.forget(slot)
        self._signals.forget(slot)
        self._evidence = {key: piece for key, piece in self._evidence.items() if piece.slot != slot}
        self._errors = [item for item in self._errors if item.record.slot != slot]
        self._stacks = [item for item in self._stacks if item.record.slot != slot]
        self._kernel_done = False

    def evidence_of(self, slot: int) -> tuple[str, ...]:
        """Ids of all evidence of a slot."""
        return tuple(sorted(key for key, piece in self._evidence.items() if piece.slot == slot))

    def importing(self) -> dict[tuple[int | None, int | None], str]:
        """Ranks that are inside of an import by the stacks that came: by slot and pid, what the stack is known again by."""
        return imports(item.record for item in self._stacks)

    def forget_stacks(self) -> None:
        """Take the stacks that came for history: whoever stood there has gone on."""
        self._stacks = []

    def read_records(self) -> None:
        """Read the records themselves from now on, also of a job of one rank."""
        self._incoming.read_all()

    def ranks(self) -> tuple[RankFacts, ...]:
        """Fact sheets of all rank processes, older rounds included; their times are by this machine's clock."""
        clocks = self._facts.clocks
        return tuple(map(clocks.retimed, self._facts.ranks())) if clocks.off() else self._facts.ranks()

    def slots(self) -> tuple[SlotFacts, ...]:
        """Fact sheets of the slots; their times are by this machine's clock."""
        clocks = self._facts.clocks
        return tuple(map(clocks.retimed, self._own_slots())) if clocks.off() else self._own_slots()

    def _own_slots(self) -> tuple[SlotFacts, ...]:
        return tuple(self._facts.slots[n] for n in sorted(self._facts.slots))

    def waits(self) -> str | None:
        """Why slots do not begin, in the platform's words; None where nothing is known to keep them."""
        waiting = [] if self._pods is None else [*self._pods.waiting(), *self._around_now()]
        waiting = [piece for piece in waiting if piece.slug in _WAITS_FOR and piece.slot is not None]
        if not waiting:
            return None
        first = waiting[0]
        others = len({piece.slot for piece in waiting}) - 1
        more = f" (and {others} more)" if others else ""
        return f"slot {first.slot}{more} waits: {first.line}"[:500]

    def streams(self) -> tuple[StreamRow, ...]:
        """Which bytes belong to which rank; what is not known yet has rank None."""
        return self._streams.rows(self._facts)

    @property
    def last_activity(self) -> int:
        """Nanoseconds since the epoch of the newest output, step or record; work of all ranks counts for a bounded time."""
        return self._life.last

    def case(self, *, cancelled: str | None = None, hung: bool = False, only: int | None = None) -> Case:
        """Everything known now, as the input of a diagnosis.

        Args:
            cancelled: by whom, when the user asked for the end.
            hung: nothing has moved for the set time.
            only: leave out all that is not of this slot: it fell alone.
        """
        for item in (*self._incoming.doubt(), *self._incoming.fetch()):
            self._take_record(item)
        self._confirm()
        self._derive()
        self._single_files()
        mine = {only} if only is not None else None
        slots = tuple(facts for facts in self._own_slots() if mine is None or facts.slot in mine)
        ranks = tuple(facts for facts in self._facts.ranks() if mine is None or facts.slot in mine)
        evidence = (*self._evidence.values(), *self._waiting.values(), *self._around_now(), *self._left_found)
        ended = all(s.state in {"ended", "lost"} for s in slots if s.state != "expected") and any(
            s.state in {"ended", "lost"} for s in slots
        )
        succeeded = bool(slots) and all(
            s.state == "ended" and s.exit_code == 0 for s in slots if s.state != "expected" or not self.spec.elastic
        )
        denied = self._left.any and only is None
        missing = [*self._incoming.problems, *self._streams.problems, *self._notes]
        if self._around is not None and self._pods is not None and not _explained(evidence):
            missing += self._around.missing(self._pods.counting())
        killed = any(r.signal == _SIGKILL and r.killed_by == "foreign" for r in ranks)
        if killed and self._kernel_note:
            missing.append(self._kernel_note)
        absent = [r.rank for r in ranks if r.hook == "absent"]
        if absent and self.spec.inside != "off":
            shown = ", ".join(str(n) for n in absent[:16])
            missing.append(f"records of rank{'s' if len(absent) > 1 else ''} {shown}: the hook was not loaded there")
        missing += [_clock_note(slot, ahead) for slot, ahead in islice(self._facts.clocks.off().items(), _MAX_CLOCKS)]
        return Case(
            run=self.run_dir.id,
            attempt=self.attempt,
            backend=self.spec.backend,
            role=self.spec.one_role,
            world_size=self._world_size(ranks),
            nnodes=self.spec.least_slots if mine is None else 1,
            ended=ended,
            succeeded=succeeded and not denied,
            denied=denied,
            cancelled=cancelled,
            hung=hung,
            ranks=ranks,
            slots=slots,
            evidence=evidence if mine is None else tuple(piece for piece in evidence if piece.slot in mine),
            missing=tuple(missing),
            clocks=self._facts.clocks.table(),
        )

    def _world_size(self, ranks: tuple[RankFacts, ...]) -> int | None:
        # Of a job that Rankfall did not start only its ranks themselves say how many they are.
        if self.spec.backend == FOREIGN or self.spec.elastic or not any(part.in_world for part in self.spec.parts):
            sizes = [s.world_size for r in ranks if (s := self._facts.start_of(r.slot, r.pid)) and s.world_size]
            return max(sizes, default=None)
        return self.spec.world_size

    def _take_record(self, item: Found) -> None:
        record = item.record
        self._facts.add(item)
        if record.kind == "error":
            self._errors.append(item)
        elif record.kind == "stacks":
            self._stacks.append(item)
        elif record.kind == "gap":
            self._gaps += 1
            if self._gaps <= _MAX_GAPS:
                self._notes += [f"{item.name}: {note}" for note in record.notes[:4]]
        elif record.kind == "slot_end":
            self._notes += [f"slot {record.slot}: {note}" for note in record.notes[:4]]
        elif record.kind == "kill":
            self._signals.add(item)

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
                rank=rank,
            )
            start = self._facts.start_of(record.slot, record.pid)
            sheet_round = start.round if start else record.round
            self._evidence[piece.id] = msgspec.structs.replace(piece, round=sheet_round)
        self._errors = waiting
        theirs, ours = self._signals.weigh(self._facts)
        self._keep(theirs)
        for piece in ours:
            self._evidence.pop(piece.id, None)
        ranks = self._facts.ranks()
        for facts in ranks:
            end = make.of_rank_end(facts, attempt=self.attempt)
            if end is not None:
                self._evidence[end.id] = end
        self._keep(oom_evidence(self._facts, self._evidence.values(), attempt=self.attempt))
        stacks = [(item.name, item.record) for item in self._stacks]
        told = stack_evidence(stacks, ranks=ranks, attempt=self.attempt)
        for key in self._by_stacks:
            self._evidence.pop(key, None)
        self._by_stacks = frozenset(piece.id for piece in told)
        self._keep(told)

    def _confirm(self) -> None:
        """What is looked for only when a case is made: kernel lines about killed ranks (once), flight-recorder dumps, pods that wait."""
        if self._pods is not None:
            self._waiting = {piece.id: piece for piece in self._pods.waiting()}
        # The kernel's lines of this machine say nothing of a process elsewhere.
        killed = foreign_kills(self._facts) if self._pods is None else {}
        if killed and not self._kernel_done:
            self._kernel_done = True
            found, self._kernel_note = kernel_evidence(killed, self._catalogue, attempt=self.attempt)
            self._keep(found)
        folders = [self._slot_dir(slot) / "flight" for slot in self._facts.slots]
        dumps, problems = dump_evidence(folders, relative_to=self.run_dir.path, attempt=self.attempt)
        self._keep(dumps)
        self._notes += [problem for problem in problems if problem not in self._notes]

    def _around_now(self) -> list[Evidence]:
        """What Events, nodes and the objects that make the pods say, as it stands now."""
        if self._around is None or self._pods is None:
            return []
        pods, slots = self._pods.counting(), tuple(self._facts.slots.values())
        stopped = self._pods.stop is not None
        return self._around.evidence(pods, slots, self._facts.ranks(), before=self._pods.before(), stopped=stopped)

    def _single_files(self) -> None:
        """Workers that know no records may have left the one error file of old."""
        places = {number: (facts, self._slot_dir(number)) for number, facts in self._facts.slots.items()}
        found, problems = single_file_evidence(
            self._facts.ranks(),
            slots=places,
            known=self._evidence.values(),
            catalogue=self._catalogue,
            attempt=self.attempt,
        )
        self._keep(found)
        if self._incoming.settled:
            self._left_found = self._left.evidence(
                slots=places, ranks=self._facts.ranks(), known=self._evidence.values()
            )
            problems += self._left.problems
        self._notes += [problem for problem in problems if problem not in self._notes]

    def _keep(self, pieces: Iterable[Evidence]) -> None:
        for piece in pieces:
            self._evidence[piece.id] = piece

    def _slot_dir(self, slot: int) -> Path:
        return self._starts.slot_dir(self.spec.role_of(slot), slot)

    def _poll_pods(self, pods: PodView) -> bool:
        """Take what the pods of the slots tell; whether that was anything new."""
        clocks = self._facts.clocks
        for slot, delay in self._clocks.poll().items():
            clocks.came(slot, delay)
        changed, found = pods.poll()
        proved = self._proofs.poll()
        if changed or proved:
            self._prove(pods)
        if pods.stop is not None:
            self._facts.set_stop(pods.stop.at_ns)
        self._keep(found)
        around = self._around is not None and self._around.poll()
        problems = [*pods.problems, *(self._around.problems if self._around is not None else ())]
        self._notes += [problem for problem in problems if problem not in self._notes]
        for facts in tuple(self._facts.slots.values()):
            # Every time, not only when a pod changed: a record that came since may have told of the slot's start or end.
            self._facts.set_slot(pods.merged(facts, late_ns=clocks.late(facts.slot)))
        if changed:
            clocks.placed()
        return changed or around

    def _prove(self, pods: PodView) -> None:
        """What stamps on objects prove of the nodes' clocks."""
        clocks, proofs = self._facts.clocks, self._proofs.proofs
        clocks.server(proofs.server)
        for slot, bound in pods.clock_bounds(server=proofs.server):
            clocks.proved(slot, bound)
        for node, ahead in proofs.nodes.items():
            clocks.proved_of_node(node, ahead)

    def _poll_slots(self) -> None:
        """A slot whose wrapper holds its lock no longer and left no end, not even in its own directory, is lost."""
        for number, facts in self._facts.slots.items():
            if facts.state != "running":
                continue
            if not lock_is_free(self._slot_dir(number) / "lock"):
                continue
            for item in (*self._incoming.new(), *self._incoming.doubt()):
                self._take_record(item)
            if self._facts.slots[number].state == "running" and (end := self._unrecorded_end(number)) is not None:
                self._take_record(end)
            if self._facts.slots[number].state == "running":
                self._facts.slots[number] = msgspec.structs.replace(facts, state="lost", where="lock")

    def _unrecorded_end(self, slot: int) -> Found | None:
        try:
            end = read_end(self._slot_dir(slot))
        except ValueError:
            return None
        # A directory that was used before may hold the end of another attempt; the wrapper removes it, but it may have come to nothing.
        if end is None or end.kind != "slot_end" or (end.run, end.attempt) != (self.run_dir.id, self.attempt):
            return None
        name = "/".join(("..", *self._slot_dir(slot).parts[-3:], "end.json"))
        return Found(record=end, name=name, mtime=end.at_ns or 0)

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


def _explained(evidence: Iterable[Evidence]) -> bool:
    """Whether a rank's own words give a cause, so that what the platform said would add nothing."""
    return any(piece.role == "primary" and piece.source == "record" for piece in evidence)


def _clock_note(slot: int, ahead: Bound) -> str:
    if ahead.middle is None:
        return f"a clock that agrees: slot {slot}'s was set while it ran"
    # Lines come almost at once, so the bound that they give is nearer than the middle.
    off = (ahead.middle if ahead.lo is None else ahead.lo) / _NS
    words = f"a clock that agrees: slot {slot}'s is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}"
    late = abs(off) >= KEEP_ALIVE_S
    return words + (f"; c10d's rendezvous drops nodes whose clocks differ by {KEEP_ALIVE_S:.0f} s" if late else "")


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
