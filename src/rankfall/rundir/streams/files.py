"""Names and locations of raw streams, and their index of arrival times and line numbers.

Streams are logs/attempt-N/<role>-<slot>/<instance>/<local>.{out,err}.log; other files in those folders are
ignored. A damaged or torn index costs timestamps and speed, but no byte of the stream.

Cost: a binary search a question, and at most one chunk to count lines in; nothing is kept.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec

from rankfall.model import StoreError, numbers
from rankfall.model.patterns import anchored
from rankfall.rundir.streams.content import PACKED_SUFFIX, Packed, Raw, open_content, open_regular

SLOT: Final = "slot"
StreamOrder: TypeAlias = tuple[int, str, int, int, int, bool, str]

_ATTEMPT: Final = anchored(r"attempt-([1-9][0-9]{0,8})", limit=256)
_SLOT: Final = anchored(r"([a-z0-9][a-z0-9-]*)-([0-9]{1,9})", limit=256)
_FILE: Final = anchored(r"(slot|r?[0-9]{1,9})\.(out|err)\.log", limit=256)


class StreamName(msgspec.Struct, frozen=True, kw_only=True):
    """One stream file.

    Attributes:
        stream: path relative to the run directory.
        local: process ordinal, ``r`` and the rank (streams that were taken apart by the wrapper's prefix), or ``slot``.
        out: standard output, else standard error.
        path: the file, by the name that it has while it is not compressed.
    """

    attempt: int
    role: str
    slot: int
    instance: int
    local: str
    out: bool
    stream: str
    path: Path

    @property
    def rank(self) -> int | None:
        """The rank that the name itself tells."""
        return numbers.matched(self.local[1:]) if self.local.startswith("r") else None

    @property
    def order(self) -> StreamOrder:
        """Sort key among the streams of a run: attempt, role, slot, instance, the slot's own stream before its processes, stdout before stderr.

        No two streams have the same.
        """
        ordinal = -1 if self.local == SLOT else numbers.matched(self.local.removeprefix("r"))
        return self.attempt, self.role, self.slot, self.instance, ordinal, not self.out, self.stream

    @property
    def of_a_rank(self) -> bool:
        """Whether a process that became a rank wrote it, whichever rank that is."""
        return self.local != SLOT


class StreamFinder:
    """Finds the streams of one run again and again, and lists only folders that changed.

    Args:
        logs: the run's ``logs`` folder.
        attempt: only of this one.
    """

    def __init__(self, logs: Path, *, attempt: int | None = None) -> None:
        self._logs = logs
        self._attempt = attempt
        self._standing = Standing()
        self._listed: dict[Path, list[str]] = {}
        self._changed: set[Path] = set()
        self._since = -1
        self._found: list[StreamName] = []
        self._notes: list[str] = []

    def find(self, *, since: int, problems: list[str]) -> list[StreamName]:
        """As :func:`find_streams`; the same list as the last time where no folder changed."""
        self._changed = {folder for folder in self._listed if not self._standing.stands(str(folder))}
        if self._changed or since != self._since or not self._listed:
            for folder in self._changed:
                del self._listed[folder]
            self._since = since
            self._notes = []
            self._found = find_streams(
                self._logs, attempt=self._attempt, since=since, problems=self._notes, entries=self._entries
            )
        problems.extend(self._notes)
        return self._found

    def _entries(self, folder: Path, problems: list[str]) -> list[str]:
        known = self._listed.get(folder)
        if known is not None:
            return known
        if folder not in self._changed:
            # Its time of change is taken before it is listed.
            self._standing.stands(str(folder))
        before = len(problems)
        found = _entries(folder, problems)
        if len(problems) > before:
            # A folder that becomes readable keeps its time of change: everything is listed again.
            self._since = -1
        else:
            self._listed[folder] = found
        return found


def find_streams(
    logs: Path,
    *,
    attempt: int | None = None,
    since: int = 0,
    problems: list[str] | None = None,
    entries: Callable[[Path, list[str]], list[str]] | None = None,
) -> list[StreamName]:
    """All stream files, in their order (:attr:`StreamName.order`).

    Args:
        logs: the run's ``logs`` folder.
        attempt: only of this one.
        since: only of this attempt and later ones.
        problems: takes a line for each folder that cannot be read.
        entries: lists a folder; None = as it is now.
    """
    found: list[StreamName] = []
    notes = problems if problems is not None else []
    entries = entries or _entries
    for first in entries(logs, notes):
        match = _ATTEMPT.fullmatch(first)
        if (
            not match
            or numbers.matched(match[1]) < since
            or (attempt is not None and numbers.matched(match[1]) != attempt)
        ):
            continue
        for second in entries(logs / first, notes):
            place = _SLOT.fullmatch(second)
            if not place:
                continue
            for third in entries(logs / first / second, notes):
                if not (third.isascii() and third.isdigit()):
                    continue
                folder = logs / first / second / third
                inside = {name.removesuffix(PACKED_SUFFIX) for name in entries(folder, notes)}
                notes.extend(
                    f"{folder / name}: the stream is gone, only its index is left"
                    for name in sorted(inside)
                    if name.endswith(".idx") and name.removesuffix(".idx") + ".log" not in inside
                )
                for name in inside:
                    file = _FILE.fullmatch(name)
                    if file:
                        found.append(
                            StreamName(
                                attempt=numbers.matched(match[1]),
                                role=place[1],
                                slot=numbers.matched(place[2]),
                                instance=numbers.matched(third),
                                local=file[1],
                                out=file[2] == "out",
                                stream=f"{logs.name}/{first}/{second}/{third}/{name}",
                                path=folder / name,
                            )
                        )
    return sorted(found, key=lambda name: name.order)


def _entries(folder: Path, problems: list[str]) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"{folder} cannot be read: {error.strerror or error}")
        return []


MAGIC: Final = b"RFIDX1\0\0"
ROW: Final = struct.Struct("<QQqqB7x")
# The stamps of the lines of one row lie within this, nanoseconds, where both ends of them are known.
MOST_APART_NS: Final = 100_000_000
BLOCK: Final = 1 << 20
_BATCH: Final = 512


class IndexRow(NamedTuple):
    """One chunk of a stream.

    Attributes:
        offset: its first byte.
        line: the first line that begins in it, from 0.
        stamp: when its first line came, nanoseconds since the epoch.
        last: when its last line came; 0 = not known, or as ``stamp`` where that is the wrapper's clock.
        source: of the stamps.
    """

    offset: int
    line: int
    stamp: int
    last: int
    source: int


class IndexReader:
    """Rows of a stream's index; the file may grow between calls. No file stays open.

    Args:
        stream: the stream's file, as ``0.out.log``; its index is ``0.out.idx``.

    Attributes:
        problem: why the index cannot be used, in words; None while it can. A missing index is a problem too.
    """

    def __init__(self, stream: Path) -> None:
        self.path = index_path(stream)
        self.problem: str | None = None

    def __len__(self) -> int:
        """Whole rows."""
        with _Opened(self) as file:
            return file.count

    def rows(self, first: int, count: int = _BATCH) -> list[IndexRow]:
        """Up to ``count`` rows from row ``first`` on."""
        with _Opened(self) as file:
            return file.rows(first, count)

    def find(self, byte: int) -> int:
        """Number of the row whose chunk holds ``byte``; -1 when none does."""
        with _Opened(self) as file:
            return file.bisect(lambda row: row.offset <= byte)

    def at(self, byte: int) -> IndexRow | None:
        """The row whose chunk holds ``byte``."""
        with _Opened(self) as file:
            number = file.bisect(lambda row: row.offset <= byte)
            return file.rows(number, 1)[0] if number >= 0 else None

    def stamp(self, byte: int) -> int | None:
        """When the chunk of ``byte`` came; for bytes after the last row its stamp, which is a lower bound. None = unknown."""
        row = self.at(byte)
        return row.stamp if row else None

    def last_stamp(self) -> int | None:
        """When the newest line came, as far as the newest row says."""
        with _Opened(self) as file:
            rows = file.rows(file.count - 1, 1)
            if not rows:
                return None
            stamp, last = rows[0].stamp, rows[0].last
            return last if stamp < last <= stamp + MOST_APART_NS else stamp

    def offset_since(self, stamp: int) -> int | None:
        """Offset of the first chunk that came at ``stamp`` or later; None when there is none.

        Where the clock stepped back between chunks, a chunk near the step may be taken for its neighbour.
        """
        with _Opened(self) as file:
            found = file.rows(file.bisect(lambda row: row.stamp < stamp) + 1, 1)
            return found[0].offset if found else None


class _Opened:
    """The index while one question is answered."""

    def __init__(self, reader: IndexReader) -> None:
        self._reader = reader
        self._fd = -1
        self.count = 0

    def __enter__(self) -> Self:
        path = self._reader.path
        try:
            self._fd = open_regular(path)
            head = os.pread(self._fd, len(MAGIC), 0)
            size = os.fstat(self._fd).st_size
        except OSError as error:
            self._reader.problem = f"{path.name} cannot be read: {error.strerror or error}"
            return self
        if head != MAGIC:
            # Shorter than its head: the writer is just beginning.
            self._reader.problem = f"{path.name} is no index" if size >= len(MAGIC) else None
            return self
        self._reader.problem = None
        self.count = (size - len(MAGIC)) // ROW.size
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def rows(self, first: int, count: int) -> list[IndexRow]:
        count = min(count, self.count - first)
        if first < 0 or count <= 0:
            return []
        data = os.pread(self._fd, count * ROW.size, len(MAGIC) + first * ROW.size)
        return [IndexRow._make(row) for row in ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size])]

    def bisect(self, before: Callable[[IndexRow], bool]) -> int:
        """Number of the last row for which ``before`` holds (it holds for a first part of the rows); -1 when for none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            row = self.rows(middle, 1)
            if row and before(row[0]):
                low = middle + 1
            else:
                high = middle
        return low - 1


def index_path(stream: Path) -> Path:
    """Where a stream's index lies: ``0.out.log`` -> ``0.out.idx``."""
    return stream.with_suffix(".idx")


def position(path: Path, byte: int) -> int:
    """The line (from 1) that holds byte ``byte`` of a stream: the number in ``path:line``.

    With an index at most one chunk is counted. A byte at or after the end is on the line that would come next.

    Raises:
        StoreError: the stream cannot be read.
    """
    row = IndexReader(path).at(byte)
    try:
        with open_content(path) as content:
            start, line = _anchor(content, row, byte)
            while start < byte:
                data = content.read(start, min(BLOCK, byte - start))
                if not data:
                    break
                line += data.count(b"\n")
                start += len(data)
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror or error}",
            hint="the stream was moved or is not readable; rankfall doctor",
        ) from error
    return line + 1


def _anchor(content: Raw | Packed, row: IndexRow | None, byte: int) -> tuple[int, int]:
    """A byte at or before ``byte`` and the line (from 0) that it stands on, from a row when that can be true."""
    if row is None or not 0 < row.offset <= byte or row.line > row.offset + 1:
        return 0, 0
    before = content.read(row.offset - 1, 1)
    line = row.line if before == b"\n" else row.line - 1
    return (row.offset, line) if before and line >= 0 else (0, 0)


def stamps_backward(index: IndexReader, byte: int) -> Iterator[IndexRow]:
    """Rows from the one that holds ``byte`` back to the first."""
    number = index.find(byte)
    while number >= 0:
        first = max(0, number - _BATCH + 1)
        yield from reversed(index.rows(first, number - first + 1))
        number = first - 1


# More than the ticks of any file system's clock, seconds: FAT has two.
_SETTLED_S: Final = 3.0


class _Seen(NamedTuple):
    changed: int
    since: float
    listed: float


class Standing:
    """Folders by their paths."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def stands(self, folder: str) -> bool:
        """Whether nothing was made, renamed or removed in it since this said no; whoever is told no lists it at once.

        Args:
            folder: need not exist; then it stands until it does.
        """
        try:
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - asked of thousands at each look
        except OSError:
            changed = -1
        seen = self._seen.get(folder)
        if seen is not None and seen.changed == changed and seen.listed - seen.since >= _SETTLED_S:
            return True
        now = time.monotonic()
        since = seen.since if seen is not None and seen.changed == changed else now
        self._seen[folder] = _Seen(changed, since, now)
        return False
