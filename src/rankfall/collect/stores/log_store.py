"""Copies streams from a job's log store (volume or bucket) into the run directory.

A folder belongs to one start of one container; its name came in that start's own record. The length of the
copy is the cursor, so a killed copy continues; without end.json nobody knows whether more comes. Names
that lead out of the store, links and pipes are not followed. StoreWatch copies in threads while pods are
collected, and reports a store that this machine does not see.
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
                if is_store_folder_name(mark.name) and mark.at >= 0:
                    self._open(path.parent, mark)

    def add(self, target: Path, name: str) -> None:
        """The lines of an instance's ranks are in this folder of the store, as its own record says.

        Raises:
            OSError: that cannot be written down.
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


def is_store_folder_name(name: str) -> bool:
    """Whether a folder's name is one that a wrapper gives."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


# Between two looks at all folders, seconds; more where a look takes long.
POLL_INTERVAL_S: Final = 1.0
# How long an ended container's folder may stand still without an end, or give no answer, before it is given up, seconds.
PATIENCE_S: Final = 75.0


class StoreWatch:
    """The copies of one attempt.

    Args:
        run_dir: the run.
        attempt: counted from 1.
        troubles: takes difficulties.
    """

    def __init__(self, run_dir: RunDir, *, attempt: int, troubles: ProblemReporter) -> None:
        self.copies = StoreCopies(run_dir.logs_dir / f"attempt-{attempt}", source_of(run_dir.spec))
        self._how = how_to_see(run_dir.spec)
        self._where = run_dir.spec.kubernetes.log_store
        self._troubles = troubles
        # When each grew, and when the newest look at it that got an answer began.
        self._grew: dict[Path, float] = {}
        self._looked: dict[Path, float] = {}
        # Since when each look at it has got none.
        self._deaf: dict[Path, float] = {}
        if self._where is not None:
            self.copies.load()

    @property
    def accepting(self) -> StoreCopies | None:
        """Takes the folders that records name; None for a job without a store, whatever its records say."""
        return None if self._where is None else self.copies

    async def run(self) -> None:
        """Copy until cancelled."""
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
        """Copy what is new of one; false = it could not be had."""

        def look() -> tuple[float, int]:
            return time.monotonic(), self.copies.poll_one(copy)

        try:
            began, count = await asyncio.get_running_loop().run_in_executor(pool, look)
        except OSError as error:
            text = f"{copy.name} of the log store cannot be copied: {error_text(error)}; it is tried again"
            self._troubles.say("log store", text)
            self._deaf.setdefault(copy.target, time.monotonic())
            return False
        self._deaf.pop(copy.target, None)
        self._looked[copy.target] = began
        if count:
            self._grew[copy.target] = time.monotonic()
        return True

    async def ended(self, folder: Path) -> bool:
        """Wait for the copy of an instance whose container has ended; false = it is not all here."""
        if self.copies.unseen(folder):
            self._troubles.say(
                "log store",
                f"lines of ranks are in {self._where}, which this machine does not see: {self._how}; "
                "rankfall logs --log-source store takes them in then",
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
                    f"{copy.name} in the log store has no end that its writer wrote: lines of ranks may be missing",
                )
                return False
            deaf = self._deaf.get(copy.target)
            if deaf is not None and time.monotonic() - max(deaf, quiet) > PATIENCE_S:
                self._troubles.say(
                    "log store end",
                    f"{copy.name} in the log store cannot be read to its end; rankfall logs --log-source store takes in what it has later",
                )
                return False
            await asyncio.sleep(POLL_INTERVAL_S / 4)
        return True
