"""All streams of an attempt: found as they appear, read incrementally, each with whose it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from rankfall.model import Evidence, RankFacts
from rankfall.observe import evidence as make
from rankfall.observe.cluster.told import NAME as TOLD
from rankfall.observe.cluster.told import Told, ToldRank, read_told
from rankfall.observe.facts import Facts
from rankfall.observe.standing import Standing
from rankfall.observe.starts import Starts
from rankfall.observe.streams import KEEP_FIRST, Placed, StreamTail
from rankfall.observe.text import digest
from rankfall.signatures.catalogue import Catalogue
from rankfall.store import RunDir, StreamRow
from rankfall.store.packed import ENDING


class StreamNews(msgspec.Struct, frozen=True, kw_only=True):
    """What one poll of all streams brought; ``output_at`` is when the newest byte came, 0 when none did."""

    evidence: tuple[Evidence, ...]
    bytes: int
    new_streams: int
    output_at: int


class _Stream:
    def __init__(self, path: Path, *, slot: int, name: str, catalogue: Catalogue) -> None:
        self.tail = StreamTail(path, catalogue)
        self.slot = slot
        self.name = name
        self.local = path.name.partition(".")[0]
        self.ordinal = int(self.local) if self.local.isdecimal() else None
        # Streams that were taken apart by the wrapper's prefix are named for their rank.
        digits = self.local.removeprefix("r")
        self.rank = int(digits) if digits != self.local and digits.isdecimal() else None
        self.kept: dict[tuple[str, int | None], int] = {}
        self.finished = False


class SlotStreams:
    """Streams of all slots of one attempt; ``role_of`` gives the role of a slot, slots ``outside`` have no ranks.

    Of slots that are started again alone only the streams of the start that is looked at are read.
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
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._role_of = role_of
        self._outside = outside
        self._catalogue = catalogue
        self._starts = starts
        self._told = _ToldRanks(foreign=run_dir.foreign is not None)
        self._streams: dict[Path, _Stream] = {}
        self._known: set[str] = set()
        self._folders: dict[int, str] = {}
        self._instances: dict[str, Path] = {}
        self._standing = Standing()
        self._listed: dict[str, list[str]] = {}

    def poll(self, facts: Facts, now: int) -> StreamNews:
        """Read what is new in every stream; statements of the launcher go into ``facts``."""
        before = len(self._streams)
        self._discover(facts)
        owners = _Owners(facts)
        found: list[Evidence] = []
        fresh = output_at = 0
        for stream in self._streams.values():
            if stream.finished:
                continue
            place = facts.slots.get(stream.slot)
            final = place is not None and place.state in {"ended", "lost"}
            placed, reports, count = stream.tail.poll(final=final)
            stream.finished = final and not stream.tail.behind
            fresh += count
            if count:
                # A node's clock that is ahead must not make a silent job look alive for as long.
                at = facts.clocks.ours(stream.slot, stream.tail.last_at) if stream.tail.last_at else now
                output_at = max(output_at, min(at, now))
                ordinal = owners.ordinal(stream)
                if ordinal is not None and stream.tail.last_at:
                    facts.add_line_time(slot=stream.slot, ordinal=ordinal, at=stream.tail.last_at)
            owner = owners.of(stream)
            node = place.node if place else None
            found += [self._evidence(stream, item, owner=owner, node=node) for item in placed]
            for report in () if stream.slot in self._outside else reports:
                facts.add_report(report.reported, slot=stream.slot, where=f"{stream.name}:{report.line}")
        return StreamNews(
            evidence=tuple(found), bytes=fresh, new_streams=len(self._streams) - before, output_at=output_at
        )

    def forget(self, slot: int) -> None:
        """Leave what was read of a slot that is started again."""
        self._streams = {path: stream for path, stream in self._streams.items() if stream.slot != slot}
        self._known = {str(path) for path in self._streams}
        # Streams of its next start may lie there already.
        self._standing = Standing()

    @property
    def problems(self) -> list[str]:
        """Streams that cannot be read, in words."""
        return [f"{stream.name}: {stream.tail.problem}" for stream in self._streams.values() if stream.tail.problem]

    def rows(self, facts: Facts) -> tuple[StreamRow, ...]:
        """Which bytes belong to which rank; what is not known yet has rank None."""
        owners = _Owners(facts)
        return tuple(self._row(stream, owners.of(stream)) for stream in self._streams.values())

    def _row(self, stream: _Stream, owner: RankFacts | None) -> StreamRow:
        instance = stream.tail.path.parent.name
        told = self._told.of(stream)
        if told is not None:
            owner = None
        return StreamRow(
            stream=stream.name,
            attempt=self._attempt,
            round=owner.round if owner else None,
            role=self._role_of(stream.slot),
            slot=stream.slot,
            instance=int(instance) if instance.isdecimal() else 0,
            local=stream.local,
            rank=told.rank if told else owner.rank if owner else stream.rank,
            from_byte=told.since if told else 0,
            to_byte=told.until if told else None,
            proof=told.proof
            if told
            else f"start record of pid {owner.pid}"
            if owner
            else "prefix"
            if stream.rank is not None
            else "",
        )

    def _evidence(self, stream: _Stream, item: Placed, *, owner: RankFacts | None, node: str | None) -> Evidence:
        """Of a signature in a stream the first few pieces and the last one are told apart; a flood costs no more."""
        kind = (item.finding.meaning.signature or item.finding.meaning.fingerprint, item.finding.prefix.rank)
        count = stream.kept[kind] = stream.kept.get(kind, 0) + 1
        told = self._told.of(stream)
        known = told is not None and told.since <= item.byte and (told.until is None or item.byte < told.until)
        piece = make.of_finding(
            item.finding,
            stream=stream.name,
            byte=item.byte,
            where=f"{stream.name}:{item.line}",
            at=item.at,
            rank=told.rank if told is not None and known else owner.rank if owner else stream.rank,
            slot=stream.slot,
            node=node,
            attempt=self._attempt,
            round_number=owner.round if owner else None,
        )
        if stream.slot in self._outside:
            # Numbers that such a slot's programs give each other are none of the job's ranks.
            piece = msgspec.structs.replace(piece, rank=None, local_rank=None)
        if count > KEEP_FIRST:
            piece = msgspec.structs.replace(piece, id=digest("last", stream.name, *kind))
        return piece

    def _discover(self, facts: Facts) -> None:
        # At each look, of every slot: paths are made of texts only where something is new, which is ten times as fast.
        for slot in facts.slots:
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
                    text = entry.removesuffix(ENDING)
                    if not text.endswith(".log") or text in self._known:
                        continue
                    self._known.add(text)
                    path = Path(text)
                    name = str(path.relative_to(self._run_dir.path))
                    self._streams[path] = _Stream(path, slot=slot, name=name, catalogue=self._catalogue)

    def _entries(self, folder: str) -> list[str]:
        """Paths in a folder, in order, as it was listed last where it has not changed."""
        if not self._standing.stands(folder):
            self._listed[folder] = _entries(folder)
        return self._listed[folder]


class _Owners:
    """Whose the streams are, by the fact sheets of now: by slot and process ordinal, or by slot and rank (then the newest process)."""

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
        """The ordinal of the process that writes it."""
        if stream.rank is None:
            return stream.ordinal
        held = self._by_rank.get((stream.slot, stream.rank))
        return held[1] if held else None


class _ToldRanks:
    """What manifest and processes prove of the streams of a job that Rankfall did not start; read again when it changed."""

    def __init__(self, *, foreign: bool) -> None:
        self._foreign = foreign
        self._held: dict[Path, tuple[int, Told]] = {}

    def of(self, stream: _Stream) -> ToldRank | None:
        if not self._foreign or stream.ordinal is None:
            return None
        folder = stream.tail.path.parent
        try:
            changed = (folder / TOLD).stat().st_mtime_ns
        except OSError:
            return None
        held = self._held.get(folder)
        if held is None or held[0] != changed:
            held = self._held[folder] = (changed, read_told(folder))
        return held[1].ranks.get(stream.ordinal)


def _entries(folder: str) -> list[str]:
    """Paths in a folder, in order."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except OSError:
        return []
