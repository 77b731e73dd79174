"""Names of raw streams, and their index of arrival times and line numbers.

Form: logs/attempt-N/<role>-<slot>/<instance>/<local>.{out,err}.log. A damaged index costs no stream byte.

Cost: a binary search a query, and at most one chunk to count lines in; nothing is cached.
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
        stream: Path relative to the run directory.
        local: Process ordinal, ``r`` and rank (split streams), or ``slot``.
        out: True for stdout, False for stderr.
        path: By its uncompressed name.
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
        """Rank that the name itself contains; None if it contains none."""
        return numbers.matched(self.local[1:]) if self.local.startswith("r") else None

    @property
    def order(self) -> StreamOrder:
        """Unique sort key: attempt, role, slot, instance, slot before processes, stdout first."""
        ordinal = -1 if self.local == SLOT else numbers.matched(self.local.removeprefix("r"))
        return self.attempt, self.role, self.slot, self.instance, ordinal, not self.out, self.stream

    @property
    def of_a_rank(self) -> bool:
        """True if a process that became a rank wrote it, even if that rank is unknown."""
        return self.local != SLOT


class StreamFinder:
    """Finds streams repeatedly, listing only changed folders; ``attempt`` None = all."""

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
        """Result of :func:`find_streams`; the same list object if no folder changed."""
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
            # The modification time is read before listing.
            self._standing.stands(str(folder))
        before = len(problems)
        found = _entries(folder, problems)
        if len(problems) > before:
            # A newly readable folder has no new modification time.
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
    """Returns all stream files in order (:attr:`StreamName.order`).

    ``attempt`` None = all; ``since``: this and later ones; ``entries`` lists a folder.
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
                    f"{folder / name}: the stream no longer exists, only its index"
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
# A row's lines lie within these nanoseconds, with both timestamps.
MOST_APART_NS: Final = 100_000_000
BLOCK: Final = 1 << 20
_BATCH: Final = 512


class IndexRow(NamedTuple):
    """One chunk of a stream.

    Attributes:
        offset: First byte of the chunk.
        line: Number of the first line that begins in the chunk, from 0.
        stamp: First line's arrival, nanoseconds since the epoch.
        last: Last line's arrival; 0 if unknown, equal to ``stamp`` for the wrapper's clock.
        source: Source of the timestamps.
    """

    offset: int
    line: int
    stamp: int
    last: int
    source: int


class IndexReader:
    """Reads a growing stream index; no file remains open.

    ``problem``: why the index is unusable or missing, or None.
    """

    def __init__(self, stream: Path) -> None:
        self.path = index_path(stream)
        self.problem: str | None = None

    def __len__(self) -> int:
        """Number of whole rows."""
        with _Opened(self) as file:
            return file.count

    def rows(self, first: int, count: int = _BATCH) -> list[IndexRow]:
        """Returns up to ``count`` rows from row ``first`` on."""
        with _Opened(self) as file:
            return file.rows(first, count)

    def find(self, byte: int) -> int:
        """Number of the row whose chunk contains ``byte``; -1 if there is none."""
        with _Opened(self) as file:
            return file.bisect(lambda row: row.offset <= byte)

    def at(self, byte: int) -> IndexRow | None:
        """Row whose chunk contains ``byte``; None if absent."""
        with _Opened(self) as file:
            number = file.bisect(lambda row: row.offset <= byte)
            return file.rows(number, 1)[0] if number >= 0 else None

    def stamp(self, byte: int) -> int | None:
        """Returns the arrival time of the chunk that contains ``byte``; None if unknown.

        For bytes after the last row the time is a lower bound.
        """
        row = self.at(byte)
        return row.stamp if row else None

    def last_stamp(self) -> int | None:
        """Arrival time of the newest line by the newest row; None without rows."""
        with _Opened(self) as file:
            rows = file.rows(file.count - 1, 1)
            if not rows:
                return None
            stamp, last = rows[0].stamp, rows[0].last
            return last if stamp < last <= stamp + MOST_APART_NS else stamp

    def offset_since(self, stamp: int) -> int | None:
        """Returns the offset of the first chunk that arrived at ``stamp`` or later; None if absent.

        After a clock step back the result may be a neighbor.
        """
        with _Opened(self) as file:
            found = file.rows(file.bisect(lambda row: row.stamp < stamp) + 1, 1)
            return found[0].offset if found else None


class _Opened:
    """The open index during one query."""

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
            # Shorter than its header: the writer is starting.
            self._reader.problem = f"{path.name} is not an index" if size >= len(MAGIC) else None
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
        """Returns the number of the last row for which ``before`` is true; -1 if there is none.

        ``before`` must be true for a first part of the rows and false for the others.
        """
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
    """Returns an index's path: ``0.out.log`` -> ``0.out.idx``."""
    return stream.with_suffix(".idx")


def position(path: Path, byte: int) -> int:
    """Returns the line number (from 1) of byte ``byte`` of a stream, as in ``path:line``.

    With an index, at most one chunk is counted.

    Raises:
        StoreError: The stream cannot be read.
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
            hint="check with rankfall doctor: the stream was moved or is not readable",
        ) from error
    return line + 1


def _anchor(content: Raw | Packed, row: IndexRow | None, byte: int) -> tuple[int, int]:
    """Returns a byte at or before ``byte`` and its line (from 0), from the row if that is plausible."""
    if row is None or not 0 < row.offset <= byte or row.line > row.offset + 1:
        return 0, 0
    before = content.read(row.offset - 1, 1)
    line = row.line if before == b"\n" else row.line - 1
    return (row.offset, line) if before and line >= 0 else (0, 0)


def stamps_backward(index: IndexReader, byte: int) -> Iterator[IndexRow]:
    """Yields rows from the row that contains ``byte`` back to the first."""
    number = index.find(byte)
    while number >= 0:
        first = max(0, number - _BATCH + 1)
        yield from reversed(index.rows(first, number - first + 1))
        number = first - 1


# Seconds; longer than any file system's clock tick (FAT: two).
_SETTLED_S: Final = 3.0


class _Seen(NamedTuple):
    changed: int
    since: float
    listed: float


class Standing:
    """Remembers which folders are unchanged, by path."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def stands(self, folder: str) -> bool:
        """True if no entry was created, renamed or removed since the last False result.

        After False, list the folder immediately. A missing folder is unchanged.
        """
        try:
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - called for thousands at each poll
        except OSError:
            changed = -1
        seen = self._seen.get(folder)
        if seen is not None and seen.changed == changed and seen.listed - seen.since >= _SETTLED_S:
            return True
        now = time.monotonic()
        since = seen.since if seen is not None and seen.changed == changed else now
        self._seen[folder] = _Seen(changed, since, now)
        return False
