"""Resume cursor of one container log: stores each line exactly once, even when this process is killed.

The API resumes by whole seconds and leaves out older stamps, so a log is reopened some seconds before its
newest stamp and lines taken in that time are skipped once. cursor.jsonl is a log of commits, one after
each appended chunk: lengths of the streams and what was taken. Bytes behind the last commit are cut off at
the next start and come again.
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

from rankfall.collect.pods.line_splitter import StampParser
from rankfall.collect.pods.recent_lines import Overlap, Run
from rankfall.model import decoding
from rankfall.model.patterns import anchored
from rankfall.rundir.cluster.cursor_rows import CURSOR_NAME, Chunk, CursorRow
from rankfall.rundir.lease import make_folder, private, write_file

# Streams that are taken out of a container's log.
_OURS: Final = anchored(r"(?:slot|r[0-9]+)\.out\.(?:log|idx)", limit=256)
# A row is small; the file is written anew when it has grown to this, bytes.
_COMPACT: Final = 4 << 20
# How far a node's clock may be set back, seconds; while the log is open that may be more. Less where that many seconds hold more lines or bytes
# than are remembered, which takes 2 MB a second.
MARGIN_S: Final = 30
# Streams in a row that end inside what was taken before, until less of that is asked for: each one more halves the margin. Ends that come by
# chance stay far below.
PATIENCE: Final = 6
_NS: Final = 1_000_000_000


class Cursor:
    """The cursor of one instance.

    Args:
        folder: of the instance's streams; made when missing. Streams in it are cut to the last commit.

    Attributes:
        sizes: committed length of each stream by file name.
        last: stamp of the newest line, nanoseconds since the epoch by the node's clock.
        closed: why nothing more will come; None while more may.
        lines, repeated, gaps: lines taken, lines passed over because they came again, places where lines are missing.
        printed: (lines, bytes) of each stream that its wrapper counted; None while it has not said so.
        settled: what is stored was compared with that, and what is missing written down.
        lost_track: the log was opened anew, and the newest line that was taken did not come again: lines after it may be missing.

    Raises:
        OSError: the folder cannot be written.
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
        # What comes again, and how much of it has.
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
        """The second from which the log is to be asked for, seconds since the epoch; None = from the beginning."""
        if self._second is None:
            return None
        forgotten = self._overlap.forgotten
        known = forgotten + 1 if forgotten is not None else 0
        margin = MARGIN_S >> max(0, self._stuck - PATIENCE)
        return max(0, min(self._second, max(self._second - margin, known)))

    @property
    def _stuck(self) -> int:
        """How many streams ended inside what was taken before, less those that brought new lines."""
        if self.expecting:
            return self._fruitless + 1
        return max(0, self._fruitless - 1) if self.lines > self._before else self._fruitless

    def newest(self, count: int) -> array[int]:
        """Checksums of the lines taken last, at most so many; none where two of them are alike: they could not tell where a log goes on."""
        found = self._overlap.newest(count)
        return found if len(set(found)) == len(found) else array("I")

    def expect_overlap(self, newest: array[int] | None = None) -> None:
        """The log was opened anew: what was taken before comes again, in the same order.

        Args:
            newest: it was opened from one of these lines on, of ``newest``; None = from ``since``.
        """
        self.lost_track = False
        since = self.since or 0
        self._fruitless, self._before = self._stuck, self.lines
        self._expected, self._at = self._overlap.since(since) if newest is None else newest, 0

    @property
    def expecting(self) -> bool:
        """Whether lines that were taken before may still come again."""
        return self._at < len(self._expected)

    def expects(self, line: bytes) -> bool:
        """Whether this line may come again."""
        return self._next(line, zlib.crc32(line)) is not None

    def taken_last(self) -> frozenset[int]:
        """Checksums of the lines that were taken last, as the API gave them; none of a log that is complete."""
        return frozenset(self._overlap.since(0))

    def repeats(self, line: bytes) -> bool:
        """Whether this line of the reopened log was taken before. Asked once for each line, in order, while ``expecting``.

        Where the next expected line does not come, the file was rotated meanwhile: lines from its head are missing from what is served. Those
        of the rest that were taken before are still passed over.
        """
        found = zlib.crc32(line)
        if self._expected[self._at] != found:
            at = self._next(line, found)
            if at is None:
                # None of the rest: this line is new, and with it all that follows.
                self._expected, self._at = array("I"), 0
                self.lost_track = True
                return False
            self._at = at
        self._at += 1
        self.repeated += 1
        return True

    def _next(self, line: bytes, found: int) -> int | None:
        """Where a line with this checksum is among those that are still expected."""
        stamp, _ = StampParser().split(line)
        if stamp is not None and stamp // _NS > (self._overlap.top or 0):
            # Among a million checksums a foreign one is found now and then; a line that is newer than all of them is none of theirs.
            return None
        try:
            return self._expected.index(found, self._at)
        except ValueError:
            return None

    # -- committing

    def take(self, lines: Sequence[tuple[int, int]]) -> None:
        """Remember lines that were taken: (whole second, checksum of the line as the API gave it), in order."""
        if not lines:
            return
        self._second = lines[-1][0]
        run = Run(*zip(*lines, strict=True))
        self._overlap.add(run)
        self._unwritten.append(run)
        self._forget(self._second)

    def take_chunk(self, data: bytes, *, lines: int, second: int, high: int, low: int) -> None:
        """Remember a chunk of whole lines as it came, each with a stamp.

        Args:
            data: the bytes.
            lines: how many.
            second: whole second of the last one.
            high: newest second of all.
            low: oldest second of all.

        Raises:
            OSError: it could not be kept.
        """
        self._unwritten.append(self._overlap.store(data, lines=lines, high=high, low=low))
        self._second = second
        self._forget(second)

    def _forget(self, second: int) -> None:
        # By the newest stamp of all: what the clock is set back by later is counted from there.
        self._overlap.forget(before=(self._overlap.top or 0) - MARGIN_S, newest=second)

    def commit(self, sizes: Mapping[str, int]) -> None:
        """Write down that the streams have these lengths now and hold all that was taken.

        Raises:
            OSError: the disk is full or the like; the same rows are written with the next commit.
        """
        self._append(self._rows(self._unwritten, sizes))
        self.sizes.update(sizes)
        self._unwritten.clear()
        if self.closed == "complete":
            # One whose end was lost may be continued from elsewhere, which these lines then prove.
            self._overlap.clear()
        if self._size > _COMPACT:
            self._compact()

    def close(self) -> None:
        """Let go of the files; may be called again."""
        self._overlap.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rows(self, taken: Sequence[Run | Chunk], sizes: Mapping[str, int]) -> bytes:
        """Rows of what was taken, at least one."""
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
        """As few rows as say it all, in place of many."""
        temporary = self._path.with_suffix(".new")
        data = self._rows(self._overlap.held(), self.sizes)
        with contextlib.suppress(OSError):
            write_file(temporary, data)
            temporary.replace(self._path)
            os.close(self._fd)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._size = len(data)

    def _load(self) -> int:
        """Take in the rows that are whole; the number of their bytes."""
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
    """Cut what no commit speaks of: a process was killed between storing and committing."""
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            # Not of the container's log: streams of ranks out of a log store bear the ordinals of their processes.
            continue
        size = sizes.get(path.name, 0)
        if path.stat().st_size > size:
            os.truncate(path, size)
