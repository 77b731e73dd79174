"""``log-allranks_0.out`` of a run that goes on: appended to as lines come, so that whoever tails it sees each line once, and never taken back.

What is about to be appended is written down first, as places in the raw streams. So a process that is killed anywhere is followed by one that
appends exactly what is missing. A line stands there when it is whole and its rank is known, or its attempt is over without one. A file that
was removed or cut is written anew from its beginning; what somebody else appends stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.model import decoding
from rankfall.store.content import open_content
from rankfall.store.derived import ALL_RANKS, begin_mark, line_prefix
from rankfall.store.follow import Follower
from rankfall.store.fs import private, write_file
from rankfall.store.select import LineQuery

if TYPE_CHECKING:
    from rankfall.store.rundir import RunDir

STATE: Final = "log-dir.json"
# How long a line waits for earlier ones of other streams, seconds: it cannot be put in order later.
HOLD_S: Final = 1.0
_LOCK: Final = "log-dir.lock"
_BLOCK: Final = 1 << 20
_BUFFER: Final = 256 << 10
# Bytes of streams, and places in them, that are written down at once.
_BATCH_BYTES: Final = 4 << 20
_BATCH_PLACES: Final = 4096


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Whole lines of one rank in one stream, from ``first`` up to ``end``."""

    stream: str
    first: int
    end: int
    rank: int | None
    slot: int
    attempt: int


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """How far the file is.

    Attributes:
        size: its bytes before ``batch``.
        attempt: whose lines it ends with then; 0 = it is empty.
        batch: what is appended next, or was last.
        offsets: where each stream goes on after the batch.
        complete: the run is over, and all of it is there.
    """

    size: int = 0
    attempt: int = 0
    batch: tuple[Place, ...] = ()
    offsets: dict[str, int] = {}
    complete: bool = False


class AllRanksFile:
    """The file of one run in one folder. Several may have it at once, also of several processes: only one of them writes at a time.

    Args:
        run_dir: the run.
        folder: where the file is; made by its owner.
        clock: nanoseconds since the epoch.
        hold: seconds that a line waits for earlier ones.

    Attributes:
        path: of the file.
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
        self._follower: Follower | None = None
        # Where a line of more than MAX_LINE begins whose end was not seen yet, by stream.
        self._long: dict[str, Place] = {}

    def advance(self, *, final: bool = False) -> None:
        """Append what may be shown now; with ``final`` all that is left, because the run is over.

        Raises:
            OSError: it cannot be written now; the next call goes on where it stopped.
            StoreError: the run cannot be read.
        """
        with self._alone():
            try:
                self._advance(final=final)
            except BaseException:
                self._follower = None
                raise

    def _advance(self, *, final: bool) -> None:
        if self._follower is None or self._signature() != self._known or self._file_size() < self._size:
            self._resume()
        if self._now.complete or self._follower is None:
            return
        batch: list[Place] = []
        bytes_of_batch = 0
        for place in self._places(self._follower, final=final):
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

    def _places(self, follower: Follower, *, final: bool) -> Iterator[Place]:
        for view, span, _ in follower.pieces(final=final):
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
        """Append the batch but for its first bytes, which are there."""
        with self.path.open("ab", buffering=_BUFFER) as file:
            for text in self._text():
                if skip < len(text):
                    file.write(text[skip:])
                skip = max(0, skip - len(text))
            file.flush()
            self._size = file.tell()

    def _text(self) -> Iterator[bytes]:
        """The batch as it stands in the file; the same bytes whenever it is asked for."""
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
                        raise OSError(None, f"{place.stream} is shorter than it was")
                    offset += len(data)
                    if offset < place.end:
                        yield data.replace(b"\n", b"\n" + prefix)
                    else:
                        yield data.removesuffix(b"\n").replace(b"\n", b"\n" + prefix) + b"\n"

    def _resume(self) -> None:
        """Take up what any process left, finishing its last batch; or begin anew."""
        self._follower = None
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
        self._follower = Follower(
            self._run_dir,
            LineQuery(attempt="all"),
            clock=self._clock,
            hold=self._hold,
            patience=None,
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
