"""One file of a pile as a speaker: what its place says of it, and what its lines say, kept within bounds.

Of each kind of finding the first ones and the last are kept. All files share one bound on memory: once it is reached, each further file keeps
its newest finding, in short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence import builders as make
from rankfall.evidence.files.bounded_read import Part
from rankfall.evidence.files.folder_listing import printable
from rankfall.evidence.readers.scan import ChunkScanner, Finding
from rankfall.evidence.readers.stacks import NewestDump
from rankfall.evidence.readers.survival import Survival
from rankfall.evidence.readers.text import Prefix
from rankfall.evidence.readers.torchrun import Reported
from rankfall.model import Evidence, RankfallError, numbers
from rankfall.model.evidence import digest
from rankfall.model.patterns import bounded
from rankfall.rundir.reader_guard import ReaderGuard
from rankfall.verdict.signatures.catalogue import Catalogue

# Memory for the evidence of all files together, bytes.
MAX_KEPT: Final = 48 << 20
# Ranks whose prefix one file shows, and statements of a launcher in it: more than any job has ranks on the nodes of one log.
MAX_RANKS: Final = 1 << 15
# A reader that failed so often in one file will fail on the rest.
_MAX_FAILURES: Final = 8
# What a piece of evidence takes beside its line, and its line once the memory is used up.
_PIECE: Final = 1000
_SHORT: Final = 200
_ELASTIC: Final = bounded(r"attempt_(\d{1,4})/(\d{1,4})/[^/]+$", limit=4_096)
_RANK_FILE: Final = bounded(r"(?i)(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?:[^0-9]|$)", limit=256)


class Source(msgspec.Struct, kw_only=True):
    """One file as a speaker.

    Attributes:
        name: its path, for people.
        group: what it shares with the other files of one process.
        found, last: the first pieces of evidence of each kind, and the last one.
        reported: statements of a launcher and where they stand; of those about one rank or process the last one.
        prefixed: ranks that prefixes of its lines name.
        ends: of pieces that tell of a failure, by id: the prefix and the end of the line.
        survival: which of its speakers went on after them.
        stacks: text of the stacks that it ends with.
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
    ends: dict[str, tuple[Prefix, int]] = msgspec.field(default_factory=dict)
    survival: Survival = msgspec.field(default_factory=Survival)
    stacks: str | None = None

    def weighed(self, *, alone: bool) -> Iterator[Evidence]:
        """What it says; what its speakers went on after is context.

        Args:
            alone: all of it is of one process.
        """
        for piece in (*self.found, *self.last.values()):
            place = self.ends.get(piece.id)
            if place is not None and self.survival.outlived(*place, alone=alone, whole=piece.whole):
                yield msgspec.structs.replace(piece, role="context", outlived=True)
            elif place is not None and self.survival.passed(*place, alone=alone):
                yield msgspec.structs.replace(piece, passed=True)
            else:
                yield piece


def source_of(file: Path) -> Source:
    """A file as a speaker, by its place alone."""
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


class Room:
    """Memory that is left for evidence of all files."""

    def __init__(self) -> None:
        self._left = MAX_KEPT

    def take(self, piece: Evidence) -> bool:
        """Whether the piece can be kept as it is."""
        if self._left <= 0:
            return False
        self._left -= _PIECE + sys.getsizeof(piece.line)
        return True


class TextReader:
    """Reads the parts of one text into its source.

    Args:
        source: takes what is found.
        catalogue: the signatures in force.
        guard: takes failures of readers; the bytes that one failed on are left out, and the rest is read.
        room: memory for what is found.
    """

    def __init__(self, source: Source, catalogue: Catalogue, guard: ReaderGuard, room: Room) -> None:
        self._source = source
        self._catalogue = catalogue
        self._guard = guard
        self._room = room
        self._dump: NewestDump | None = NewestDump()
        self._failures = 0
        self._base = self._next = 0
        self._lines = True
        self._scanner = ChunkScanner(catalogue, survival=source.survival)
        self._flooded: str | None = None

    @property
    def flooded(self) -> str | None:
        """Which lines were passed over because there were too many; None = none."""
        return self._scanner.flooded or self._flooded

    def read(self, parts: Iterable[Part]) -> None:
        """Read all of it; what is broken off at the end of a part is taken as it is.

        Raises:
            OSError: the parts cannot be read; what came before counts.
        """
        try:
            for start, data in parts:
                if start != self._next:
                    self._push(b"", final=True)
                    self._begin(start)
                self._next = start + len(data)
                self._push(data)
                if self._failures > _MAX_FAILURES:
                    break
        finally:
            self._push(b"", final=True)
            if self._dump is not None:
                self._source.stacks = self._guard.read(
                    self._dump.text, otherwise=None, what="stack", where=self._source.name
                )

    def _begin(self, at: int) -> None:
        """Begin anew at a byte of the text, of whose line nobody knows the number."""
        self._flooded = self.flooded
        self._scanner = ChunkScanner(self._catalogue, survival=self._source.survival)
        self._source.survival.begin(at)
        self._base = self._next = at
        self._lines = False

    def _push(self, data: bytes, *, final: bool = False) -> None:
        if self._dump is not None and data:
            try:
                self._dump.push(data)
            except Exception as error:  # noqa: BLE001 - text of jobs: one reader costs no other one
                self._guard.failed(error, what="stack", where=self._source.name)
                self._dump = None
        try:
            findings, statements = self._scanner.push(data, final=final)
            for finding, byte, line in findings:
                self._keep(finding, byte=self._base + byte, line=line)
            for reported, byte, line in statements:
                self._report(reported, self._where(self._base + byte, line))
        except RankfallError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._failures += 1
            first = self._base + self._scanner.consumed
            where = f"{self._source.name}, bytes {first} to {self._next}"
            self._guard.failed(error, what="part of a log", where=where, data=data)
            self._begin(self._next)

    def _where(self, byte: int, line: int) -> str:
        return f"{self._source.name}:{line}" if self._lines else f"{self._source.name}:byte {byte}"

    def _keep(self, finding: Finding, *, byte: int, line: int) -> None:
        source, prefix = self._source, finding.prefix
        if prefix.rank is not None and len(source.prefixed) < MAX_RANKS:
            source.prefixed.add(prefix.rank)
        piece = make.of_finding(
            finding,
            stream=source.group,
            byte=byte,
            where=self._where(byte, line),
            when=None,
            rank=None,
            slot=prefix.slot,
            node=None,
            attempt=source.attempt,
        )
        if finding.kind not in source.last and not self._room.take(piece):
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
        if finding.fails:
            source.ends[piece.id] = prefix, byte + finding.end - finding.start

    def _report(self, reported: Reported, where: str) -> None:
        about = (reported.kind, reported.pid if reported.rank is None else reported.rank)
        known = self._source.reported.pop(about, None)
        if known is not None or len(self._source.reported) < MAX_RANKS:
            self._source.reported[about] = reported, where
