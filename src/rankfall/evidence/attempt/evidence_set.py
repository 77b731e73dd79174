"""Evidence of one attempt by identity, derived again when later facts change it.

Kernel lines, flight recorders and error files are read only for a case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence import builders as make
from rankfall.evidence.attempt.ras_reports import ras_evidence
from rankfall.evidence.facts import Facts
from rankfall.evidence.readers.flight_recorder import Dumps, dump_rank
from rankfall.evidence.readers.flyte_errors import FlyteErrorFiles
from rankfall.evidence.readers.kernel_log import read_kernel
from rankfall.evidence.readers.stacks import imports, stack_evidence, stack_piece, stand
from rankfall.evidence.readers.torchrun import single_file_evidence
from rankfall.model import Evidence, RankFacts, Record
from rankfall.model.patterns import bounded
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import StopMark
from rankfall.rundir.reader_guard import Budget, ReaderGuard
from rankfall.rundir.records import Found, read_untrusted_file
from rankfall.verdict.diagnose.cause_tables import CHILD_DEATHS
from rankfall.verdict.diagnose.subjects import own_failure
from rankfall.verdict.signatures.catalogue import Catalogue

_SIGKILL: Final = 9
# Python's message about a killed child, of subprocess and multiprocessing.
_CHILD_KILLED: Final = bounded(r"died with <Signals\.SIGKILL: 9>|non-zero exit status (?:-9|137)\b", limit=8_192)
# Maximum named unreadable dumps.
_MAX_PROBLEMS: Final = 64


def foreign_kills(facts: Facts) -> dict[int, RankFacts]:
    """Ranks that a foreign signal ended, by process ID."""
    return {r.pid: r for r in facts.ranks() if r.pid is not None and r.signal is not None and r.killed_by == "foreign"}


def oom_evidence(facts: Facts, known: Iterable[Evidence], *, attempt: int) -> list[Evidence]:
    """Returns evidence from risen OOM counters of slots, at ranks that died of a SIGKILL or lost a child to one.

    A lost child counts only if no rank died itself. If only the ranks' parent was killed, the slot gets the evidence.
    A kernel line about a rank, not the counter, distinguishes a node without memory from a limit.
    """
    found = []
    of_node = {(e.slot, e.pid) for e in known if e.slug == "node_oom" and e.trust == "kernel" and e.pid is not None}
    counted = [slot for slot in facts.slots.values() if slot.oom_kills]
    bereaved = {(e.slot, e.rank) for e in known if _child_was_killed(e)} if counted else set()
    for slot in counted:
        ranks = [r for r in facts.ranks() if r.slot == slot.slot]
        killed = [r for r in ranks if r.signal == _SIGKILL and r.killed_by == "foreign"]
        struck: list[RankFacts | None] = [*killed] or [r for r in ranks if (r.slot, r.rank) in bereaved]
        if not struck and slot.signal == _SIGKILL and slot.killed_by != "wrapper" and not any(map(own_failure, ranks)):
            struck = [None]
        for r in struck:
            piece = make.of_oom(r, slot, kills=slot.oom_kills or 0, where=slot.where, attempt=attempt)
            if r is not None and (r.slot, r.pid) in of_node:
                piece = msgspec.structs.replace(piece, slug="node_oom", fingerprint="node_oom:cgroup")
            found.append(piece)
    return found


def _child_was_killed(piece: Evidence) -> bool:
    """True if a rank ended because one of its child processes was killed."""
    if piece.slug == "dataloader_died":
        return True
    return piece.source == "record" and (piece.signature in CHILD_DEATHS or bool(_CHILD_KILLED.search(piece.line)))


def kernel_evidence(
    killed: dict[int, RankFacts], catalogue: Catalogue, *, attempt: int
) -> tuple[list[Evidence], str | None]:
    """Returns kernel lines that name a killed rank, and the reason if the kernel log is unavailable (else None)."""
    since = min((r.started_at for r in killed.values() if r.started_at), default=0)
    lines, problem = read_kernel(catalogue, since=since)
    return [make.of_kernel(line, killed[line.pid], attempt=attempt) for line in lines if line.pid in killed], problem


def dump_evidence(folders: Iterable[Path], *, relative_to: Path, attempt: int) -> tuple[list[Evidence], list[str]]:
    """Evidence of flight-recorder dumps in these folders, and messages about invalid ones."""
    dumps = Dumps()
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*")):
            rank = dump_rank(path.name)
            if rank is None:
                continue
            try:
                name, size = str(path.relative_to(relative_to)), path.lstat().st_size
                problem = dumps.add(rank, name, size, partial(_content, path))
            except OSError as error:
                problem = f"{path.name} cannot be read: {error.strerror}"
            if problem is not None and len(problems) < _MAX_PROBLEMS:
                problems.append(problem)
    return dumps.evidence(attempt=attempt), [*problems, *dumps.left_out]


def _content(path: Path, limit: int) -> bytes:
    return read_untrusted_file(path, limit=limit)[0]


def _newest_text(found: list[Found]) -> bytes:
    return "".join(item.record.stacks or item.record.ras or "" for item in found[-1:]).encode()


def _stack_of_one_rank(stacks: Sequence[Found], ranks: Iterable[RankFacts], *, attempt: int) -> list[Evidence]:
    """Position of the only rank with a stack, as context: it cannot be compared."""
    if len({(item.record.slot, item.record.pid) for item in stacks}) != 1:
        return []
    newest = max(stacks, key=lambda item: item.record.at_ns or 0)
    record = newest.record
    facts = next((r for r in ranks if (r.slot, r.pid) == (record.slot, record.pid)), None)
    where = stand(facts.rank, record.stacks or "") if facts is not None else None
    if facts is None or where is None:
        return []
    row = record.at_ns or 0, newest.name, record, facts
    line = f"rank {facts.rank} {where.inside}"
    piece = stack_piece(row, where, slug="rank_stuck", role="context", line=line, attempt=attempt)
    piece = msgspec.structs.replace(piece, specificity=0, collective=where.collective, place=where.place or None)
    return [piece]


_NO_TIME: Final = "there was no time to read all {}"


class LateEvidence:
    """Evidence of one attempt that is read only for a case.

    ``here``: ranks run on this machine, so its kernel log is relevant.

    Attributes:
        kernel_note: Why the kernel log was unreadable, or None.
        left: Error files' evidence without another cause; never stored.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        catalogue: Catalogue,
        here: bool,
        guard: ReaderGuard | None = None,
    ) -> None:
        self._guard = guard or ReaderGuard()
        self._root = run_dir.path
        self._attempt = attempt
        self._catalogue = catalogue
        self._here = here
        self._kernel_done = False
        self._left = FlyteErrorFiles(run_dir.records_dir, catalogue=catalogue, attempt=attempt, guard=self._guard)
        self.kernel_note: str | None = None
        self.left: list[Evidence] = []

    @property
    def denied(self) -> bool:
        """True if a worker of this attempt left an error file: the attempt failed, even if all exit codes are 0."""
        return self._left.any

    def again(self) -> None:
        """Reads the kernel log again, because a slot was started again."""
        self._kernel_done = False

    def confirm(self, facts: Facts, folders: Mapping[int, Path], budget: Budget) -> tuple[list[Evidence], list[str]]:
        """Returns kernel lines about killed ranks (once), flight-recorder evidence, and messages about problems."""
        found: list[Evidence] = []
        killed = foreign_kills(facts) if self._here else {}
        if killed and not self._kernel_done:
            self._kernel_done = True
            read = partial(kernel_evidence, killed, self._catalogue, attempt=self._attempt)
            unread: tuple[list[Evidence], str | None] = ([], "the kernel log could not be read")
            found, self.kernel_note = self._guard.read(read, otherwise=unread, what="kernel log", where="kernel log")
        flights = [folder / "flight" for folder in folders.values()]
        dumps: list[Evidence] = []
        problems: list[str] = []
        if budget.spent:
            return found, [_NO_TIME.format("flight-recorder dumps")]
        dumps, problems = self._guard.read(
            lambda: dump_evidence(flights, relative_to=self._root, attempt=self._attempt),
            otherwise=(dumps, problems),
            what="folder of flight-recorder dumps",
            where="flight",
        )
        return [*found, *dumps], problems

    def error_files(
        self,
        facts: Facts,
        folders: Mapping[int, Path],
        budget: Budget,
        *,
        known: Collection[Evidence],
        shared: bool,
    ) -> tuple[list[Evidence], list[str]]:
        """Returns error files of ranks without a recorder, and problem messages; sets :attr:`left`.

        ``known``: other evidence, which makes error files superfluous. ``shared``: also other tools' files.
        """
        places = {number: (sheet, folders[number]) for number, sheet in facts.slots.items()}
        ranks = facts.ranks()
        found: list[Evidence] = []
        problems: list[str] = []
        if budget.spent:
            return found, [_NO_TIME.format("error files")]
        found, problems = self._guard.read(
            lambda: single_file_evidence(
                ranks, slots=places, known=known, catalogue=self._catalogue, attempt=self._attempt
            ),
            otherwise=(found, problems),
            what="error files of ranks",
            where="slots",
        )
        if shared:
            self.left = self._guard.read(
                lambda: self._left.evidence(slots=places, ranks=ranks, known=[*known, *found], budget=budget),
                otherwise=self.left,
                what="error files",
                where="errors",
            )
            problems = [*problems, *self._left.problems]
        return found, problems


class Signals:
    """Records of signals to slots' wrappers, evaluated again each time: later facts may explain them.

    ``stop`` is the time of Rankfall's own stop; None on this machine, where the wrapper knows the senders.
    """

    def __init__(self, stop: StopMark | None) -> None:
        self._stop = stop
        self._found: list[Found] = []

    def add(self, item: Found) -> None:
        """Adds one record of kind ``kill``."""
        self._found.append(item)

    def forget(self, slot: int) -> None:
        """Drops the records of a slot that restarts."""
        self._found = [item for item in self._found if item.record.slot != slot]

    def weigh(self, facts: Facts) -> tuple[list[Evidence], list[Evidence]]:
        """Returns evidence of other senders' signals, and of signals after Rankfall's stop, so Rankfall's."""
        theirs: list[Evidence] = []
        ours: list[Evidence] = []
        for item in self._found:
            record = item.record
            pid = record.exit.sender_pid if record.exit is not None else None
            sender = next((one for one in facts.ranks() if pid and (one.slot, one.pid) == (record.slot, pid)), None)
            piece = make.of_slot_signal(record, name=f"records/{item.name}", sender=sender)
            if piece is not None:
                (ours if self._after_stop(record, facts) else theirs).append(piece)
        return theirs, ours

    def _after_stop(self, record: Record, facts: Facts) -> bool:
        stop = self._stop.read() if self._stop is not None else None
        if stop is None or record.at_ns is None:
            return False
        return record.at_ns + facts.clocks.late(record.slot) >= stop.at_ns


class EvidenceSet:
    """Evidence of one attempt.

    ``unattended``: no supervisor stops slots, only Kubernetes.
    """

    def __init__(
        self,
        *,
        attempt: int,
        catalogue: Catalogue,
        stop: StopMark | None,
        guard: ReaderGuard | None = None,
        unattended: bool = False,
    ) -> None:
        self._unattended = unattended
        self._guard = guard or ReaderGuard()
        self._attempt = attempt
        self._catalogue = catalogue
        self._by_id: dict[str, Evidence] = {}
        # Their processes may be unknown.
        self._errors: list[Found] = []
        self._stacks: list[Found] = []
        self._ras: list[Found] = []
        # Each further stack may change which rank differs.
        self._by_stacks: frozenset[str] = frozenset()
        # Its input: equal input gives equal evidence.
        self._stacks_of: object = None
        self._signals = Signals(stop)

    @property
    def all(self) -> Collection[Evidence]:
        """All pieces, in the order of their first appearance."""
        return self._by_id.values()

    def ids(self) -> set[str]:
        """IDs of all current pieces."""
        return set(self._by_id)

    def of_slot(self, slot: int) -> tuple[str, ...]:
        """IDs of all evidence of a slot."""
        return tuple(sorted(key for key, piece in self._by_id.items() if piece.slot == slot))

    def importing(self) -> dict[tuple[int | None, int | None], str]:
        """Ranks whose main thread is inside an import: a digest of the stack by (slot, pid)."""
        found: dict[tuple[int | None, int | None], str] = self._guard.read(
            lambda: imports(item.record for item in self._stacks),
            otherwise={},
            what="records of stacks",
            where="records",
        )
        return found

    def keep(self, pieces: Iterable[Evidence]) -> None:
        """Stores pieces; a known identity replaces the old one."""
        for piece in pieces:
            self._by_id[piece.id] = piece

    def take(self, item: Found) -> None:
        """Adds one record; kinds without evidence are ignored."""
        kind = item.record.kind
        if kind == "error":
            self._errors.append(item)
        elif kind == "stacks":
            self._stacks.append(item)
        elif kind == "ras":
            self._ras.append(item)
        elif kind == "kill":
            self._signals.add(item)

    def forget(self, slot: int) -> None:
        """Drops all evidence of a slot that restarts."""
        self._signals.forget(slot)
        self._by_id = {key: piece for key, piece in self._by_id.items() if piece.slot != slot}
        self._errors = [item for item in self._errors if item.record.slot != slot]
        self._stacks = [item for item in self._stacks if item.record.slot != slot]
        self._ras = [item for item in self._ras if item.record.slot != slot]

    def forget_stacks(self) -> None:
        """Drops stacks and RAS reports, because their ranks have made progress since."""
        self._stacks, self._ras = [], []

    def derive(self, facts: Facts) -> None:
        """Derives again the evidence that depends on facts, under the same identities."""
        guard = self._guard
        self._of_errors(facts)
        guard.read(lambda: self._of_signals(facts), otherwise=None, what="records of signals", where="records")
        ranks = facts.ranks()
        ends = (make.of_rank_end(sheet, attempt=self._attempt, unattended=self._unattended) for sheet in ranks)
        self.keep(end for end in ends if end is not None)
        self.keep(oom_evidence(facts, self._by_id.values(), attempt=self._attempt))
        self._of_stacks(ranks)

    def _of_signals(self, facts: Facts) -> None:
        theirs, ours = self._signals.weigh(facts)
        self.keep(theirs)
        for piece in ours:
            self._by_id.pop(piece.id, None)

    def _of_stacks(self, ranks: tuple[RankFacts, ...]) -> None:
        held = [*self._stacks, *self._ras]
        made_of = ([item.record.id for item in held], [(r.slot, r.pid, r.rank, r.node) for r in ranks] if held else ())
        if made_of == self._stacks_of:
            return
        self._stacks_of = made_of
        readers = ((self._stacks, stack_evidence, "stacks"), (self._ras, ras_evidence, "RAS reports"))
        evidence: list[Evidence] = []
        for found, reader, what in readers:
            named = [(item.name, item.record) for item in found]
            evidence += self._guard.read(
                partial(reader, named, ranks=ranks, attempt=self._attempt),
                otherwise=[],
                what=f"records of {what}",
                where="records",
                data=partial(_newest_text, found),
            )
        if not evidence:
            evidence = self._guard.read(
                lambda: _stack_of_one_rank(self._stacks, ranks, attempt=self._attempt),
                otherwise=[],
                what="records of stacks",
                where="records",
                data=partial(_newest_text, self._stacks),
            )
        for key in self._by_stacks:
            self._by_id.pop(key, None)
        self._by_stacks = frozenset(piece.id for piece in evidence)
        self.keep(evidence)

    def _of_errors(self, facts: Facts) -> None:
        waiting: list[Found] = []
        for item in self._errors:
            if not facts.explains_exit(item.record):
                waiting.append(item)
                continue
            self.keep(
                self._guard.read(
                    partial(self._of_error, item, facts),
                    otherwise=[],
                    what="record",
                    where=f"records/{item.name}",
                    data=partial(msgspec.json.encode, item.record),
                )
            )
        self._errors = waiting

    def _of_error(self, item: Found, facts: Facts) -> list[Evidence]:
        record = item.record
        rank = facts.rank_of(record.slot, record.pid)
        if rank is None:
            rank = record.rank
        piece = make.of_error(record, name=f"records/{item.name}", catalogue=self._catalogue, rank=rank)
        start = facts.start_of(record.slot, record.pid)
        return [msgspec.structs.replace(piece, round=start.round if start else record.round)]
