"""Findings of one file: rank and attempt by its path, evidence by its lines.

All files share one memory limit; then each stores only its newest finding, shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence import builders as make
from rankfall.evidence.files.bounded_read import Part, Room
from rankfall.evidence.files.folder_listing import printable
from rankfall.evidence.files.json_records import places_in_objects
from rankfall.evidence.files.unwrap import Unwrapper
from rankfall.evidence.readers import text as texts
from rankfall.evidence.readers.findings import Bar, Finding, bars_of
from rankfall.evidence.readers.prefixes import Prefix
from rankfall.evidence.readers.scan import ChunkScanner
from rankfall.evidence.readers.stacks import NewestDump
from rankfall.evidence.readers.stream_reader import When
from rankfall.evidence.readers.survival import KEPT, Survival, speaker_of
from rankfall.evidence.readers.torchrun import Reported
from rankfall.model import Evidence, RankfallError, numbers
from rankfall.model.evidence import digest
from rankfall.model.patterns import anchored, bounded, linear
from rankfall.model.timestamps import printed_second
from rankfall.rundir.reader_guard import ReaderGuard
from rankfall.verdict.diagnose.cause_tables import SEEN_FROM_OUTSIDE, waited
from rankfall.verdict.diagnose.survived_lines import KILLS, sorted_out
from rankfall.verdict.signatures.catalogue import Catalogue

# Prefixed ranks and launcher reports in one file: more than any job has.
MAX_RANKS: Final = 1 << 15
# Failures in one file until reading stops.
_MAX_FAILURES: Final = 8
# Bytes of a line at the memory limit.
_SHORT: Final = 200
_ELASTIC: Final = bounded(r"attempt_(\d{1,4})/(\d{1,4})/[^/]+$", limit=4_096)
_MAX_NAME: Final = 256
# srun's list of several nodes has brackets or commas; without a list it prints the word.
_ONE_HOST: Final = bounded(r"[\w.-]+", limit=_MAX_NAME)
_NO_HOST: Final = "Unknown"
# srun's tasks are numbered in each component of a heterogeneous step.
_TASKS: Final = bounded(r"srun: error: \S{1,512}: tasks? \d", limit=_MAX_NAME * 4)
_COMPONENT: Final = linear(rb"\b(?:StepId=|STEP )\d{1,10}\.\w{1,16}\+\d")
# Workers are ranks only without other roles, and without a launcher that starts several ranks in each.
_WORKER: Final = bounded(r"(?:^|[-_.])(?:worker|trainer|learner|proc|rank)[-_](\d{1,6})$", limit=_MAX_NAME)
_SEVERAL: Final = tuple(b"master- chief- launcher- -ps- elastic torchrun ocal_rank OCAL_RANK nproc".split())
_BARS: Final = 16
_NS: Final = 1_000_000_000
# Last bytes of a text in which an error is searched.
_TAIL: Final = 64 << 10
_FIRST_WORKERS: Final = (b"worker-0", b"trainer-0", b"learner-0", b"proc-0", b"rank-0", b"worker_0", b"rank_0")
# Statements of the number of ranks (WORLD_SIZE in the environment may count pods); of one rank's peers, one less.
_WORLD: Final = linear(
    rb"""(?:^|[^A-Za-z_\d.-])(?:(?:dist_|global_)?world_?sizes?["']?(?: ?[=:] ?\[?| )|using world size: |MEMBER: \d+/|registered\. Starting with )(\d{1,6})\b"""
)
# Processes in Ray's tables and torch_npu's errors; the latter's lines behind the message of an exception.
_PID_RANKS: Final = linear(
    rb"(?:\bpid=(\d{1,9})(?:, ip=[\d.]+)?\)[^\n(]{0,90}?[\s,{\[](?:world_)?rank=|\(PID:(\d{1,9}), Device:\d{1,4}, RankID:)(\d{1,6})\b"
)
_OWN_PID: Final = anchored(rb"(?:[^\n]{0,512}\n){0,2}[^\n]{0,160}?\(PID:(\d{1,9}), Device:", limit=2048)
_PEERS: Final = linear(rb"Expected number of connected peer ranks is : (\d{1,6})")
# Statements that a job has several nodes.
_NODES: Final = linear(
    rb"(?i)\b(?:nnodes|num_nodes|num_machines|node_count|n_nodes|slurm_nnodes|slurm_job_num_nodes|pet_nnodes)[\"']?[ =:]{1,3}[\"']?(?:[2-9]|[1-9]\d|\d+:)"
    rb"|\b(?:node_rank|machine_rank|group_rank|pet_node_rank|slurm_nodeid)[\"']?[ =:]{1,3}[\"']?[1-9]|--?hostfile[ =]|\[pod/|\[rank(?:[89]|\d\d{1,5})\]|(?:worker|node|replica)-[1-9]\d{0,3}\b|gpus? on \d+ nodes"
)
# All but statements of nodes at once: most parts of a text have none.
_STATEMENTS: Final = linear(
    b"|".join(
        (*_SEVERAL, *_FIRST_WORKERS, *(b"(?:%s)" % one.pattern for one in (_COMPONENT, _WORLD, _PEERS, _PID_RANKS)))
    )
)
# Bytes of a text that are searched for them.
_SEARCHED: Final = 4 << 20
_RANK_FILE: Final = bounded(r"(?i)(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?:[^0-9]|$)", limit=256)


class Source(msgspec.Struct, kw_only=True):
    """One file and its findings.

    Attributes:
        group: Key of one process's files.
        found, last: First evidence of each kind, and the last.
        reported: Last report of each rank or process.
        prefixed: Ranks in prefixes of findings.
        printed: First byte of a rank's first line at the beginning of the text.
        ends: Prefix and line end of each failure, by ID.
        stacks: Stacks at the end.
        places: Node and pod in a finding's prefix, by ID.
        workers: Number in the name of a finding's worker, by ID.
        from_zero: The text names a worker 0.
        several: The text names other roles, or launchers of several ranks.
        nodes: The text names several nodes.
        world: Largest stated number of ranks, or 0; ``single``: Lightning states that it is 1.
        tasks: srun's tasks that failed.
        het: A component of a heterogeneous step is named.
        cut_off: Prefix of the traceback that the text does not finish.
        bars: Newest progress bars of preparing data.
        details: Line that a finding's line announces, by ID.
        pids: Process of a finding, by ID.
        pid_ranks: Rank of each process by tables; None if they differ.
        logged: Findings, by ID, in records of a logger, whose lines are in order.
    """

    name: str
    group: str
    attempt: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    found: list[Evidence] = msgspec.field(default_factory=list)
    last: dict[object, Evidence] = msgspec.field(default_factory=dict)
    reported: dict[object, tuple[Reported, str]] = msgspec.field(default_factory=dict)
    prefixed: set[int] = msgspec.field(default_factory=set)
    printed: dict[int, int] = msgspec.field(default_factory=dict)
    ends: dict[str, tuple[Prefix, int]] = msgspec.field(default_factory=dict)
    survival: Survival = msgspec.field(default_factory=lambda: Survival(kept=KEPT))
    stacks: str | None = None
    places: dict[str, tuple[str | None, str | None]] = msgspec.field(default_factory=dict)
    workers: dict[str, int] = msgspec.field(default_factory=dict)
    from_zero: bool = False
    several: bool = False
    nodes: bool = False
    world: int = 0
    single: bool = False
    tasks: set[int] = msgspec.field(default_factory=set)
    het: bool = False
    cut_off: Prefix | None = None
    bars: list[Bar] = msgspec.field(default_factory=list)
    details: dict[str, str] = msgspec.field(default_factory=dict)
    pids: dict[str, int] = msgspec.field(default_factory=dict)
    pid_ranks: dict[int, int | None] = msgspec.field(default_factory=dict)
    logged: set[str] = msgspec.field(default_factory=set)

    def rank_of_worker(self, piece: Evidence) -> int | None:
        """Rank of the process that printed a finding, or of the worker where each is one rank; else None."""
        known = self.pid_ranks.get(self.pids.get(piece.id, piece.pid or -1))
        if known is not None:
            return known
        if self.single and self.world == 1 and not (self.prefixed or self.reported or self.tasks):
            return 0
        if self.several or not self.from_zero or self.prefixed or self.reported:
            return None
        return self.workers.get(piece.id)

    @property
    def ranks(self) -> int:
        """Number of ranks by the text, or 0."""
        counted = not self.het and self.tasks == set(range(len(self.tasks)))
        return max(self.world, len(self.tasks) if counted else 0)

    def learn(self, data: bytes) -> None:
        """Reads statements about the job's ranks in a part of the text."""
        self.nodes = self.nodes or _NODES.search(data) is not None
        if _STATEMENTS.search(data) is None:
            return
        self.several |= any(word in data for word in _SEVERAL)
        self.single |= b"MEMBER: 1/1\n" in data
        self.het |= _COMPONENT.search(data) is not None
        self.from_zero |= any(word in data for word in _FIRST_WORKERS)
        stated = [numbers.matched(one[1]) for one in _WORLD.finditer(data)]
        stated += [numbers.matched(one[1]) + 1 for one in _PEERS.finditer(data)]
        self.world = max(self.world, *stated, 0)
        for one in islice(_PID_RANKS.finditer(data), MAX_RANKS):
            self.learn_pid(numbers.matched(one[1] or one[2]), numbers.matched(one[3]))

    def learn_pid(self, pid: int, rank: int) -> None:
        """Adds the rank of a process; processes of two nodes may have one number."""
        if len(self.pid_ranks) < MAX_RANKS:
            self.pid_ranks[pid] = rank if self.pid_ranks.get(pid, rank) == rank else None

    def weighed(self, *, alone: bool) -> Iterator[Evidence]:
        """Yields the file's evidence; a finding whose speaker continued is context.

        ``alone``: the whole file is from one process.
        """
        pieces = [*self.outlasted(alone=alone)]
        waits = [e.line for e in pieces if waited(e)]
        if bar := next((one for one in reversed(self.bars) if any(one.covers(line) for line in waits)), None):
            yield make.of_bar(bar.line, stream=self.group, byte=bar.byte, where=f"{self.name}:byte {bar.byte}")
        explained = {
            self.pids.get(e.id) for e in pieces if e.role != "context" and e.signature not in SEEN_FROM_OUTSIDE
        }
        for piece in pieces:
            # The process itself printed why it ended; of an unknown process it was the time-out, which comes minutes after any death.
            known = piece.pid in explained if piece.pid is not None else bool(waits)
            repeats = piece.signature in SEEN_FROM_OUTSIDE and known
            yield msgspec.structs.replace(piece, role="context") if repeats else piece

    def outlasted(self, *, alone: bool) -> Iterator[Evidence]:
        """Yields the file's evidence with its ranks; a finding whose speaker continued is context."""
        agents = any(one.rank is not None and one.local_rank is not None for one, _ in self.reported.values())
        # Where one rank alone speaks, a line without a rank belongs to its unfinished traceback.
        speaker = self.cut_off if self.cut_off and self.prefixed <= {self.cut_off.rank} and not self.reported else None
        stopped = max((e.order or 0 for e in (*self.found, *self.last.values()) if e.slug in KILLS), default=0)
        for piece in (*self.found, *self.last.values()):
            if (self.het or agents) and _TASKS.search(piece.line):
                # Where torchrun reports ranks, srun's tasks are its agents, which end with 1 after any failure.
                role = "context" if agents and piece.exit_code == 1 else piece.role
                piece = msgspec.structs.replace(piece, rank=None, role=role)  # noqa: PLW2901 - the same piece without a rank
            elif (
                speaker is not None
                and piece.role == "primary"
                and {piece.rank, piece.local_rank} <= {None, speaker.rank}
            ):
                piece = msgspec.structs.replace(piece, rank=speaker.rank, local_rank=speaker.local_rank)  # noqa: PLW2901 - as above
            if (detail := self.details.get(piece.id)) is not None:
                piece = msgspec.structs.replace(piece, line=f"{piece.line}\n{detail}")  # noqa: PLW2901 - as above
            place, logged = self.ends.get(piece.id), piece.id in self.logged
            finisher = self.survival.finisher(place[1]) if place is not None and logged else None
            if place is not None and self.survival.succeeded_at > place[1]:
                yield msgspec.structs.replace(piece, role="context")
            elif place is not None and finisher is not None:
                yield msgspec.structs.replace(piece, role="context", outlived=finisher != speaker_of(place[0]))
            elif place is not None and self.survival.outlived(piece, *place, alone=alone, ordered=logged, stop=stopped):
                completed = self.survival.completed(place[1])
                yield msgspec.structs.replace(piece, role="context", outlived=True, passed=completed)
            elif place is not None and piece.slug != "preempted" and self.survival.passed(*place, alone=alone):
                yield msgspec.structs.replace(piece, passed=True)
            else:
                yield piece


def source_of(file: Path) -> Source:
    """Returns a source with the rank and attempt that the file's path gives."""
    name = printable(file)
    elastic = _ELASTIC.search(name)
    if elastic:
        return Source(
            name=name,
            group=printable(file.parent),
            attempt=numbers.matched(elastic[1]),
            local_rank=numbers.matched(elastic[2]),
        )
    rank = _RANK_FILE.search(printable(Path(file.name)))
    return Source(name=name, group=name, rank=numbers.matched(rank[1]) if rank else None)


class TextReader:
    """Reads one text into its source; skips bytes on which a reader failed."""

    def __init__(self, source: Source, catalogue: Catalogue, guard: ReaderGuard, room: Room) -> None:
        self._source = source
        self._catalogue = catalogue
        self._guard = guard
        self._room = room
        self._dump: NewestDump | None = NewestDump()
        self._failures = 0
        self._base = self._next = 0
        self._lines = True
        self._scanner = ChunkScanner(catalogue, survival=source.survival, of_a_job=True)
        self._flooded: str | None = None
        self._searched = 0
        self._tail = b""
        # Bytes that the scanner got; findings, by ID, whose detail may follow, with the end of their lines.
        self._given = 0
        self._heads: dict[str, tuple[Finding, int]] = {}
        self._unwrapper = Unwrapper()

    @property
    def flooded(self) -> str | None:
        """Message about lines that were skipped because there were too many; None = none."""
        return self._scanner.flooded or self._flooded

    def read(self, parts: Iterable[Part]) -> None:
        """Reads all parts; an unfinished line counts as it is.

        Raises:
            OSError: Unreadable; earlier parts count.
        """
        try:
            for start, data in parts:
                if start != self._next:
                    self._end()
                    self._begin(start)
                self._next = start + len(data)
                self._push(self._unwrapper.push(data))
                if self._failures > _MAX_FAILURES:
                    break
        finally:
            self._end()
            (source := self._source).cut_off = self._scanner.cut_off
            self._keep_last_error()
            pieces, first = [*source.found, *source.last.values()], self._base + self._given - len(self._tail)
            source.places = places_in_objects(self._tail, first=first, pieces=pieces) | source.places
            if self._dump is not None:
                source.stacks = self._guard.read(self._dump.text, otherwise=None, what="stack", where=source.name)

    def _end(self) -> None:
        self._push(self._unwrapper.push(b"", final=True))
        self._push(b"", final=True)

    def _begin(self, at: int) -> None:
        """Continues with a new scanner at a byte of the file; the number of its line is unknown."""
        self._flooded = self.flooded
        self._scanner = ChunkScanner(self._catalogue, survival=self._source.survival, of_a_job=True)
        self._source.survival.begin(at)
        self._base = self._next = at
        self._given, self._lines = 0, False
        self._heads.clear()

    def _push(self, data: bytes, *, final: bool = False) -> None:
        if self._dump is not None and data:
            try:
                self._dump.push(data)
            except Exception as error:  # noqa: BLE001 - text of jobs: one reader costs no other one
                self._guard.failed(error, what="stack", where=self._source.name)
                self._dump = None
        before, self._tail = self._tail, (self._tail + data)[-_TAIL:] if len(data) < _TAIL else data[-_TAIL:]
        if not self._base + self._given:
            self._source.printed = texts.first_lines_of_ranks(data)
            self._source.survival.ranks_begin = texts.ranks_begin(data, self._source.printed)
        if self._searched < _SEARCHED:
            self._searched += len(data)
            self._source.learn(data)
            self._source.bars = [*self._source.bars, *bars_of(data, at=self._base + self._given)][-_BARS:]
        try:
            findings, statements = self._scanner.push(data, final=final)
            for finding, byte, line in findings:
                self._keep(finding, byte=self._base + byte, line=line)
            for reported, byte, line in statements:
                self._report(reported, self._where(self._base + byte, self._unwrapper.number(line)))
            self._read_details(before, data, final=final)
        except RankfallError:
            raise
        except Exception as error:  # noqa: BLE001
            self._failures += 1
            first = self._base + self._scanner.consumed
            where = f"{self._source.name}, bytes {first} to {self._next}"
            self._guard.failed(error, what="part of a log", where=where, data=data)
            self._begin(self._next)

    def _read_details(self, before: bytes, data: bytes, *, final: bool) -> None:
        """Stores the lines that findings announce, as soon as enough text follows them."""
        start = self._given - len(before)
        self._given += len(data)
        text = before + data if self._heads else b""
        for id_, (finding, end) in list(self._heads.items()):
            behind = text[(cut := max(0, end - start)) : cut + texts.MAX_BEHIND].removeprefix(b"\n")
            if final or len(behind) >= texts.MAX_BEHIND - 1:
                del self._heads[id_]
                if (detail := texts.detail_behind(finding.line.encode(), behind, above=text[:cut])) is not None:
                    self._source.details[id_] = texts.decode(detail)
                if (own := _OWN_PID.match(behind)) is not None:
                    self._source.pids[id_] = numbers.matched(own[1])

    def _keep_last_error(self) -> None:
        """Stores the last line that resembles an error, for a verdict without a cause."""
        pieces = [*self._source.outlasted(alone=False)]
        ends, findings, explained = sorted_out(pieces)
        if explained:
            return
        first = self._base + self._given - len(self._tail)
        cut = max(self._tail.find(b"\n") + 1 if first > 0 else 0, Survival().steady_work(self._tail))
        known = {piece.order - first for piece in pieces if piece.order is not None}
        lines = texts.candidate_lines(self._tail, since=cut)
        others = (each for each in lines if not any(each[0] <= at <= each[0] + len(each[1]) for at in known))
        place = make.TextPlace(self._source.group, first, self._where_in_tail)
        if findings:
            piece = make.of_reason(others, findings, place=place, catalogue=self._catalogue)
            self._source.found += [] if piece is None else [self._of_one_rank(piece)]
            return
        found = texts.best_error_line(self._tail, since=cut, known=known, ended=bool(ends))
        found = None if self._source.survival.succeeded_at and found and found[2] != "error" else found
        traced = any(piece.whole and piece.role != "context" for piece in pieces)
        if found is None or (found[2] != "error" and ends) or (traced and not texts.states_reason(found[1])):
            if traced or not ends:
                return  # A launcher's exception is better.
            found = None
        piece = make.of_last_error(found, others, place=place, catalogue=self._catalogue)
        if piece is None:
            return  # A launcher's report of an end is better.
        if piece.rank is not None and texts.ranks_with_errors(self._tail, since=cut) - {piece.rank}:
            piece = msgspec.structs.replace(piece, rank=None)
        piece = self._of_one_rank(piece)
        behind = self._tail[(piece.order or 0) - first :]
        line, _, behind = behind.partition(b"\n")
        if (detail := texts.detail_behind(line, behind)) is not None:
            self._source.details[piece.id] = texts.decode(detail)
        self._source.found.append(piece)

    def _of_one_rank(self, piece: Evidence) -> Evidence:
        """The piece without its rank, if other ranks printed the same line."""
        ranks = texts.ranks_that_print(self._tail, piece.line.encode()) if piece.rank is not None else set()
        return msgspec.structs.replace(piece, rank=None, local_rank=None) if ranks - {piece.rank} else piece

    def _where_in_tail(self, begin: int) -> str:
        line = self._unwrapper.number(self._scanner.lines - self._tail.count(b"\n", begin) + 1)
        return self._where(self._next - len(self._tail) + begin, line)

    def _where(self, byte: int, line: int) -> str:
        return f"{self._source.name}:{line}" if self._lines else f"{self._source.name}:byte {byte}"

    def _keep(self, finding: Finding, *, byte: int, line: int) -> None:
        source, prefix = self._source, finding.prefix
        if prefix.rank is not None and len(source.prefixed) < MAX_RANKS:
            source.prefixed.add(prefix.rank)
        hosts = prefix.hosts or finding.groups.get("node")
        node = hosts if hosts and _ONE_HOST.fullmatch(hosts) and hosts != _NO_HOST else None
        printed = printed_second(prefix.stamp)
        piece = make.of_finding(
            finding,
            stream=source.group,
            byte=byte,
            where=self._where(byte, self._unwrapper.number(line)),
            when=None if printed is None else When(printed[0] * _NS, (printed[0] + 1) * _NS),
            rank=next(iter(prefix.tasks), None),
            slot=prefix.slot,
            node=node,
            attempt=source.attempt,
        )
        if printed is not None and not printed[1]:
            piece = msgspec.structs.replace(piece, stamped="text")
        if hosts and node is None and hosts != _NO_HOST:
            piece = msgspec.structs.replace(piece, peer_hosts=(hosts,))
        if prefix.host or prefix.pod:
            source.places[piece.id] = prefix.host, prefix.pod
        worker = _WORKER.search(prefix.name[-_MAX_NAME:]) if prefix.name else None
        if worker is not None and (number := numbers.matched(worker[1])) is not None:
            source.workers[piece.id] = number
        if (pid := prefix.pid if piece.pid is None else piece.pid) is not None:
            source.pids[piece.id] = pid
        if finding.kind not in source.last and not self._room.take(piece.line):
            source.last[None] = msgspec.structs.replace(
                piece, id=digest("newest", source.name), line=piece.line[:_SHORT]
            )
            return
        if finding.last:
            if (before := source.last.get(finding.kind)) is not None:
                source.ends.pop(before.id, None)
            source.last[finding.kind] = piece
        else:
            source.found.append(piece)
        if prefix.hosts is not None and len(source.tasks) < MAX_RANKS:
            source.tasks.update(prefix.tasks or (() if prefix.rank is None else (prefix.rank,)))
        for task in prefix.tasks[1:]:
            other = msgspec.structs.replace(piece, id=digest(piece.id, task), rank=task)
            if not self._room.take(other.line):
                break
            source.found.append(other)
        if finding.fails:
            end = byte + finding.end - finding.start
            source.ends[piece.id] = prefix, end
            if self._unwrapper.is_added(line):
                source.logged.add(piece.id)
            self._heads[piece.id] = finding, end - self._base

    def _report(self, reported: Reported, where: str) -> None:
        about = (reported.kind, reported.pid if reported.rank is None else reported.rank)
        known = self._source.reported.pop(about, None)
        if known is not None or len(self._source.reported) < MAX_RANKS:
            self._source.reported[about] = reported, where
        if reported.kind == "exit" and reported.rank is not None and reported.pid is not None:
            self._source.learn_pid(reported.pid, reported.rank)
