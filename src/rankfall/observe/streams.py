"""Follow one stream file and classify what is new in it: whole lines only, by chunk, each byte once.

The file grows while a wrapper writes it; its index says when each chunk came. What was found is kept by signature with a bound, so a
job that prints the same error a million times costs as much as one that prints it thrice.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.observe.scan import ChunkScanner, Finding
from rankfall.observe.torchrun import Reported
from rankfall.signatures.catalogue import Catalogue
from rankfall.store.content import content_size, open_content

CHUNK: Final = 4 << 20
# A job that prints faster than this can be read must not keep the rest of a look waiting.
MAX_POLL: Final = 8 << 20
KEEP_FIRST: Final = 4
_HEAD: Final = b"RFIDX1\0\0"
_ROW: Final = struct.Struct("<QQqQB7x")


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with its place: byte and line of the stream, and when its chunk came (None without an index)."""

    finding: Finding
    byte: int
    line: int
    at: int | None


class PlacedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher's statement with its place."""

    reported: Reported
    byte: int
    line: int
    at: int | None


class StreamTail:
    """Reader of one stream.

    Args:
        path: the stream's file; its index lies beside it with the ending ``.idx``, or is absent.
        catalogue: the signatures in force.

    Attributes:
        offset: bytes that were read.
        behind: there are more.
        problem: why it cannot be read, in words.
    """

    def __init__(self, path: Path, catalogue: Catalogue) -> None:
        self.path = path
        self.offset = 0
        self.last_at: int | None = None
        self.behind = False
        self.problem: str | None = None
        self._scanner = ChunkScanner(catalogue)
        self._index = Index(index_path(path))

    def poll(self, *, final: bool = False) -> tuple[list[Placed], list[PlacedReport], int]:
        """Findings and statements of the bytes that came since, and how many bytes those were; ``behind`` when there are more.

        Args:
            final: the stream is complete: take its last, unfinished line too.
        """
        try:
            size = content_size(self.path)
        except FileNotFoundError:
            return [], [], 0
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"
            return [], [], 0
        if size <= self.offset and not (final and self._scanner.waiting):
            self.behind = False
            return [], [], 0
        found: list[Placed] = []
        reports: list[PlacedReport] = []
        fresh = 0
        try:
            with open_content(self.path) as content:
                while True:
                    wanted = min(CHUNK, content.size - self.offset)
                    data = content.read(self.offset, wanted)
                    fresh += len(data)
                    self.offset += len(data)
                    last = len(data) < wanted or self.offset >= content.size
                    self._take(data, final=final and last, found=found, reports=reports)
                    self.behind = not last
                    if last or fresh >= MAX_POLL:
                        break
        except OSError as error:
            self.behind = False
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"
        self.last_at = self._index.last_stamp()
        return found, reports, fresh

    def _take(self, data: bytes, *, final: bool, found: list[Placed], reports: list[PlacedReport]) -> None:
        findings, statements = self._scanner.feed(data, final=final)
        found += [Placed(finding=f, byte=byte, line=line, at=self._index.stamp(byte)) for f, byte, line in findings]
        reports += [
            PlacedReport(reported=r, byte=byte, line=line, at=self._index.stamp(byte)) for r, byte, line in statements
        ]
        self._index.forget_before(self._scanner.consumed)


def index_path(path: Path) -> Path:
    """Where a stream's index lies: beside it, ``0.out.log`` -> ``0.out.idx``."""
    return path.with_suffix(".idx")


class Index:
    """Rows of one index as they grow; keeps only those that may still be asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = len(_HEAD)
        self._rows: list[tuple[int, int]] = []
        self._last: int | None = None

    def last_stamp(self) -> int | None:
        """The newest stamp, nanoseconds since the epoch."""
        self._grow()
        return self._last

    def stamp(self, byte: int) -> int | None:
        """When the chunk that holds this byte came."""
        self._grow()
        best = None
        for offset, stamp in self._rows:
            if offset > byte:
                break
            best = stamp
        return best

    def forget_before(self, byte: int) -> None:
        """Rows of earlier chunks will not be asked for again."""
        keep = 0
        for number, (offset, _) in enumerate(self._rows):
            if offset <= byte:
                keep = number
        del self._rows[:keep]

    def _grow(self) -> None:
        for row in self._new_rows():
            self._rows.append((row[0], row[2]))
            self._last = row[2]

    def _new_rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if self._at == len(_HEAD) and os.pread(fd, len(_HEAD), 0) != _HEAD:
                return
            while True:
                data = os.pread(fd, _ROW.size * 4096, self._at)
                whole = len(data) // _ROW.size * _ROW.size
                if not whole:
                    return
                self._at += whole
                yield from _ROW.iter_unpack(data[:whole])
        finally:
            os.close(fd)
