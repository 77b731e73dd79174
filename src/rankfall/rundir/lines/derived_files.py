"""Writes rank-00000.log files and log-allranks_0.out from the raw streams.

log-allranks_0.out is append-only, so tail works. Batches are recorded first: after a kill exactly the missing
is appended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import msgspec

from rankfall.model import StoreError, decoding
from rankfall.model.patterns import anchored
from rankfall.rundir.lease import append_to, private, write_file
from rankfall.rundir.lines.follow import LineTail
from rankfall.rundir.lines.merge import MergeInput, View, merge, open_view
from rankfall.rundir.lines.query import LineQuery
from rankfall.rundir.lines.reader import Forward
from rankfall.rundir.streams.content import open_content

if TYPE_CHECKING:
    from rankfall.rundir.directory import RunDir

ALL_RANKS: Final = "log-allranks_0.out"
_RANK_LOG: Final = anchored(r"rank-[0-9]{5,9}\.log", limit=64)
_MEMORY: Final = 64 << 20
_OPEN_FILES: Final = 100


def write_derived(run_dir: RunDir) -> list[str]:
    """Writes a file for each rank and one for all ranks; returns problem messages.

    Lines are merged by timestamp within each attempt. The common file has ``[attempt A]`` lines and prefixes
    ``[rank N] `` or ``[slot S] ``.

    Raises:
        StoreError: The files cannot be written.
    """
    problems: list[str] = []
    views = open_view(run_dir, LineQuery(attempt="all"), problems)
    try:
        with _Outputs(run_dir.path) as outputs:
            for attempt in sorted({view.name.attempt for view in views}):
                outputs.begin(attempt)
                _one_attempt([view for view in views if view.name.attempt == attempt], outputs, problems)
            outputs.publish()
    except OSError as error:
        raise StoreError(
            f"cannot write the derived logs in {run_dir.path}: {error.strerror or error}",
            hint=f"free space, or read the raw streams in {run_dir.logs_dir}",
        ) from error
    return problems


def derived_files(run_dir: RunDir) -> list[Path]:
    """Existing derived files, with the file of all ranks last."""
    found = sorted(path for path in run_dir.path.glob("rank-*.log") if _RANK_LOG.fullmatch(path.name))
    return [*found, *(path for path in (run_dir.path / ALL_RANKS,) if path.exists())]


def rank_log(rank: int) -> str:
    """Name of a rank's derived file."""
    return f"rank-{rank:05d}.log"


def _one_attempt(views: list[View], outputs: _Outputs, problems: list[str]) -> None:
    block = _MEMORY // max(1, len(views))
    feeds = [
        MergeInput(number, view.name, Forward(view.name.path, block=block, whole=True))
        for number, view in enumerate(views)
    ]
    for number, span in merge(feeds):
        view = views[number]
        for rank, data in view.ranges.pieces(span.offset, span.data):
            outputs.write(rank, view.name.slot, data, source=view.name.stream)
    problems.extend(source.problem for source in feeds if source.problem)


def begin_mark(attempt: int) -> bytes:
    """Line that begins this attempt in the file of all ranks."""
    return b"[attempt %d]\n" % attempt


def line_prefix(rank: int | None, slot: int) -> bytes:
    """Prefix of each line in the file of all ranks."""
    return b"[slot %d] " % slot if rank is None else b"[rank %d] " % rank


class _Outputs:
    """Files under temporary names, with a limit on open ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._suffix = f".{os.getpid()}.{os.urandom(4).hex()}"
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()
        # Source of each file's unfinished last line, which gets an LF before other data.
        self._inside: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._file(ALL_RANKS)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        for name in self._inside:
            with contextlib.suppress(OSError):
                self._temporary(name).unlink(missing_ok=True)

    def begin(self, attempt: int) -> None:
        """Marks the start of this attempt's lines in the file of all ranks."""
        self._append(ALL_RANKS, begin_mark(attempt), "", ends=True)

    def write(self, rank: int | None, slot: int, data: bytes, *, source: str) -> None:
        prefix = line_prefix(rank, slot)
        going_on = self._inside.get(ALL_RANKS) == source
        ends = data.endswith(b"\n")
        text = (data[:-1] if ends else data).replace(b"\n", b"\n" + prefix)
        self._append(ALL_RANKS, (b"" if going_on else prefix) + text + (b"\n" if ends else b""), source, ends=ends)
        if rank is not None:
            self._append(rank_log(rank), data, source, ends=ends)

    def publish(self) -> None:
        """Gives each file its name."""
        for name, inside in self._inside.items():
            if inside is not None:
                self._file(name).write(b"\n")
        for file in self._open.values():
            file.close()
        self._open.clear()
        for name in list(self._inside):
            self._temporary(name).replace(self._folder / name)

    def _append(self, name: str, data: bytes, source: str, *, ends: bool) -> None:
        file = self._file(name)
        inside = self._inside[name]
        if inside is not None and inside != source:
            file.write(b"\n")
        file.write(data)
        self._inside[name] = None if ends else source

    def _file(self, name: str) -> BinaryIO:
        file = self._open.get(name)
        if file is not None:
            self._open.move_to_end(name)
            return file
        if len(self._open) >= _OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        file = append_to(self._temporary(name))
        self._open[name] = file
        self._inside.setdefault(name, None)
        return file

    def _temporary(self, name: str) -> Path:
        return self._folder / f".{name}{self._suffix}"


STATE: Final = "log-dir.json"
# Seconds that a line waits for earlier ones: the file cannot be reordered.
HOLD_S: Final = 1.0
_LOCK: Final = "log-dir.lock"
_BLOCK: Final = 1 << 20
_BUFFER: Final = 256 << 10
# Bytes, and places, of one batch.
_BATCH_BYTES: Final = 4 << 20
_BATCH_PLACES: Final = 4096


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Whole lines of one rank in one stream, from offset ``first`` up to offset ``end``."""

    stream: str
    first: int
    end: int
    rank: int | None
    slot: int
    attempt: int


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the file of all ranks.

    Attributes:
        size: File size before ``batch``, bytes.
        attempt: Attempt before ``batch``; 0 if empty.
        batch: Batch appended next, or last.
        offsets: Offset in each stream after the batch, bytes.
        complete: True if the run is over and the file complete.
    """

    size: int = 0
    attempt: int = 0
    batch: tuple[Place, ...] = ()
    offsets: dict[str, int] = {}
    complete: bool = False


class AllRanksFile:
    """The file of all ranks of one run; a lock admits one writer at a time.

    ``hold``: seconds that a line waits for earlier ones.
    """

    def __init__(
        self, run_dir: RunDir, folder: Path, *, clock: Callable[[], int] = time.time_ns, hold: float = HOLD_S
    ) -> None:
        self.path = folder / ALL_RANKS
        self._run_dir = run_dir
        self._clock = clock
        self._hold = hold
        self._known: object = None
        self._now = Appended()
        self._size = 0
        self._tail: LineTail | None = None
        # Start of an unfinished line beyond MAX_LINE, by stream.
        self._long: dict[str, Place] = {}

    def advance(self, *, final: bool = False) -> None:
        """Appends the lines that are due; with ``final`` all remaining.

        Raises:
            OSError: Unwritable now; the next call resumes.
            StoreError: The run cannot be read.
        """
        with self._alone():
            try:
                self._advance(final=final)
            except BaseException:
                self._tail = None
                raise

    def _advance(self, *, final: bool) -> None:
        if self._tail is None or self._signature() != self._known or self._file_size() < self._size:
            self._resume()
        if self._now.complete or self._tail is None:
            return
        batch: list[Place] = []
        bytes_of_batch = 0
        for place in self._places(self._tail, final=final):
            last = batch[-1] if batch else None
            if last is not None and last.end == place.first and _same(last, place):
                batch[-1] = msgspec.structs.replace(last, end=place.end)
            else:
                batch.append(place)
            bytes_of_batch += place.end - place.first
            if bytes_of_batch >= _BATCH_BYTES or len(batch) >= _BATCH_PLACES:
                self._append(tuple(batch))
                batch, bytes_of_batch = [], 0
        if batch:
            self._append(tuple(batch))
        if final:
            self._keep(
                Appended(size=self._size, attempt=_attempt_after(self._now), offsets=self._now.offsets, complete=True)
            )

    def _places(self, tail: LineTail, *, final: bool) -> Iterator[Place]:
        for view, span, _ in tail.pieces(final=final):
            name = view.name
            begun = self._long.pop(name.stream, None)
            end = span.offset + len(span.data)
            if begun is not None or span.cut:
                place = begun or Place(
                    name.stream, span.offset, end, view.ranges.at(span.offset), name.slot, name.attempt
                )
                place = msgspec.structs.replace(place, end=end)
                if span.cut:
                    self._long[name.stream] = place
                else:
                    yield place
                continue
            offset = span.offset
            for rank, data in view.ranges.pieces(offset, span.data):
                yield Place(name.stream, offset, offset + len(data), rank, name.slot, name.attempt)
                offset += len(data)
        if final:
            yield from self._long.values()
            self._long.clear()

    def _append(self, batch: tuple[Place, ...]) -> None:
        offsets = self._now.offsets | {place.stream: place.end for place in batch}
        self._keep(Appended(size=self._size, attempt=_attempt_after(self._now), batch=batch, offsets=offsets))
        self._write(skip=0)

    def _write(self, *, skip: int) -> None:
        """Appends the batch without its first ``skip`` bytes, which are already there."""
        with self.path.open("ab", buffering=_BUFFER) as file:
            for text in self._text():
                if skip < len(text):
                    file.write(text[skip:])
                skip = max(0, skip - len(text))
            file.flush()
            self._size = file.tell()

    def _text(self) -> Iterator[bytes]:
        """Yields the batch; every call yields the same bytes."""
        attempt = self._now.attempt
        for place in self._now.batch:
            if place.attempt != attempt:
                attempt = place.attempt
                yield begin_mark(attempt)
            prefix = line_prefix(place.rank, place.slot)
            yield prefix
            with open_content(self._run_dir.path / place.stream) as content:
                offset = place.first
                while offset < place.end:
                    data = content.read(offset, min(_BLOCK, place.end - offset))
                    if not data:
                        raise OSError(None, f"{place.stream} is shorter than before")
                    offset += len(data)
                    if offset < place.end:
                        yield data.replace(b"\n", b"\n" + prefix)
                    else:
                        yield data.removesuffix(b"\n").replace(b"\n", b"\n" + prefix) + b"\n"

    def _resume(self) -> None:
        """Resumes after any process and finishes its last batch, or starts the file again."""
        self._tail = None
        self._long.clear()
        now = self._stored()
        size = self._file_size()
        if now is None or size < now.size:
            self.path.open("wb").close()
            self._size = 0
            self._keep(Appended())
        else:
            self._now, self._known, self._size = now, self._signature(), size
            if now.batch:
                self._write(skip=size - now.size)
        self._tail = LineTail(
            self._run_dir,
            LineQuery(attempt="all"),
            clock=self._clock,
            hold=self._hold,
            rank_wait=None,
            starts=self._now.offsets,
            whole=True,
        )

    def _stored(self) -> Appended | None:
        try:
            return decoding.decode((self._run_dir.path / STATE).read_bytes(), kind=Appended)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _keep(self, now: Appended) -> None:
        half = self._run_dir.path / f".{STATE}.half"
        write_file(half, msgspec.json.encode(now))
        half.replace(self._run_dir.path / STATE)
        self._now, self._known = now, self._signature()

    def _signature(self) -> object:
        try:
            found = (self._run_dir.path / STATE).stat()
        except FileNotFoundError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def _file_size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return -1

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        fd = private(self._run_dir.path / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _same(one: Place, other: Place) -> bool:
    return (one.stream, one.rank) == (other.stream, other.rank)


def _attempt_after(now: Appended) -> int:
    return now.batch[-1].attempt if now.batch else now.attempt
