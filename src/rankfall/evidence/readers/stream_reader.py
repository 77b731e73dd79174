"""Follows one growing stream file and classifies its new lines, each byte once.

Cost: that of ``scan``, and one read of the index a chunk. Memory: one chunk, that of ``scan``, and 24 bytes an
index row for bytes with possible findings.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankfall.evidence.readers.findings import Finding
from rankfall.evidence.readers.scan import ChunkScanner
from rankfall.evidence.readers.survival import Survival
from rankfall.evidence.readers.text import error_lines
from rankfall.evidence.readers.torchrun import Reported
from rankfall.model import RankfallError
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded
from rankfall.rundir.cluster.marks import newest_of_log
from rankfall.rundir.reader_guard import LIVE, MAX_PIECE, TAIL, Allowance, ReaderGuard, ReadingTime
from rankfall.rundir.streams.content import Packed, Raw, content_size, open_content
from rankfall.rundir.streams.files import MOST_APART_NS
from rankfall.rundir.streams.writer import STAMP_RUNTIME
from rankfall.verdict.signatures.catalogue import Catalogue

# A fast-printing job must not delay a poll.
MAX_POLL: Final = 8 << 20
# Bytes skipped per poll without classification, a hundredth of the cost.
MAX_PASSED: Final = 64 << 20
_HEAD: Final = b"RFIDX1\0\0"
_ROW: Final = struct.Struct("<QQqqB7x")
# Stored times of work, and nanoseconds between them.
_WORK_TIMES: Final = 8
# Last bytes of a stream in which an error without a signature is searched.
_LAST: Final = 8 << 10
_APART_NS: Final = 100_000_000
# Last bytes of a chunk that are searched for a step.
_STEP_BYTES: Final = 2048
# Maximum seconds from a line to its timestamp.
_LINE_S: Final = 0.05
_NS: Final = 1_000_000_000
# "step 12", "Iter: 12", "global_step=12", and the progress bar of tqdm.
_STEP: Final = bounded(
    rb"(?i)(?:\b|_)(?:step|iter(?:ation)?)s?[\"']?[ \t]{0,4}[:=#]?[ \t]{0,4}[\[(]?(\d{1,12})\b"
    rb"|\|[ \t](\d{1,12})/\d{1,12}[ \t]\[\d",
    limit=_STEP_BYTES,
)


def printed_step(data: bytes) -> int | None:
    """Step number in the last whole line that has one, of the last bytes; None without any."""
    tail = data[-_STEP_BYTES:]
    tail = tail[: max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1]
    found = [whole(match[1] or match[2]) for match in _STEP.finditer(tail)]
    return found[-1] if found else None


class When(NamedTuple):
    """Arrival time of a line: between two timestamps, nanoseconds since the epoch."""

    earliest: int
    latest: int


def time_of(when: When | None) -> tuple[int | None, float | None]:
    """Returns the middle and the uncertainty, in seconds, of the time of a line."""
    if when is None:
        return None, None
    return (when.earliest + when.latest) // 2, _LINE_S + (when.latest - when.earliest + 1) // 2 / _NS


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with byte, line and arrival time (None if unknown)."""

    finding: Finding
    byte: int
    line: int
    when: When | None


class PlacedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher's report with its place."""

    reported: Reported
    byte: int
    line: int


class StreamTail:
    """Reader of one stream; its index ends in ``.idx``, or is absent.

    ``allowance`` limits the CPU time for costly text.

    Attributes:
        offset: Bytes read.
        behind: True if more bytes are available.
        problem: Why the stream is unreadable.
        survival: Detects speakers that continued; ``worked_at`` are arrivals of their work, the last one and earlier ones apart.
        printed_step: Step number in the newest line that has one.
    """

    def __init__(
        self,
        path: Path,
        catalogue: Catalogue,
        *,
        guard: ReaderGuard | None = None,
        name: str | None = None,
        allowance: Allowance = LIVE,
    ) -> None:
        self.path = path
        self.offset = 0
        self.last_at: int | None = None
        self.behind = False
        self.problem: str | None = None
        self.time = ReadingTime(allowance)
        self._guard = guard or ReaderGuard()
        self._name = name or path.name
        self._catalogue = catalogue
        self.worked_at: tuple[int, ...] = ()
        self.printed_step: int | None = None
        self.survival = Survival(watched=True)
        self._scanner = ChunkScanner(catalogue, survival=self.survival)
        # Offset of the scanner's next bytes.
        self._fed = 0
        self._index = Index(index_path(path))
        self._gaps = Gaps(self._guard, self._name)

    @property
    def flooded(self) -> str | None:
        """Message about lines that were skipped because there were too many; None = none."""
        return self._scanner.flooded

    def poll(
        self, *, final: bool = False, limit: int = MAX_POLL, hurried: bool = False
    ) -> tuple[list[Placed], list[PlacedReport], int]:
        """Returns findings, launcher reports and number of bytes of the new data; sets ``behind`` if more is available.

        ``limit`` in bytes, rounded to whole pieces. ``hurried``: classify only the last bytes.
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
        # Compiled outside the measured time: it is not the cost of this stream.
        self._catalogue.prepare(Catalogue.STREAM)
        found: list[Placed] = []
        reports: list[PlacedReport] = []
        fresh = 0
        try:
            with open_content(self.path) as content:
                while True:
                    aside = hurried or self.time.over
                    if aside and self.offset < content.size - TAIL:
                        fresh += self._pass_over(content, found, reports)
                        self.behind = True
                        break
                    wanted = min(self.time.piece, content.size - self.offset)
                    data = content.read(self.offset, wanted)
                    fresh += len(data)
                    self.offset += len(data)
                    last = len(data) < wanted or self.offset >= content.size
                    with self.time.measured(len(data)):
                        self._take(data, final=final and last, found=found, reports=reports)
                    self.behind = not last
                    if last or fresh >= limit:
                        break
        except OSError as error:
            self.behind = False
            self.problem = f"{self.path.name} cannot be read: {error.strerror or error}"
        self.last_at = self._index.last_stamp()
        return found, reports, fresh

    @property
    def unread(self) -> int:
        """Number of unread bytes."""
        try:
            return max(0, content_size(self.path) - self.offset)
        except OSError:
            return 0

    def last_error(self) -> tuple[int, int, bytes, When | None] | None:
        """Byte, line number, text and time of the last line that resembles an error, in the last bytes read."""
        first = max(0, self.offset - _LAST)
        try:
            with open_content(self.path) as content:
                tail = content.read(first, self.offset - first)
        except OSError:
            return None
        found = next(error_lines(tail, since=tail.find(b"\n") + 1 if first else 0), None)
        if found is None:
            return None
        begin, line = found
        index = Index(index_path(self.path))
        index.grow()
        return first + begin, self._scanner.lines - tail.count(b"\n", begin) + 1, line, index.when(first + begin)

    def give_up(self) -> None:
        """Skips all unread bytes: they stay in the file but are not classified."""
        size = self.offset + self.unread
        self._gaps.add(self.offset, size)
        self.offset, self.behind = size, False

    def _pass_over(self, content: Raw | Packed, found: list[Placed], reports: list[PlacedReport]) -> int:
        """Skips to the stream's last bytes, counting lines; returns the bytes."""
        if self._scanner.waiting:
            # Data before the gap counts.
            self._take(b"", final=True, found=found, reports=reports)
        start, until = self.offset, min(content.size - TAIL, self.offset + MAX_PASSED)
        data = b""
        while self.offset < until:
            data = content.read(self.offset, min(MAX_PIECE, until - self.offset))
            if not data:
                break
            self.offset += len(data)
            self._scanner.skip(data)
        self._fed = self.offset
        self._gaps.add(start, self.offset)
        if not data.endswith(b"\n"):
            # The rest of a line that began in the gap would mislead.
            self._scanner.skip_line()
        self._index.forget_before(self.offset)
        return self.offset - start

    def _take(self, data: bytes, *, final: bool, found: list[Placed], reports: list[PlacedReport]) -> None:
        self._fed += len(data)
        step = printed_step(data)
        self.printed_step = self.printed_step if step is None else step
        worked = self.survival.worked
        try:
            findings, statements = self._scanner.push(data, final=final)
        except RankfallError:
            raise
        except Exception as error:  # noqa: BLE001 - a failing reader costs only the lines on which it failed
            self._take_halves(error, final=final, found=found, reports=reports)
            return
        self._index.grow()
        if self.survival.worked != worked:
            for end in self.survival.take_work():
                when = self._index.when(end - 1)
                if when is not None:
                    self._worked(when.earliest)
        found += [Placed(finding=f, byte=byte, line=line, when=self._index.when(byte)) for f, byte, line in findings]
        reports += [PlacedReport(reported=r, byte=byte, line=line) for r, byte, line in statements]
        self._index.forget_before(self._scanner.consumed)

    def _worked(self, at: int) -> None:
        times = self.worked_at
        if len(times) > 1 and times[-1] - times[-2] < _APART_NS:
            times = times[:-1]
        self.worked_at = (*times, at)[-_WORK_TIMES:]

    def _take_halves(self, error: Exception, *, final: bool, found: list[Placed], reports: list[PlacedReport]) -> None:
        """Bisects failed data down to the unreadable lines; adds findings and reports of the others."""
        start, end = self._scanner.restart(), self._fed
        with open_content(self.path) as content:
            data = content.read(start, end - start)
        cut = data.rfind(b"\n", 0, len(data) // 2) + 1 or data.find(b"\n") + 1
        if not 0 < cut < len(data):
            self._guard.failed(error, what="stream", where=self._name, data=data)
            self._scanner.skip(data)
            return
        self._fed = start
        self._take(data[:cut], final=False, found=found, reports=reports)
        self._take(data[cut:], final=final, found=found, reports=reports)


class Gaps:
    """Unclassified parts of a stream, in one problem entry."""

    def __init__(self, guard: ReaderGuard, name: str) -> None:
        self._guard = guard
        self._name = name
        self._first = self._last = self._parts = self._bytes = 0

    def add(self, start: int, end: int) -> None:
        """Adds one more part, in bytes."""
        if end <= start:
            return
        if not self._parts:
            self._first = start
        if not self._parts or start != self._last:
            self._parts += 1
        self._bytes += end - start
        self._last = end
        parts = f" in {self._parts} parts" if self._parts > 1 else ""
        because = f"they would have taken more time than the limit of a stream ({self._bytes} bytes{parts})"
        self._guard.skipped(self._name, self._first, end, because=because)


def index_path(path: Path) -> Path:
    """Returns a stream's index path: ``0.out.log`` -> ``0.out.idx``."""
    return path.with_suffix(".idx")


class Index:
    """Rows of a growing index; stores only those still needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = len(_HEAD)
        # The newest timestamp is 0 if only the next row bounds it.
        self._offsets, self._stamps, self._newest = array("Q"), array("q"), array("q")
        self._last: int | None = None

    def last_stamp(self) -> int | None:
        """Newest timestamp, nanoseconds since the epoch; None without rows."""
        self.grow()
        return self._last

    def when(self, byte: int) -> When | None:
        """Arrival time of this byte's line by the rows read so far; None if unknown."""
        number = bisect_right(self._offsets, byte)
        if not number:
            return None
        first, last = self._stamps[number - 1], self._newest[number - 1]
        if last:
            return When(min(first, last), max(first, last))
        # An earlier version stored only a chunk's first line's time; or no timestamp.
        last = self._stamps[number] if number < len(self._stamps) else newest_of_log(self._path.parent) or 0
        return When(first, last) if last >= first else None

    def forget_before(self, byte: int) -> None:
        """Drops rows of earlier chunks, which are not needed any more."""
        keep = max(0, bisect_right(self._offsets, byte) - 1)
        del self._offsets[:keep], self._stamps[:keep], self._newest[:keep]

    def grow(self) -> None:
        """Reads the new rows."""
        for offset, _, stamp, last, source in self._new_rows():
            # A more distant timestamp is damage.
            newest = stamp if source != STAMP_RUNTIME else last if abs(last - stamp) <= MOST_APART_NS else 0
            # Rows that go back are damage.
            if not self._offsets or offset >= self._offsets[-1]:
                self._offsets.append(offset)
                self._stamps.append(stamp)
                self._newest.append(newest)
            self._last = max(stamp, newest)

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
