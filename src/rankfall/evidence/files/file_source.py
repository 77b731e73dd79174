"""Findings of one file: rank and attempt by its path, evidence by its lines.

All files share one memory limit; then each stores only its newest finding, shortened.
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

# Bytes for the evidence of all files.
MAX_KEPT: Final = 48 << 20
# Prefixed ranks and launcher reports in one file: more than any job has.
MAX_RANKS: Final = 1 << 15
# Failures in one file until reading stops.
_MAX_FAILURES: Final = 8
# Bytes of evidence without its line, and of its line at the memory limit.
_PIECE: Final = 1000
_SHORT: Final = 200
_ELASTIC: Final = bounded(r"attempt_(\d{1,4})/(\d{1,4})/[^/]+$", limit=4_096)
_RANK_FILE: Final = bounded(r"(?i)(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?:[^0-9]|$)", limit=256)


class Source(msgspec.Struct, kw_only=True):
    """One file and its findings.

    Attributes:
        name: Path for users.
        group: Key of one process's files.
        found, last: First evidence of each kind, and the last.
        reported: Last launcher report of each rank or process.
        prefixed: Ranks in line prefixes.
        ends: Prefix and line end of each failure, by ID.
        survival: Speakers that continued after them.
        stacks: Stacks at its end.
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
        """Yields its evidence; a finding whose speaker continued is context.

        ``alone``: the whole file is from one process.
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


class Room:
    """Remaining memory for evidence of all files."""

    def __init__(self) -> None:
        self._left = MAX_KEPT

    def take(self, piece: Evidence) -> bool:
        """True if the piece can be stored unchanged."""
        if self._left <= 0:
            return False
        self._left -= _PIECE + sys.getsizeof(piece.line)
        return True


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
        self._scanner = ChunkScanner(catalogue, survival=source.survival)
        self._flooded: str | None = None

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
        """Starts again at a byte; its line number is unknown."""
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
