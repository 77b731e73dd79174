"""Copies what pods stored in a job's log store (``kubernetes.log_store``) into the run directory: raw, resumable, each byte once.

This is the shared volume, and what volumes and buckets (``log_parts``) have in common.

A folder of the store is of one start of one container; its name came with that start's own record, so whose it is was proved before anything
is read. A stream of the store and its copy have the same bytes at the same places: how long the copy is, is the cursor, and a killed copy goes
on there. ``end.json`` says how long each stream is in all; without it nobody knows whether more comes.

What lies on a volume may have been changed by any job that mounts it: names that lead out of the store, links and pipes are not followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import JobSpec, decoding, numbers
from rankfall.model.log_store import log_store_place
from rankfall.model.patterns import anchored
from rankfall.observe.log_end import END, MAX_END, End, decode_end
from rankfall.observe.log_parts import Bucket, PartsCopy
from rankfall.store.append import Counted, StreamAppender
from rankfall.store.content import open_regular
from rankfall.store.home import replace_file
from rankfall.store.stream import IndexReader

# Beside the streams of an instance: which folder of the store is its.
MARK: Final = "log-store.json"
# As an environment variable: where this machine sees the store, when that is another path than the pods'.
AT: Final = "RANKFALL_LOG_STORE_AT"
_NAME: Final = anchored(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){3}", limit=1_024)
_MAX_NAME: Final = 400
_FILE: Final = anchored(r"([0-9]{1,9}\.(?:out|err))-([0-9]{15})\.log", limit=256)
_BLOCK: Final = 1 << 20


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    done: bool = False
    # Of a bucket: the next part.
    at: int = 0


class StoreCopy:
    """One folder of a store into the folder of an instance.

    Args:
        root: of the store, as this machine sees it.
        name: of the folder below the root.
        target: of the instance's streams.

    Attributes:
        at: always 0: the copy's own length is the cursor.
        complete: every stream is here to the end that its writer wrote down.
    """

    def __init__(self, root: Path, name: str, target: Path) -> None:
        self.at = 0
        self.name = name
        self.target = target
        self.complete = False
        self._root = root
        self._held: dict[str, Counted] = {}

    def poll(self) -> int:
        """Copy what is new; how many bytes that were.

        Raises:
            OSError: it cannot be read, or not be stored.
        """
        source = self._source()
        if source is None or self.complete:
            return 0
        # Looked for first: what it speaks of was written before it.
        end = _end_of(source)
        copied = sum(self._stream(stream, parts) for stream, parts in _streams(source).items())
        if end is not None and all(self._size(stream) >= size for stream, size in end.sizes.items()):
            self.complete = True
        return copied

    def _source(self) -> Path | None:
        """The folder, where it is there and lies in the store."""
        root = Path(os.path.realpath(self._root))
        found = Path(os.path.realpath(root / self.name))
        return found if found.is_dir() and found.is_relative_to(root) else None

    def _stream(self, stream: str, parts: dict[int, Path]) -> int:
        newest = max(parts)
        if stream in self._held and newest + parts[newest].stat().st_size <= self._size(stream):
            return 0
        appender = StreamAppender(self.target / stream, counted=self._held.get(stream))
        began = appender.size
        try:
            for start in sorted(parts):
                if start > appender.size:
                    # A file between is not to be seen yet.
                    break
                _copy(parts[start], start, appender)
        finally:
            self._held[stream] = appender.counted
            appender.close()
        return appender.size - began

    def _size(self, stream: str) -> int:
        held = self._held.get(stream)
        return 0 if held is None else held.size


def _copy(path: Path, start: int, appender: StreamAppender) -> None:
    """What a file has behind the end of the copy, chunk by chunk with their stamps."""
    fd = open_regular(path, links=False)
    try:
        index = IndexReader(path)
        while data := os.pread(fd, _BLOCK, appender.size - start):
            for stamp, piece in _stamped(index, appender.size - start, data):
                appender.write(piece, stamp)
    finally:
        os.close(fd)


def _stamped(index: IndexReader, offset: int, data: bytes) -> Iterator[tuple[int | None, bytes]]:
    """Pieces of a block with the stamp of the chunk that each is of."""
    number = max(0, index.find(offset))
    rows = index.rows(number)
    at, stamp = offset, rows[0].stamp if rows and rows[0].offset <= offset else None
    end = offset + len(data)
    while rows:
        for row in rows:
            if row.offset >= end:
                yield stamp, data[at - offset :]
                return
            if row.offset > at:
                yield stamp, data[at - offset : row.offset - offset]
                at = row.offset
            stamp = row.stamp
        number += len(rows)
        rows = index.rows(number)
    yield stamp, data[at - offset :]


def _streams(source: Path) -> dict[str, dict[int, Path]]:
    found: dict[str, dict[int, Path]] = {}
    for entry in source.iterdir():
        match = _FILE.fullmatch(entry.name)
        if match is not None:
            found.setdefault(match[1], {})[numbers.matched(match[2])] = entry
    return found


def _end_of(source: Path) -> End | None:
    try:
        fd = open_regular(source / END, links=False)
    except OSError:
        return None
    try:
        return decode_end(os.read(fd, MAX_END))
    except OSError:
        return None
    finally:
        os.close(fd)


class Volume:
    """The log store of a job, where this machine mounts it.

    Args:
        root: a folder.
    """

    at_once: Final = 1
    # Seconds of pause for each that a look took.
    rest: Final = 9.0
    # NFS shows what is new after a minute: seconds without news after a container's end.
    patience_s: Final = 75.0

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def visible(self) -> bool:
        """Whether it is there."""
        return self._root.is_dir()

    def copy(self, name: str, target: Path, *, at: int) -> StoreCopy:  # noqa: ARG002 - as of a bucket
        """The copy of one folder."""
        return StoreCopy(self._root, name, target)


Source = Volume | Bucket
Copy = StoreCopy | PartsCopy


def source_of(spec: JobSpec) -> Source | None:
    """The job's log store as this machine sees it; None = the job has none, or only its pods see it."""
    if spec.kubernetes.log_store is None:
        return None
    place = log_store_place(spec.kubernetes.log_store)
    if place.kind == "s3":
        return Bucket(place.path)
    given = os.environ.get(AT)
    if given:
        return Volume(Path(given))
    return Volume(Path(place.path)) if place.kind == "file" else None


def how_to_see(spec: JobSpec) -> str:
    """What makes a store visible that this machine does not see."""
    if (spec.kubernetes.log_store or "").startswith("s3://"):
        return "install rankfall[obstore]"
    return f"mount the volume and give {AT}=DIR; or run this where it is mounted"


class StoreCopies:
    """All copies of one attempt.

    Args:
        logs: folder of the attempt's streams.
        source: the store, as this machine sees it; None = it does not.
    """

    def __init__(self, logs: Path, source: Source | None) -> None:
        self.visible = source is not None and source.visible
        self.source = source if self.visible else None
        self._logs = logs
        self._copies: dict[Path, Copy] = {}
        self._unseen: set[Path] = set()
        # The next part of each, as it is written down.
        self._kept: dict[Path, int] = {}

    def load(self) -> None:
        """Take up what earlier processes began."""
        for path in self._logs.glob(f"*/*/{MARK}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                mark = decoding.decode(path.read_bytes(), kind=_Mark)
                if good_name(mark.name) and mark.at >= 0:
                    self._open(path.parent, mark)

    def add(self, target: Path, name: str) -> None:
        """The lines of an instance's ranks are in this folder of the store, as its own record says.

        Raises:
            OSError: that cannot be written down.
        """
        if target in self._copies or target in self._unseen or not good_name(name):
            return
        mark = _Mark(name=name)
        replace_file(target / MARK, msgspec.json.encode(mark))
        self._open(target, mark)

    def _open(self, target: Path, mark: _Mark) -> None:
        if self.source is None:
            if not mark.done:
                self._unseen.add(target)
            return
        copy = self._copies[target] = self.source.copy(mark.name, target, at=mark.at)
        copy.complete = mark.done
        self._kept[target] = mark.at

    def of(self, target: Path) -> Copy | None:
        """The copy into this folder; None = its lines are in no store that this machine sees."""
        return self._copies.get(target)

    def unseen(self, target: Path) -> bool:
        """Whether lines of this folder are in a store that this machine does not see."""
        return target in self._unseen

    def poll_one(self, copy: Copy) -> int:
        """Copy what is new of one, and write down how far that is; how many bytes that were.

        Raises:
            OSError: it cannot be copied.
        """
        try:
            return copy.poll()
        finally:
            if copy.complete or copy.at != self._kept.get(copy.target):
                replace_file(
                    copy.target / MARK, msgspec.json.encode(_Mark(name=copy.name, done=copy.complete, at=copy.at))
                )
                self._kept[copy.target] = copy.at

    @property
    def open(self) -> list[Copy]:
        """Those that are not complete."""
        return [copy for copy in self._copies.values() if not copy.complete]


def good_name(name: str) -> bool:
    """Whether a folder's name is one that a wrapper gives."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None
