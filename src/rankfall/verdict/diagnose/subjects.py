"""Groups evidence by rank, else slot, else stream.

A rank is never guessed; if only one rank can have written a line, elimination finds it, with lower confidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from rankfall.model import Case, Evidence, RankFacts, RunState, SlotFacts, cause_info
from rankfall.model.evidence import StampedBy
from rankfall.model.patterns import bounded
from rankfall.model.timestamps import EXACT, Bound, Moment
from rankfall.verdict.diagnose.cause_tables import (
    ECHO_TYPES,
    ENDS_OF_THE_REST,
    HINT,
    NEVER_CAUSE,
    OWN_CODE,
    STEP_TAKEN,
    WORK_DONE,
)
from rankfall.verdict.diagnose.survived_lines import is_end_by_launcher, is_task_of_srun, reclassified

# Secondary messages that are no complaint of a rank.
_NO_COMPLAINT: Final = NEVER_CAUSE | {"unknown"}
# torch's prefix of a rank's traceback.
_PREFIX: Final = bounded(r"^\[rank\d+\]:\s*", limit=1 << 16)

_NS: Final = 1_000_000_000
# Seconds from a line to a later completed step that proves that the rank continued.
_STEP_AFTER_S: Final = 0.1
_STEP_AFTER_TRACEBACK_S: Final = 1.0
_FLUSHED_NS: Final = 200_000_000

SubjectKey = tuple[Literal["rank", "slot", "stream", "job"], int | str]


class Subject(msgspec.Struct, kw_only=True):
    """One rank, slot or stream with all evidence about it.

    Attributes:
        by_elimination: IDs of evidence whose rank elimination found.
        ranks_seen: Slot: True if any rank started.
        ranks_alive: Slot: True if ranks started and none ended.
        seen_in: Pod of a rank that only lines mention.
        ahead, server_ahead: Offsets of the node's and API server's clocks.
        neighbours_complain: Rank: True if its slot's stream has complaints of an unknown rank.
    """

    key: SubjectKey
    rank: RankFacts | None = None
    slot: SlotFacts | None = None
    evidence: list[Evidence] = msgspec.field(default_factory=list)
    by_elimination: set[str] = msgspec.field(default_factory=set)
    ranks_seen: bool = False
    ranks_alive: bool = False
    neighbours_complain: bool = False
    seen_in: str | None = None
    ahead: Bound = EXACT
    server_ahead: Bound = EXACT

    def moment(self, at: int | None, uncertainty: float | None, stamped: StampedBy = "node") -> Moment:
        """Timestamp with its clock."""
        if stamped == "node":
            name = self.node or f"slot {self.slot_number}"
            return Moment(at=at, uncertainty=uncertainty or 0.0, clock=f"node {name}", bound=self.ahead)
        # A clock without a zone compares with no other.
        bound = Bound() if stamped == "text" else self.server_ahead if stamped == "server" else EXACT
        return Moment(at=at, uncertainty=uncertainty or 0.0, clock=stamped, bound=bound)

    def when(self, piece: Evidence) -> Moment:
        """Time of a piece."""
        return self.moment(piece.at, piece.uncertainty, piece.stamped)

    @property
    def ended(self) -> Moment:
        """Time when its process ended."""
        if self.rank is not None:
            return self.moment(self.rank.ended_at, self.rank.ended_uncertainty)
        if self.slot is None:
            return self.moment(None, None)
        return self.moment(self.slot.ended_at, self.slot.ended_uncertainty)

    @property
    def complaints(self) -> tuple[Evidence, ...]:
        """The subject's messages that report a consequence, such as a lost peer."""
        return tuple(e for e in self.evidence if e.role == "secondary" and e.source != "exit")

    @property
    def work_done(self) -> bool:
        """True if its rank reported the end of its work."""
        return self.rank is not None and self.rank.phase in WORK_DONE

    @property
    def rank_number(self) -> int | None:
        """Global rank; None if unknown."""
        return self.rank.rank if self.rank else None

    @property
    def slot_number(self) -> int | None:
        """Slot by facts, else by evidence; None if unknown."""
        if self.rank and self.rank.slot is not None:
            return self.rank.slot
        if self.slot:
            return self.slot.slot
        return next((e.slot for e in self.evidence if e.slot is not None), None)

    @property
    def node(self) -> str | None:
        """Node name by facts, else by evidence; None if unknown."""
        for facts in (self.rank, self.slot):
            if facts and facts.node:
                return facts.node
        return next((e.node for e in self.evidence if e.node), None)

    @property
    def pod(self) -> str | None:
        """Pod name by facts, else by evidence; None if unknown."""
        for facts in (self.rank, self.slot):
            if facts and facts.pod:
                return facts.pod
        return next((e.pod for e in self.evidence if e.pod), self.seen_in)


def own_failure(facts: RankFacts) -> bool:
    """True if this rank failed, and neither Rankfall nor torchrun's agent ended it."""
    if facts.state != "ended" or facts.killed_by in {"wrapper", "agent"}:
        return False
    return facts.signal is not None or facts.exit_code not in {0, None}


def work_over(case: Case, subjects: Subjects, failed: Subject) -> bool:
    """True if every rank had completed its work before this one failed."""
    if failed.rank is not None and not (failed.rank.finished or failed.work_done):
        return False
    others = [r for r in subjects.ranks.values() if failed.rank is None or r.rank != failed.rank.rank]
    complete = len(others) + (failed.rank is not None) >= max(1, case.world_size or 0)
    return complete and all(
        (r.state == "ended" and r.exit_code == 0) or r.finished or r.phase in WORK_DONE for r in others
    )


def state_of(case: Case) -> RunState:
    """State of this case's attempt."""
    if case.cancelled:
        return "cancelled"
    if case.succeeded:
        return "succeeded"
    says_nothing = all(e.fingerprint == HINT for e in case.evidence)
    if case.run is None and says_nothing and not any(one.exit_code or one.signal for one in case.ranks):
        # Text alone; a job that succeeded prints such text too.
        return "unknown"
    return "failed" if case.ended or case.hung else "running"


class Subjects:
    """All subjects of one case."""

    def __init__(self, case: Case) -> None:
        self.stopper = case.stopper
        self._ahead = {one.slot: one.ahead for one in case.clocks}
        self._newest_round: dict[int | None, int] = {}
        for facts in case.ranks:
            if facts.round is not None:
                self._newest_round[facts.slot] = max(facts.round, self._newest_round.get(facts.slot, 0))
        self.ranks = {r.rank: r for r in _latest_facts(case.ranks)}
        self.slots = {s.slot: s for s in case.slots}
        self._by_pid = {(_speaker(r), r.pid): r.rank for r in case.ranks if r.pid is not None}
        self._by_local = {(_speaker(r), r.local_rank): r.rank for r in self.ranks.values() if r.local_rank is not None}
        self._failed_at: dict[int | str | None, set[int]] = defaultdict(set)
        for facts in self.ranks.values():
            # With the hook, the slot's stream contains the launcher's lines, never that rank's.
            if own_failure(facts) and facts.hook != "loaded":
                self._failed_at[_speaker(facts)].add(facts.rank)
        evidence = reclassified(case.evidence)
        for piece in evidence:
            # Ranks of files have no hook.
            if piece.rank is not None and is_end_by_launcher(piece):
                self._failed_at[piece.stream].add(piece.rank)
        for piece in evidence:
            # A text without a rank may also be of a task of which srun states a reason.
            named = piece.role == "primary" and is_task_of_srun(piece)
            if named and piece.rank is not None and self._failed_at.get(piece.stream):
                self._failed_at[piece.stream].add(piece.rank)
        self._printed_again = _printed_again(evidence)
        # Ranks that name a killed process of theirs.
        self._lost: dict[tuple[str | None, int], set[int]] = defaultdict(set)
        for piece in evidence:
            if piece.rank is not None and piece.pid is not None and piece.slug == "dataloader_died":
                self._lost[piece.stream, piece.pid].add(piece.rank)
        # Ranks of each node that report one fault of their GPU, in a text whose lines have their nodes.
        self._struck: dict[tuple[str | None, str, str], set[int]] = defaultdict(set)
        for piece in evidence:
            if piece.rank is not None and (fault := _printed_gpu_fault(piece)) is not None:
                self._struck[fault].add(piece.rank)
        self.all: dict[SubjectKey, Subject] = {}
        for number in self.ranks:
            self._subject(("rank", number))
        with_ranks = {r.slot for r in case.ranks}
        with_ends = {r.slot for r in case.ranks if r.state == "ended"}
        for number in self.slots:
            subject = self._subject(("slot", number))
            subject.ranks_seen = number in with_ranks
            subject.ranks_alive = number in with_ranks and number not in with_ends
        seen: set[str] = set()
        for piece in sorted(evidence, key=lambda e: e.id):
            if piece.id not in seen and _in_scope(piece, case) and not self._of_earlier_round(piece):
                seen.add(piece.id)
                self._place(piece)
        self._mark_neighbours()

    def _mark_neighbours(self) -> None:
        # A launcher repeats its ranks' messages: not another rank's.
        known = {
            _words(e) for subject in self.all.values() if subject.rank is not None for e in subject.evidence if e.line
        }
        complaining = {
            _speaker(e)
            for subject in self.all.values()
            if subject.rank is None
            for e in subject.evidence
            if e.source == "log" and e.role == "secondary" and e.slug not in _NO_COMPLAINT and _words(e) not in known
        } - {None}
        for subject in self.all.values():
            subject.neighbours_complain = subject.rank is not None and _speaker(subject.rank) in complaining

    def anything_wrong(self) -> bool:
        """True if any rank, slot or piece reports a failure."""
        facts: list[RankFacts | SlotFacts] = [*self.ranks.values(), *self.slots.values()]
        return any(f.state == "lost" or f.signal is not None or f.exit_code for f in facts) or any(
            e.role != "context" for s in self.all.values() for e in s.evidence
        )

    def _of_earlier_round(self, piece: Evidence) -> bool:
        return piece.round is not None and piece.round < self._newest_round.get(piece.slot, 0)

    def _subject(self, key: SubjectKey) -> Subject:
        subject = self.all.get(key)
        if subject is None:
            kind, number = key
            rank = self.ranks.get(number) if kind == "rank" and isinstance(number, int) else None
            if kind == "rank" and rank is None and isinstance(number, int):
                rank = RankFacts(rank=number)
            slot_number = rank.slot if rank else number if kind == "slot" else None
            slot = self.slots.get(slot_number) if isinstance(slot_number, int) else None
            if kind == "slot" and slot is None and isinstance(number, int):
                slot = SlotFacts(slot=number)
            subject = self.all[key] = Subject(key=key, rank=rank, slot=slot)
            subject.server_ahead = self._ahead.get(None, EXACT)
            if slot_number is not None:
                subject.ahead = self._ahead.get(slot_number, EXACT)  # type: ignore[arg-type]
        return subject

    def _place(self, piece: Evidence) -> None:
        rank, eliminated = self._rank_of(piece)
        if rank is not None:
            key: SubjectKey = ("rank", rank)
        elif piece.slot is not None:
            key = ("slot", piece.slot)
        elif piece.stream is not None:
            key = ("stream", piece.stream)
        else:
            key = ("job", "")
        subject = self._subject(key)
        if piece.slot is not None and subject.slot_number is None:
            # It is on the node where the messages were written.
            subject.ahead = self._ahead.get(piece.slot, EXACT)
        subject.evidence.append(_weighed(subject, piece))
        place = self.slots.get(piece.slot) if piece.slot is not None else None
        subject.seen_in = subject.seen_in or (place.pod if place is not None else None)
        if eliminated:
            subject.by_elimination.add(piece.id)

    def _rank_of(self, piece: Evidence) -> tuple[int | None, bool]:
        if piece.rank is not None:
            return piece.rank, False
        if piece.id in self._printed_again:
            return self._printed_again[piece.id], False
        speaker = _speaker(piece)
        if speaker is None:
            return None, False
        if piece.pid is not None:
            # A saved console has the launcher's lines with their slot, but its report names ranks of the text.
            for known in (speaker, piece.stream):
                if (known, piece.pid) in self._by_pid:
                    return self._by_pid[known, piece.pid], False
            if len(owners := self._lost.get((piece.stream, piece.pid), ())) == 1:
                return next(iter(owners)), False
        if piece.local_rank is not None and (speaker, piece.local_rank) in self._by_local:
            return self._by_local[speaker, piece.local_rank], False
        if piece.slug in ENDS_OF_THE_REST or piece.signature in STEP_TAKEN:
            return None, False
        fault = _printed_gpu_fault(piece)
        struck = self._struck.get(fault, ()) if fault is not None else ()
        if len(struck) == 1:
            return next(iter(struck)), True
        failed = self._failed_at.get(speaker, ())
        if len(failed) == 1 and piece.source == "log" and piece.trust == "job" and piece.role == "primary":
            return next(iter(failed)), True
        return None, False


def _printed_gpu_fault(piece: Evidence) -> tuple[str | None, str, str] | None:
    """Stream, node and kind of a fault of a GPU in a line with its node, as of the driver or of the rank; else None."""
    if piece.source != "log" or piece.role != "primary" or piece.node is None:
        return None
    # The driver alone knows that the error was contained.
    kind = piece.slug.removesuffix("_contained")
    return (piece.stream, piece.node, kind) if cause_info(piece.slug).family == "gpu" else None


def _words(piece: Evidence) -> str:
    """Message without its rank's prefix."""
    return _PREFIX.sub("", piece.line.strip(), count=1)


def _printed_again(evidence: Sequence[Evidence]) -> dict[str, int]:
    """IDs of lines that torch's hook printed once more with its rank's prefix, with the rank: they are no other rank's."""
    plain: dict[tuple[str, str], list[str]] = defaultdict(list)
    prefixed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for piece in evidence:
        if piece.source == "log" and piece.stream is not None:
            if piece.rank is None:
                plain[piece.stream, _words(piece)].append(piece.id)
            elif _PREFIX.match(piece.line.strip()) is not None:
                prefixed[piece.stream, _words(piece)].append(piece.rank)
    found: dict[str, int] = {}
    for key, ranks in prefixed.items():
        # One more line without a rank may be another rank's.
        if len(set(ranks)) == 1 and len(plain[key]) <= len(ranks):
            found.update(dict.fromkeys(plain[key], ranks[0]))
    return found


def _speaker(about: RankFacts | Evidence) -> int | str | None:
    """Slot that identifies a launcher's ranks; without a slot the stream."""
    return about.slot if about.slot is not None else about.stream


def _latest_facts(ranks: Iterable[RankFacts]) -> Iterable[RankFacts]:
    """Facts of each rank's newest round."""
    newest: dict[int, RankFacts] = {}
    for facts in ranks:
        held = newest.get(facts.rank)
        if held is None or (facts.round or 0, facts.ended_at or 0, facts.pid or 0) > (
            held.round or 0,
            held.ended_at or 0,
            held.pid or 0,
        ):
            newest[facts.rank] = facts
    return newest.values()


def _in_scope(piece: Evidence, case: Case) -> bool:
    """True for evidence of the case's attempt, and for evidence that names no attempt."""
    return piece.attempt is None or case.attempt is None or piece.attempt == case.attempt


def _weighed(subject: Subject, piece: Evidence) -> Evidence:
    """Marks text before a completed step, or a thread's exception before work, as context; after it as teardown."""
    facts = subject.rank
    if piece.thread and facts is not None and piece.at is not None:
        # Buffered lines arrive at an exit; a signal loses them.
        until = None if facts.ended_at is None or facts.signal is not None else facts.ended_at - _FLUSHED_NS
        worked = [at for at in (facts.worked_at, facts.step_at) if at is not None and (until is None or at < until)]
        outlived = max(worked, default=0) > piece.at + round(_STEP_AFTER_TRACEBACK_S * _NS)
        return msgspec.structs.replace(piece, role="context", outlived=True) if outlived else piece
    if piece.source != "log" or piece.at is None or facts is None or facts.step_at is None:
        return piece
    if facts.phase in WORK_DONE:
        return msgspec.structs.replace(piece, teardown=True) if piece.at >= facts.step_at else piece
    patience = _STEP_AFTER_TRACEBACK_S if piece.whole else _STEP_AFTER_S
    outlived = facts.step_at > piece.at + round(patience * _NS)
    return msgspec.structs.replace(piece, role="context", outlived=True) if outlived else piece


def of_own_code(piece: Evidence | None) -> bool:
    """True for an uncaught exception of the job's code that no lost peer causes."""
    if piece is None or piece.slug != OWN_CODE or not (piece.whole or piece.source == "record"):
        return False
    kind = piece.line.partition(":")[0].strip().rpartition("]: ")[2]
    return not kind.startswith(ECHO_TYPES)
