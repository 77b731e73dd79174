"""Copies streams from a job's log store (volume or bucket) into the run directory.

The copy's length is the cursor. Names outside the store, links and pipes are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from rankfall.collect.background import ProblemReporter, error_text
from rankfall.collect.stores.log_bucket import END, MAX_END, Bucket, End, PartsCopy, decode_end
from rankfall.model import JobSpec, decoding, numbers
from rankfall.model.jobspec.kubernetes import log_store_place
from rankfall.model.patterns import anchored
from rankfall.rundir import RunDir
from rankfall.rundir.layout import replace_file
from rankfall.rundir.streams.content import open_regular
from rankfall.rundir.streams.files import IndexReader
from rankfall.rundir.streams.writer import Counted, StreamAppender

# Names the store folder of an instance.
MARK: Final = "log-store.json"
# Path of the store on this machine, if it differs.
AT: Final = "RANKFALL_LOG_STORE_AT"
_NAME: Final = anchored(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){3}", limit=1_024)
_MAX_NAME: Final = 400
_FILE: Final = anchored(r"([0-9]{1,9}\.(?:out|err))-([0-9]{15})\.log", limit=256)
_BLOCK: Final = 1 << 20


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    done: bool = False
    at: int = 0


class StoreCopy:
    """Copies one store folder into the folder of an instance.

    ``complete``: every stream has the recorded length.
    """

    def __init__(self, root: Path, name: str, target: Path) -> None:
        self.at = 0
        self.name = name
        self.target = target
        self.complete = False
        self._root = root
        self._held: dict[str, Counted] = {}

    def poll(self) -> int:
        """Copies new data and returns its bytes.

        Raises:
            OSError: New data cannot be read or stored.
        """
        source = self._source()
        if source is None or self.complete:
            return 0
        # First: the data that it names was written before it.
        end = _end_of(source)
        copied = sum(self._stream(stream, parts) for stream, parts in _streams(source).items())
        if end is not None and all(self._size(stream) >= size for stream, size in end.sizes.items()):
            self.complete = True
        return copied

    def _source(self) -> Path | None:
        """Folder; None if it is not inside the store."""
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
                    # A file in between is not visible yet.
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
    fd = open_regular(path, links=False)
    try:
        index = IndexReader(path)
        while data := os.pread(fd, _BLOCK, appender.size - start):
            for stamp, piece in _stamped(index, appender.size - start, data):
                appender.write(piece, stamp)
    finally:
        os.close(fd)


def _stamped(index: IndexReader, offset: int, data: bytes) -> Iterator[tuple[int | None, bytes]]:
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
    """The log store of a job as a mounted folder."""

    at_once: Final = 1
    # Pause per second of a poll.
    rest: Final = 9.0
    # Seconds without new data after the end: NFS shows it after a minute.
    patience_s: Final = 75.0

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def visible(self) -> bool:
        """True if the folder exists on this machine."""
        return self._root.is_dir()

    def copy(self, name: str, target: Path, *, at: int) -> StoreCopy:  # noqa: ARG002 - as of a bucket
        """Copy of one folder; ``at``: unused."""
        return StoreCopy(self._root, name, target)


Source = Volume | Bucket
Copy = StoreCopy | PartsCopy


def source_of(spec: JobSpec) -> Source | None:
    """Job's log store on this machine, or None."""
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
    """Returns a hint how to make a store readable that this machine cannot see."""
    if (spec.kubernetes.log_store or "").startswith("s3://"):
        return "install rankfall[obstore]"
    return f"mount the volume and set {AT}=DIR, or run the command on a machine that mounts it"


class StoreCopies:
    """The local copies of one attempt's log files from its log store.

    ``source`` reads the store; None if this machine cannot see the store.
    """

    def __init__(self, logs: Path, source: Source | None) -> None:
        self.visible = source is not None and source.visible
        self.source = source if self.visible else None
        self._logs = logs
        self._copies: dict[Path, Copy] = {}
        self._unseen: set[Path] = set()
        # Next part of each.
        self._kept: dict[Path, int] = {}

    def load(self) -> None:
        """Resumes the copies of earlier processes."""
        for path in self._logs.glob(f"*/*/{MARK}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                mark = decoding.decode(path.read_bytes(), kind=_Mark)
                if is_store_folder_name(mark.name) and mark.at >= 0:
                    self._open(path.parent, mark)

    def add(self, target: Path, name: str) -> None:
        """Records the store folder with an instance's rank lines, as its record names it.

        Raises:
            OSError: The folder's name cannot be stored.
        """
        if target in self._copies or target in self._unseen or not is_store_folder_name(name):
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
        """Copy into the folder ``target``; None if its lines are in no visible store."""
        return self._copies.get(target)

    def unseen(self, target: Path) -> bool:
        """True if lines of this folder are in an invisible store."""
        return target in self._unseen

    def poll_one(self, copy: Copy) -> int:
        """Copies new data of one folder, stores the position, and returns the bytes.

        Raises:
            OSError: New data cannot be copied.
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
        """Copies that are not complete yet."""
        return [copy for copy in self._copies.values() if not copy.complete]


def is_store_folder_name(name: str) -> bool:
    """True if a wrapper may have given this folder name."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


# Least seconds between two polls.
POLL_INTERVAL_S: Final = 1.0
# Seconds that an ended container's folder may stay unchanged or unreadable.
PATIENCE_S: Final = 75.0


class StoreWatch:
    """Polls the copies of one attempt."""

    def __init__(self, run_dir: RunDir, *, attempt: int, troubles: ProblemReporter) -> None:
        self.copies = StoreCopies(run_dir.logs_dir / f"attempt-{attempt}", source_of(run_dir.spec))
        self._how = how_to_see(run_dir.spec)
        self._where = run_dir.spec.kubernetes.log_store
        self._troubles = troubles
        # Last growth, and start of the last successful poll.
        self._grew: dict[Path, float] = {}
        self._looked: dict[Path, float] = {}
        # Time since which all polls fail.
        self._deaf: dict[Path, float] = {}
        if self._where is not None:
            self.copies.load()

    @property
    def accepting(self) -> StoreCopies | None:
        """Receives the folders that records name; None without a store."""
        return None if self._where is None else self.copies

    async def run(self) -> None:
        """Copies until canceled."""
        source = self.copies.source
        if self._where is None or source is None:
            return
        with ThreadPoolExecutor(source.at_once, thread_name_prefix="rankfall-store") as pool:
            while True:
                began = time.monotonic()
                done = await asyncio.gather(*(self._look(copy, pool) for copy in self.copies.open))
                if all(done):
                    self._troubles.over("log store")
                await asyncio.sleep(max(POLL_INTERVAL_S, source.rest * (time.monotonic() - began)))

    async def _look(self, copy: Copy, pool: ThreadPoolExecutor) -> bool:
        """Copies new data of one folder. Returns False if the folder is not available."""

        def look() -> tuple[float, int]:
            return time.monotonic(), self.copies.poll_one(copy)

        try:
            began, count = await asyncio.get_running_loop().run_in_executor(pool, look)
        except OSError as error:
            text = f"{copy.name} of the log store cannot be copied: {error_text(error)}; trying again"
            self._troubles.say("log store", text)
            self._deaf.setdefault(copy.target, time.monotonic())
            return False
        self._deaf.pop(copy.target, None)
        self._looked[copy.target] = began
        if count:
            self._grew[copy.target] = time.monotonic()
        return True

    async def ended(self, folder: Path) -> bool:
        """Waits for the copy of an ended container's instance. Returns False if the copy is incomplete."""
        if self.copies.unseen(folder):
            self._troubles.say(
                "log store",
                f"lines of ranks are in {self._where}, which this machine cannot reach: {self._how}; "
                "then run rankfall logs --log-source store",
            )
            return False
        copy = self.copies.of(folder)
        return copy is None or copy.complete or await self._finished(copy)

    async def _finished(self, copy: Copy) -> bool:
        ended = time.monotonic()
        source = self.copies.source
        patience = PATIENCE_S if source is None else min(PATIENCE_S, source.patience_s)
        while not copy.complete:
            quiet = max(ended, self._grew.get(copy.target, 0.0))
            if self._looked.get(copy.target, 0.0) - quiet > patience:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store has no end mark of its writer: lines of ranks may be missing",
                )
                return False
            deaf = self._deaf.get(copy.target)
            if deaf is not None and time.monotonic() - max(deaf, quiet) > PATIENCE_S:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store cannot be read to its end; run rankfall logs --log-source store later to fetch the rest",
                )
                return False
            await asyncio.sleep(POLL_INTERVAL_S / 4)
        return True
