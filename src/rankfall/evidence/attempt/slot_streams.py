"""Finds and reads all streams of an attempt, and assigns each to its rank or slot."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence import builders as make
from rankfall.evidence.attempt.record_sources import Starts
from rankfall.evidence.facts import Facts
from rankfall.evidence.readers.prefixes import Prefix
from rankfall.evidence.readers.stream_reader import Placed, StreamTail, When
from rankfall.model import Evidence, RankFacts, numbers
from rankfall.model.evidence import digest
from rankfall.model.patterns import bounded
from rankfall.rundir import NO_RANK, RunDir, StreamRow
from rankfall.rundir.cluster.marks import NAME as TOLD
from rankfall.rundir.cluster.marks import RankMap, read_rank_map
from rankfall.rundir.layout import WRAPPER_LOG
from rankfall.rundir.reader_guard import AFTERWARDS, END_S, LIVE, POLL_BYTES, POLL_S, TAILS_S, Budget, ReaderGuard
from rankfall.rundir.streams.content import PACKED_SUFFIX
from rankfall.rundir.streams.files import Standing
from rankfall.verdict.diagnose.cause_tables import TERMINAL_WINDOW_S
from rankfall.verdict.signatures.catalogue import Catalogue

# Maximum findings of one stream that are evaluated again.
_MAX_OPEN: Final = 256
# Two streams of one process have no line order within this time.
_FLUSH_NS: Final = 200_000_000
# srun's words for the end of the wrapper, whose own record is exact; only of a kill for memory it may know more.
_OF_WRAPPER: Final = bounded(r"\bsrun: error: \S{1,253}: task 0: (?!Out Of Memory)", limit=400)
# Times of work in its other stream after which a process had survived a whole traceback.
_LATER: Final = 3
_NS: Final = 1_000_000_000


class StreamDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one poll of all streams.

    Attributes:
        output_at: Arrival of the newest byte; 0 = none.
        behind: True if some bytes remained unread for lack of time.
        printed_step: Newest step in the lines of all streams; None without one.
    """

    evidence: tuple[Evidence, ...]
    bytes: int
    new_streams: int
    output_at: int
    behind: bool = False
    printed_step: int | None = None


_NO_PROOF: Final = RankMap()
_NOTHING: Final[tuple[list[Evidence], int, int]] = ([], 0, 0)


class _Stream:
    def __init__(self, tail: StreamTail, *, slot: int, name: str) -> None:
        path = tail.path
        self.tail = tail
        self.slot = slot
        self.name = name
        self.local = path.name.partition(".")[0]
        self.ordinal = numbers.whole(self.local)
        # Streams split by the wrapper's prefix are named after their rank.
        digits = self.local.removeprefix("r")
        self.rank = numbers.whole(digits) if digits != self.local else None
        self.of_step = path.name == WRAPPER_LOG
        # Findings possibly survived, with prefix and line end.
        self.open: dict[str, tuple[Evidence, Prefix, int]] = {}
        self.finished = False
        # True if it explains the end of its rank, or was searched for an explanation.
        self.explained = False

    @property
    def of_one_process(self) -> bool:
        return self.ordinal is not None or self.rank is not None


class SlotStreams:
    """Streams of all slots of one attempt.

    Slots ``outside`` have no ranks. ``step_output``: srun started the wrappers, so what it prints beside them is read too,
    but belongs to no rank and is no line of the job. Polls read in rotation, so no stream waits for another's end.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        role_of: Callable[[int], str],
        outside: Collection[int],
        catalogue: Catalogue,
        starts: Starts,
        guard: ReaderGuard | None = None,
        step_output: bool = False,
    ) -> None:
        self._guard = guard or ReaderGuard()
        self._step_output = step_output
        # Slots whose step's output is being read.
        self._steps: set[int] = set()
        self._turns: deque[_Stream] = deque()
        self._allowance = LIVE
        self._last: tuple[Budget, Budget] | None = None
        # CPU seconds beyond ordinary text of all streams.
        self._beyond = 0.0
        self._run_dir = run_dir
        self._attempt = attempt
        self._role_of = role_of
        self._outside = outside
        self._catalogue = catalogue
        self._starts = starts
        self._rank_maps = _RankMaps(foreign=run_dir.foreign is not None)
        self._streams: dict[Path, _Stream] = {}
        self._known: set[str] = set()
        self._folders: dict[int, str] = {}
        self._instances: dict[str, Path] = {}
        self._standing = Standing()
        self._listed: dict[str, list[str]] = {}

    def poll(self, facts: Facts, now: int, budget: Budget | None = None) -> StreamDelta:
        """Reads every stream's new data; launcher reports go into ``facts``."""
        before = len(self._streams)
        self._guard.read(lambda: self._discover(facts), otherwise=None, what="folder of streams", where="logs")
        budget = budget or Budget(POLL_S, POLL_BYTES)
        owners = _Owners(facts)
        found: list[Evidence] = []
        fresh = output_at = 0
        again: deque[_Stream] = deque()
        # One piece a round; a stream that got none is first at the next poll.
        waiting, self._turns = self._turns, deque()
        while waiting and not budget.spent:
            stream = waiting.popleft()
            read = partial(self._read, stream, facts, owners, now)
            pieces, count, at = self._guard.read(read, otherwise=_NOTHING, what="stream", where=stream.name)
            budget.take(count)
            found += pieces
            fresh += count
            output_at = max(output_at, at)
            if not stream.finished:
                (waiting if stream.tail.behind and count else again).append(stream)
        self._turns = waiting + again
        found += self._survived(owners)
        found += self._last_words(facts)
        printed = (one.tail.printed_step for one in self._streams.values())
        return StreamDelta(
            evidence=tuple(found),
            bytes=fresh,
            new_streams=len(self._streams) - before,
            output_at=output_at,
            behind=bool(waiting),
            printed_step=max((step for step in printed if step is not None), default=None),
        )

    def take_time(self) -> None:
        """Gives streams found from now on the long reading time of an explanation instead of a live poll's."""
        self._allowance = AFTERWARDS

    def shorten_grace(self) -> None:
        """Bounds the time of all further reading, because no stream grows; the last bytes are always classified."""
        unread = sum(stream.tail.unread for stream in self._streams.values() if not stream.finished)
        # CPU time: ordinary text is read completely on a shared machine, too.
        tails = Budget(END_S + unread / LIVE.rate + TAILS_S, clock=time.thread_time)
        self._last = Budget(END_S, clock=lambda: self._beyond), tails

    def _read(self, stream: _Stream, facts: Facts, owners: _Owners, now: int) -> tuple[list[Evidence], int, int]:
        """Evidence of a stream's next bytes, their number, and the newest arrival time (0 if none)."""
        place = facts.slots.get(stream.slot)
        final = place is not None and place.state in {"ended", "lost"}
        whole, tails = self._last if self._last is not None else (None, None)
        if tails is not None and tails.spent:
            stream.tail.give_up()
            stream.finished = True
            return [], 0, 0
        used, piece = stream.tail.time.used, stream.tail.time.piece
        placed, reports, count = stream.tail.poll(final=final, limit=piece, hurried=whole is not None and whole.spent)
        self._beyond += stream.tail.time.used - used
        stream.finished = final and not stream.tail.behind
        output_at = 0
        if count:
            # A clock ahead must not make a silent job appear active.
            at = facts.clocks.ours(stream.slot, stream.tail.last_at) if stream.tail.last_at else now
            output_at = min(at, now)
            ordinal = owners.ordinal(stream)
            if ordinal is not None and stream.tail.last_at:
                worked = max(stream.tail.worked_at, default=None)
                facts.add_line_time(slot=stream.slot, ordinal=ordinal, at=stream.tail.last_at, worked_at=worked)
            if ordinal is not None:
                done = stream.tail.survival.finished
                facts.set_finished(slot=stream.slot, ordinal=ordinal, by=stream.name, done=done)
        owner = owners.of(stream)
        node = place.node if place else None
        found = [self._evidence(stream, item, owner=owner, node=node) for item in placed]
        if stream.of_step:
            return [piece for piece in found if not _OF_WRAPPER.search(piece.line)], 0, 0
        for report in () if stream.slot in self._outside else reports:
            facts.add_report(report.reported, slot=stream.slot, where=f"{stream.name}:{report.line}")
        return found, count, output_at

    def forget(self, slot: int) -> None:
        """Drops all data of a slot that restarts."""
        self._streams = {path: stream for path, stream in self._streams.items() if stream.slot != slot}
        self._known = {str(path) for path in self._streams}
        self._steps.discard(slot)
        self._turns = deque(stream for stream in self._turns if stream.slot != slot)
        # Streams of its next start may exist.
        self._standing = Standing()

    @property
    def problems(self) -> list[str]:
        """Messages about unreadable streams and skipped lines."""
        tails = [(stream.name, stream.tail) for stream in self._streams.values()]
        return [f"{name}: {problem}" for name, tail in tails for problem in (tail.problem, tail.flooded) if problem]

    def rows(self, facts: Facts) -> tuple[StreamRow, ...]:
        """Returns rows that assign every byte of every stream to a rank; None if the rank is unknown."""
        owners = _Owners(facts)
        streams = (stream for stream in self._streams.values() if not stream.of_step)
        return tuple(self._row(stream, owners.of(stream)) for stream in streams)

    def _row(self, stream: _Stream, owner: RankFacts | None) -> StreamRow:
        instance = stream.tail.path.parent.name
        held = self._rank_maps.of(stream)
        rank = held.ranks.get(stream.ordinal) if stream.ordinal is not None else None
        if rank is not None:
            owner = None
        return StreamRow(
            stream=stream.name,
            attempt=self._attempt,
            round=owner.round if owner else None,
            role=self._role_of(stream.slot),
            slot=stream.slot,
            instance=numbers.whole(instance) or 0,
            local=stream.local,
            rank=rank.rank if rank else owner.rank if owner else stream.rank,
            from_byte=rank.since if rank else 0,
            to_byte=rank.until if rank else None,
            proof=rank.proof
            if rank
            else f"start record of pid {owner.pid}"
            if owner
            else "prefix"
            if stream.rank is not None
            else NO_RANK
            if stream.ordinal is not None and held.of_no_rank(stream.ordinal)
            else "",
        )

    def _evidence(self, stream: _Stream, item: Placed, *, owner: RankFacts | None, node: str | None) -> Evidence:
        """Returns a finding's evidence; the last of a kind replaces the one before."""
        held = self._rank_maps.of(stream)
        rank = held.ranks.get(stream.ordinal) if stream.ordinal is not None else None
        known = rank is not None and rank.since <= item.byte and (rank.until is None or item.byte < rank.until)
        piece = make.of_finding(
            item.finding,
            stream=stream.name,
            byte=item.byte,
            where=f"{stream.name}:{item.line}",
            when=item.when,
            rank=rank.rank if rank is not None and known else owner.rank if owner else stream.rank,
            slot=stream.slot,
            node=node,
            attempt=self._attempt,
            round_number=owner.round if owner else None,
        )
        if self._rank_maps.foreign and (stream.ordinal is None or not held.roles):
            # Text that resembles torchrun's prefix may come from any rank.
            named = item.finding.prefix.local_rank
            piece = msgspec.structs.replace(piece, local_rank=None) if named is not None else piece
        if stream.slot in self._outside or stream.of_step:
            # Rank numbers in such a slot are not the job's; srun counts the tasks of its step.
            piece = msgspec.structs.replace(piece, rank=None, local_rank=None)
        if item.finding.last:
            piece = msgspec.structs.replace(piece, id=digest("last", stream.name, *item.finding.kind))
        stream.explained = stream.explained or piece.role != "context"
        if item.finding.fails:
            stream.open.pop(piece.id, None)
            stream.open[piece.id] = (piece, item.finding.prefix, item.byte + item.finding.end - item.finding.start)
            if len(stream.open) > _MAX_OPEN:
                del stream.open[next(iter(stream.open))]
        return piece

    def _survived(self, owners: _Owners) -> Iterator[Evidence]:
        """Yields earlier findings that are context now, because their process continued its work."""
        waiting = [stream for stream in self._streams.values() if stream.open]
        if not waiting:
            return
        beside: dict[tuple[int, str], list[_Stream]] = {}
        for stream in self._streams.values():
            beside.setdefault((stream.slot, stream.local), []).append(stream)
        for stream in waiting:
            one = stream.of_one_process and stream.slot not in self._outside and not self._rank_maps.foreign
            others = [other for other in beside[stream.slot, stream.local] if other is not stream] if one else []
            owner = owners.of(stream)
            # Buffered output is written at the end, but not by a killed process.
            ended = None if owner is None or owner.signal == signal.SIGKILL else owner.ended_at
            until = None if ended is None else ended - _FLUSH_NS
            worked = [at for other in others for at in other.tail.worked_at if until is None or at <= until]
            ordered = one and owner is not None and owner.hook == "loaded"
            survival = stream.tail.survival
            for key, (piece, prefix, end) in list(stream.open.items()):
                latest = None if piece.at is None else piece.at + round((piece.uncertainty or 0.0) * _NS)
                times = () if latest is None else [at for at in worked if at > latest + _FLUSH_NS]
                later = len(times) >= (_LATER if piece.whole else 1) and (ordered or not piece.whole)
                if later or survival.outlived(piece, prefix, end, alone=one, ordered=ordered):
                    del stream.open[key]
                    yield msgspec.structs.replace(piece, role="context", outlived=True)
                elif not piece.passed and survival.passed(prefix, end, alone=one):
                    passed = msgspec.structs.replace(piece, passed=True)
                    stream.open[key] = (passed, prefix, end)
                    yield passed

    def _last_words(self, facts: Facts) -> Iterator[Evidence]:
        """Yields the last error in each complete stream of a rank that ended with a code, if nothing else is found."""
        complete = [
            s
            for s in self._streams.values()
            if s.finished and not s.explained and s.of_one_process and s.slot not in self._outside
        ]
        owners = _Owners(facts) if complete else None
        for stream in complete:
            owner = owners.of(stream) if owners is not None else None
            if owner is None or owner.state != "ended":
                continue
            stream.explained = True
            last = stream.tail.last_error() if owner.exit_code else None
            if last is not None and _near_end(last[3], owner):
                byte, number, line, when = last
                where = f"{stream.name}:{number}"
                yield make.of_last_words(
                    owner, line, stream=stream.name, byte=byte, where=where, when=when, attempt=self._attempt
                )

    def _discover(self, facts: Facts) -> None:
        # For every slot at each poll: only new entries become Path objects, which is ten times as fast.
        for slot in facts.slots:
            if self._step_output and slot not in self._steps:
                path = self._starts.slot_dir(self._role_of(slot), slot) / WRAPPER_LOG
                if path.is_file():
                    self._steps.add(slot)
                    self._add(path, slot)
            folder = self._folders.get(slot)
            if folder is None:
                found = self._run_dir.stream_dir(self._attempt, self._role_of(slot), slot).parent
                folder = self._folders[slot] = str(found)
            for instance in self._entries(folder):
                own = self._instances.get(instance)
                if own is None:
                    own = self._instances[instance] = Path(instance)
                if self._starts.of_folder(slot, own) != "now" or self._standing.stands(instance):
                    continue
                for entry in _entries(instance):
                    text = entry.removesuffix(PACKED_SUFFIX)
                    if not text.endswith(".log") or text in self._known:
                        continue
                    if not _readable(text):
                        # No stream of Rankfall has such a name.
                        self._known.add(text)
                        self._guard.skipped(ascii(text), 0, 0, because="its name is not UTF-8")
                        continue
                    self._add(Path(text), slot)

    def _add(self, path: Path, slot: int) -> None:
        self._known.add(str(path))
        name = str(path.relative_to(self._run_dir.path))
        tail = StreamTail(path, self._catalogue, guard=self._guard, name=name, allowance=self._allowance)
        made = self._streams[path] = _Stream(tail, slot=slot, name=name)
        self._turns.append(made)

    def _entries(self, folder: str) -> list[str]:
        """Sorted paths in a folder, cached while the folder is unchanged."""
        if not self._standing.stands(folder):
            self._listed[folder] = _entries(folder)
        return self._listed[folder]


class _Owners:
    """Maps streams to ranks by the current facts: by slot and process ordinal, or by slot and rank."""

    def __init__(self, facts: Facts) -> None:
        self._by_ordinal: dict[tuple[int | None, int], RankFacts] = {}
        self._by_rank: dict[tuple[int | None, int], tuple[RankFacts, int | None]] = {}
        for sheet in facts.ranks():
            start = facts.start_of(sheet.slot, sheet.pid)
            ordinal = start.ordinal if start is not None else None
            if ordinal is not None:
                self._by_ordinal[sheet.slot, ordinal] = sheet
            self._by_rank[sheet.slot, sheet.rank] = (sheet, ordinal)

    def of(self, stream: _Stream) -> RankFacts | None:
        if stream.rank is not None:
            held = self._by_rank.get((stream.slot, stream.rank))
            return held[0] if held else None
        return self._by_ordinal.get((stream.slot, stream.ordinal)) if stream.ordinal is not None else None

    def ordinal(self, stream: _Stream) -> int | None:
        """Ordinal of the process that writes the stream; None if unknown."""
        if stream.rank is None:
            return stream.ordinal
        held = self._by_rank.get((stream.slot, stream.rank))
        return held[1] if held else None


class _RankMaps:
    """Proved ranks of the streams of a foreign job; read again after a change."""

    def __init__(self, *, foreign: bool) -> None:
        self.foreign = foreign
        self._held: dict[Path, tuple[int, RankMap]] = {}

    def of(self, stream: _Stream) -> RankMap:
        if not self.foreign:
            return _NO_PROOF
        folder = stream.tail.path.parent
        try:
            changed = (folder / TOLD).stat().st_mtime_ns
        except OSError:
            return _NO_PROOF
        held = self._held.get(folder)
        if held is None or held[0] != changed:
            held = self._held[folder] = (changed, read_rank_map(folder))
        return held[1]


def _near_end(when: When | None, owner: RankFacts) -> bool:
    """True if a line may state the reason of its rank's end: it came shortly before, and no work followed."""
    if when is None or owner.ended_at is None:
        return True
    # Buffered lines arrive at the end.
    worked = owner.worked_at if owner.worked_at is not None and owner.worked_at < owner.ended_at - _FLUSH_NS else 0
    return owner.ended_at - when.latest <= round(TERMINAL_WINDOW_S * _NS) and worked <= when.latest + _NS


def _readable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []
