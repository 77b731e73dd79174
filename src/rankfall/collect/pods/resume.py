"""Resume cursor of one container log: each line is stored once, even after a kill.

``cursor.jsonl`` logs commits; bytes after the last are cut off and arrive again.
"""

from __future__ import annotations

import base64
import contextlib
import os
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Final

import msgspec

from rankfall.collect.pods.recent_lines import Overlap, Run
from rankfall.model import decoding
from rankfall.model.patterns import anchored
from rankfall.rundir.cluster.log_routes import StampParser
from rankfall.rundir.cluster.marks import CURSOR_NAME, Chunk, CursorRow
from rankfall.rundir.lease import make_folder, private, write_file

# Streams from a container's log.
_OURS: Final = anchored(r"(?:slot|r[0-9]+)\.out\.(?:log|idx)", limit=256)
# Bytes at which the file is rewritten.
_COMPACT: Final = 4 << 20
# Seconds by which a node's clock may be set back; less above 2 MB a second.
MARGIN_S: Final = 30
# Consecutive streams inside known lines before the margin halves each time.
PATIENCE: Final = 6
_NS: Final = 1_000_000_000


class Cursor:
    """Position in one instance's log; opening cuts the streams to the last commit.

    ``closed`` is None while lines may follow; ``lost_track`` means that later lines may be missing.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._path = folder / CURSOR_NAME
        self.sizes: dict[str, int] = {}
        self.last: int | None = None
        self.closed: str | None = None
        self.printed: dict[str, tuple[int, int]] | None = None
        self.settled = False
        self.lines = self.repeated = self.gaps = 0
        self._second: int | None = None
        self._overlap = Overlap(folder)
        self._unwritten: list[Run | Chunk] = []
        self.lost_track = False
        # Expected lines, and how many arrived.
        self._expected = array("I")
        self._at = 0
        self._fruitless = self._before = 0
        self._size = self._load()
        _cut(folder, self.sizes)
        self._fd = private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.ftruncate(self._fd, self._size)

    # -- resuming

    @property
    def since(self) -> int | None:
        """Second to request the log from; None for the beginning."""
        if self._second is None:
            return None
        forgotten = self._overlap.forgotten
        known = forgotten + 1 if forgotten is not None else 0
        margin = MARGIN_S >> max(0, self._stuck - PATIENCE)
        return max(0, min(self._second, max(self._second - margin, known)))

    @property
    def _stuck(self) -> int:
        """Returns how often a reopened log ended before a new line, less reopenings with new lines."""
        if self.expecting:
            return self._fruitless + 1
        return max(0, self._fruitless - 1) if self.lines > self._before else self._fruitless

    def newest(self, count: int) -> array[int]:
        """Returns checksums of the last lines; none if two are equal and so ambiguous."""
        found = self._overlap.newest(count)
        return found if len(set(found)) == len(found) else array("I")

    def expect_overlap(self, newest: array[int] | None = None) -> None:
        """Prepares for a reopened log, which begins with one of ``newest``, or at ``since``."""
        since = self.since or 0
        self._fruitless, self._before = self._stuck, self.lines
        self._expect(self._overlap.since(since) if newest is None else newest)

    def expect_repetition(self, line: bytes, second: int) -> None:
        """Prepares for known lines that the open log repeats from this one on, if it is one."""
        known = self._overlap.since(second)
        if zlib.crc32(line) in known:
            self._expect(known)

    def _expect(self, lines: array[int]) -> None:
        self.lost_track = False
        self._expected, self._at = lines, 0

    @property
    def expecting(self) -> bool:
        """True if known lines may still arrive again."""
        return self._at < len(self._expected)

    def expects(self, line: bytes) -> bool:
        """True if this line may be a known one."""
        return self._next(line, zlib.crc32(line)) is not None

    def taken_last(self) -> frozenset[int]:
        """Returns checksums of the last lines as from the API; none of a complete log."""
        return frozenset(self._overlap.since(0))

    def repeats(self, line: bytes) -> bool:
        """True if the reopened log repeats this line; call in order while ``expecting``.

        Rotated files lack their first lines; later known ones are still skipped.
        """
        found = zlib.crc32(line)
        if self._expected[self._at] != found:
            at = self._next(line, found)
            if at is None:
                # This line and all following ones are new.
                self._expected, self._at = array("I"), 0
                self.lost_track = True
                return False
            self._at = at
        self._at += 1
        self.repeated += 1
        return True

    def _next(self, line: bytes, found: int) -> int | None:
        stamp, _ = StampParser().split(line)
        if stamp is not None and stamp // _NS > (self._overlap.top or 0):
            # Among a million checksums an accidental match occurs.
            return None
        try:
            return self._expected.index(found, self._at)
        except ValueError:
            return None

    # -- committing

    def take(self, lines: Sequence[tuple[int, int]]) -> None:
        """Remembers lines in order: (whole second, checksum of the line as from the API)."""
        if not lines:
            return
        self._second = lines[-1][0]
        run = Run(*zip(*lines, strict=True))
        self._overlap.add(run)
        self._unwritten.append(run)
        self._forget(self._second)

    def take_chunk(self, data: bytes, *, lines: int, second: int, high: int, low: int) -> None:
        """Remembers a chunk of whole lines; ``second`` is that of its last line.

        Raises:
            OSError: The chunk could not be stored.
        """
        self._unwritten.append(self._overlap.store(data, lines=lines, high=high, low=low))
        self._second = second
        self._forget(second)

    def _forget(self, second: int) -> None:
        # The clock may be set back later.
        self._overlap.forget(before=(self._overlap.top or 0) - MARGIN_S, newest=second)

    def commit(self, sizes: Mapping[str, int]) -> None:
        """Records that the streams have these lengths and hold all remembered lines.

        Raises:
            OSError: A write failed; the next commit retries.
        """
        self._append(self._rows(self._unwritten, sizes))
        self.sizes.update(sizes)
        self._unwritten.clear()
        if self.closed == "complete":
            # These lines prove another source that continues a lost log.
            self._overlap.clear()
        if self._size > _COMPACT:
            self._compact()

    def close(self) -> None:
        """Closes the files; may be called again."""
        self._overlap.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rows(self, taken: Sequence[Run | Chunk], sizes: Mapping[str, int]) -> bytes:
        """Returns at least one row about these lines."""
        groups: list[tuple[Run | None, tuple[Chunk, ...]]] = []
        for chunks, group in groupby(taken, key=lambda one: isinstance(one, Chunk)):
            if chunks:
                groups.append((None, tuple(one for one in group if isinstance(one, Chunk))))
            else:
                run = Run((), ())
                for one in group:
                    if isinstance(one, Run):
                        run.extend(one)
                groups.append((run, ()))
        rows = (self._row(run, chunks, sizes) for run, chunks in groups or [(None, ())])
        return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)

    def _row(self, run: Run | None, chunks: tuple[Chunk, ...], sizes: Mapping[str, int]) -> CursorRow:
        return CursorRow(
            second=self._second,
            forgotten=self._overlap.forgotten,
            seconds=_counted(run.seconds) if run is not None else (),
            sums=base64.b64encode(run.sums.tobytes()).decode() if run is not None else "",
            chunks=chunks,
            sizes=dict(sizes),
            last=self.last,
            closed=self.closed,
            lines=self.lines,
            repeated=self.repeated,
            gaps=self.gaps,
            printed=self.printed,
            settled=self.settled,
        )

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            os.ftruncate(self._fd, self._size)
            raise OSError(28, "No space left on device", str(self._path))
        self._size += written

    def _compact(self) -> None:
        temporary = self._path.with_suffix(".new")
        data = self._rows(self._overlap.held(), self.sizes)
        with contextlib.suppress(OSError):
            write_file(temporary, data)
            temporary.replace(self._path)
            os.close(self._fd)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = len(data)

    def _load(self) -> int:
        """Reads all whole rows. Returns their size in bytes."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        good = 0
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            try:
                row = decoding.decode(line, kind=CursorRow)
                sums = array("I", base64.b64decode(row.sums, validate=True))
                run = Run(chain.from_iterable(repeat(second, count) for second, count in row.seconds), sums)
            except ValueError:
                break
            good += len(line)
            self._overlap.add(run)
            for chunk in row.chunks:
                self._overlap.add(chunk)
            self._overlap.forgotten = row.forgotten
            self._second, self.last, self.closed = row.second, row.last, row.closed
            self.sizes.update(row.sizes)
            self.lines, self.repeated, self.gaps = row.lines, row.repeated, row.gaps
            self.printed, self.settled = row.printed, row.settled
            self._forget(self._second or 0)
        self._overlap.check()
        return good


def _counted(seconds: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple((second, sum(1 for _ in run)) for second, run in groupby(seconds))


def _cut(folder: Path, sizes: Mapping[str, int]) -> None:
    """Cuts off uncommitted bytes of a process that was killed between store and commit."""
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            # Rank streams from a log store have process ordinals as names.
            continue
        size = sizes.get(path.name, 0)
        if path.stat().st_size > size:
            os.truncate(path, size)
