"""Stores the log of one container instance: API bytes in, one stream per rank out, each line once.

Lines prefixed by the wrapper go to their rank's stream, records to the record intake, everything else to
the slot's stream. Files are opened when their first bytes come.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.collect.pods.chunks import LEAST, SplitChunk, Splitter, marks_of, rank_of
from rankfall.collect.pods.line_splitter import StampParser
from rankfall.collect.pods.resume import Cursor
from rankfall.kube.kubelet_messages import Complaint, complaint
from rankfall.rundir import StreamAppender
from rankfall.rundir.cluster.log_routes import SLOT_STREAM, Routes, records_within
from rankfall.rundir.streams.writer import Mark


class StreamFiles:
    """Files by the name of the stream, as ``r3.out``.

    Args:
        folder: of the instance.
        on_stream: called when the first bytes of a stream are stored.
    """

    def __init__(self, folder: Path, on_stream: Callable[[], None]) -> None:
        self._folder = folder
        self._on_stream = on_stream
        self._files: dict[str, StreamAppender] = {}

    def append(self, name: str, data: bytes, marks: Iterable[Mark], *, lines: int | None = None) -> dict[str, int]:
        """Append to a stream.

        Args:
            name: of the stream.
            data: may be nothing.
            marks: stamps of its lines.
            lines: newlines in it, where they were counted already.

        Returns:
            Length of each file of the stream, by the file's name.

        Raises:
            OSError: it was not stored as a whole; the files are as before.
        """
        file = self.file(name)
        if data:
            fresh = not file.size
            file.write_marked(data, marks, lines=lines)
            if fresh:
                self._on_stream()
        return {f"{name}.log": file.size, f"{name}.idx": file.index_size}

    def file(self, name: str) -> StreamAppender:
        """The files of a stream, opened or made.

        Raises:
            OSError: that cannot be.
        """
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = StreamAppender(self._folder / name)
        return file

    def close(self) -> None:
        """Let go of all; may be called again."""
        for file in self._files.values():
            file.close()


# A line without an end is stored in parts of this size, so that memory stays bounded.
MAX_PART: Final = 1 << 20
_NS: Final = 1_000_000_000


class Standing(NamedTuple):
    """Whole lines that are stored, and behind them a line without its end: checksum of what is stored of it, and the rest."""

    lines: int
    part: int
    rest: bytes


class InstanceLog:
    """Streams of one container instance.

    Args:
        folder: of the instance's streams.
        on_record: takes a record's line (without its newline) and its stamp; False when it is none of ours after all.
        now: clock of this machine, nanoseconds.
        on_records: called after the records that came together, before what came is committed.
        on_gap: told of lines that could not be had: stamp of the last line before them and of the first one after them; None = from the
            beginning, to the end, or not known.
        ended: whether a record was taken that the wrapper writes last of all.
        on_stream: called when the first bytes of a stream are stored.
        foreign: no wrapper of ours is in the container: what looks like its words is the job's own text. Lines that torchrun gave the number of
            a local rank go to streams of these numbers, as they are.

    Attributes:
        cursor: where to resume; its totals count lines.
        bytes: taken from the API by this object.
        routes: which line goes where.
        at_end: the newest stream was read to an end that the server gave it; set by whoever reads.
        live: what comes now was written just now; set by whoever reads.
        delay_ns: least difference between arrival here and the stamp of the node, of what came live; negative: that node's clock is ahead,
            which anything that arrives proves.
        why: what kept lines from being read, of the gap that is told.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_record: Callable[[bytes, int | None], bool],
        now: Callable[[], int],
        on_records: Callable[[], None] = lambda: None,
        on_gap: Callable[[int | None, int | None], None] | None = None,
        ended: Callable[[], bool] = lambda: False,
        on_stream: Callable[[], None] = lambda: None,
        foreign: bool = False,
    ) -> None:
        self.cursor = Cursor(folder)
        self.bytes = 0
        self.delay_ns: int | None = None
        self.at_end = False
        self.live = False
        self.why: str | None = None
        self.routes = Routes(on_record, foreign=foreign)
        self._now = now
        self._on_records = on_records
        self._on_gap = on_gap
        self._ended = ended
        self._foreign = foreign
        self._files = StreamFiles(folder, on_stream)
        self._stamps = StampParser()
        self._splitter = Splitter(self._stamps, foreign=foreign)
        self._rest = b""
        self._part: _Part | None = None
        # Of the newest stream no whole line has come yet.
        self._fresh = False

    def opened(self, newest: array[int] | None = None) -> None:
        """The log was opened anew from the cursor; an unfinished line of before comes again as a whole.

        Args:
            newest: it was opened from one of these lines on, of ``Cursor.newest``; None = from the cursor's second.
        """
        self._rest = b""
        self._fresh = True
        self.at_end = False
        self.live = False
        if self._part is not None:
            file = self._files.file(self._part.stream)
            file.cut(self._part.size, self._part.index_size)
            self._part = None
        self.cursor.expect_overlap(newest)

    def push(self, data: bytes) -> None:
        """Take bytes as they came.

        Raises:
            OSError: they could not be stored; what was not committed comes again when the log is opened anew.
        """
        self.bytes += len(data)
        end = data.rfind(b"\n") + 1
        if end:
            # Copied once, whatever is before and behind: what comes here is a hundred thousand bytes.
            whole = data if end == len(data) and not self._rest else b"".join((self._rest, memoryview(data)[:end]))
            self._rest = data[end:]
            self._take(whole)
        else:
            self._rest += data
        if len(self._rest) > MAX_PART and not self.cursor.expecting:
            self._store_part(self._rest)
            self._rest = b""

    def continues(self, data: bytes) -> bool | None:
        """Whether the log that was opened anew begins with a line that was taken before. Asked before these bytes are fed.

        Returns:
            None while no whole line has come.
        """
        line, newline, _ = (self._rest + data).partition(b"\n")
        return self.cursor.expects(line) if newline else None

    def joins(self, data: bytes) -> bool | None:
        """As ``continues``, of a log that was opened from one of its newest lines on."""
        known = self.continues(data)
        if not known:
            return known
        stamp, last = self._stamps.split(self._rest + data)[0], self.cursor.last
        # One of the newest moment may be a new line that only looks like one that was taken.
        return stamp is not None and last is not None and stamp < last

    def finish(self) -> Complaint | None:
        """Nothing more comes of this stream: a last line without newline is stored as it is.

        Returns:
            What the kubelet says in its place: that is no line.

        Raises:
            OSError: it could not be stored.
        """
        found = self.complaint()
        if found is None and (self._rest or self._part is not None):
            self._lines([self._rest], whole=False)
            self._rest = b""
        return found

    def complaint(self) -> Complaint | None:
        """What the kubelet says at the end of this stream in the place of a line; it is taken off."""
        found = complaint(self._rest) if self._part is None else None
        if found is not None:
            self._rest = b""
        return found

    def standing(self) -> Standing:
        """How far the log was read: the same before and after a reading that brought nothing."""
        return Standing(self.cursor.lines, 0 if self._part is None else self._part.sum, self._rest)

    def leave(self) -> bool:
        """The log will not be opened again: what is left of the newest stream is stored, where it can only be new.

        Returns:
            Whether all of the log is stored: that stream had come to its end, or the wrapper had said its last word.

        Raises:
            OSError: it could not be stored.
        """
        if self._part is not None or (not self.cursor.expecting and self._stamps.split(self._rest)[0] is not None):
            self.finish()
        return self.at_end or self._ended()

    def held(self) -> dict[str, tuple[int, int]]:
        """Lines and bytes that are stored, by stream: ``slot`` or ``r<rank>``.

        Raises:
            OSError: a stream cannot be read.
        """
        names = [name.removesuffix(".log") for name in self.cursor.sizes if name.endswith(".log")]
        found = {name.removesuffix(".out"): self._files.file(name).counted for name in names}
        return {stream: (counted.lines, counted.size) for stream, counted in found.items()}

    def lose(self, why: str | None = None) -> None:
        """What comes after the newest line could not be had; ``why`` in the words of whoever refused it."""
        self.why = why
        self._gap(self.cursor.last, None)

    def close(self) -> None:
        """Let go of the files; may be called again."""
        self._files.close()
        self.cursor.close()

    # -- lines

    def _take(self, data: bytes) -> None:
        """Store whole lines."""
        if not self._foreign and self._plain(data):
            # Records stand at a log's beginning and at its end, a few among much else: what is before and behind them need not be gone
            # through for them.
            begin, end = records_within(data)
            if begin >= LEAST:
                self._take_alike(data[:begin])
                data, end = data[begin:], end - begin
            if end and len(data) - end >= LEAST:
                self._take_alike(data[:end])
                data = data[end:]
        self._take_alike(data)

    def _take_alike(self, data: bytes) -> None:
        """Store whole lines: as one chunk where that can be, else line by line."""
        taken = self._splitter.split(data) if self._plain(data) else None
        if taken is not None:
            self._chunk(data, taken)
        else:
            self._lines(data[:-1].split(b"\n"))

    def _plain(self, data: bytes) -> bool:
        """Whether this is a chunk of new lines that may be stored as one."""
        whole = len(data) >= LEAST and self._part is None and not self.cursor.expecting
        return whole and (not self._foreign or self.routes.alike(data))

    def _chunk(self, data: bytes, taken: SplitChunk) -> None:
        """Store a chunk that was taken apart, and commit."""
        self._fresh = False
        cursor = self.cursor
        self._measure(taken.last)
        cursor.take_chunk(data, lines=taken.lines, second=taken.last // _NS, high=taken.high, low=taken.low)
        cursor.lines += taken.lines
        sizes: dict[str, int] = {}
        for digits, piece in taken.pieces.items():
            rank = rank_of(digits)
            sizes |= self._files.append(
                SLOT_STREAM if rank is None else f"r{rank}.out", piece, taken.marks[digits], lines=taken.counts[digits]
            )
        cursor.last = taken.last
        cursor.commit(sizes)

    def _lines(self, lines: list[bytes], *, whole: bool = True) -> None:
        """Store lines and commit. ``whole``: the last one ended with a newline."""
        # Of each stream its lines and their stamps.
        pieces: dict[str, tuple[list[bytes], list[int]]] = {}
        split, cursor = self._stamps.split, self.cursor
        after = newest = cursor.last
        taken: list[tuple[int, int]] = []
        begin = 0
        gap = False
        name = last = None
        if self._part is not None:
            # The end of a line that was stored in parts.
            part, self._part, begin = self._part, None, 1
            name = part.stream
            pieces[name] = [lines[0]], [part.stamp or 0]
            newest = part.stamp or newest
            cursor.lines += 1
            taken.append(((newest or 0) // _NS, zlib.crc32(lines[0], part.sum)))
        if self._starts_mid_line(lines):
            begin = 1
            cursor.repeated += 1
        for line in lines[begin:]:
            name = None
            if cursor.expecting:
                if cursor.repeats(line):
                    continue
                gap = cursor.lost_track
            stamp, start = split(line)
            if gap:
                gap = False
                self._gap(newest, stamp)
            if stamp is not None:
                newest = stamp
            cursor.lines += 1
            taken.append(((newest or 0) // _NS, zlib.crc32(line)))
            route = self.routes.of(line, start, stamp)
            if route is None:
                continue
            name, start = route
            if name != last:
                texts, stamps = pieces.get(name) or pieces.setdefault(name, ([], []))
                last = name
            texts.append(line[start:])
            stamps.append(stamp or 0)
        self._on_records()
        self._measure(newest)
        sizes: dict[str, int] = {}
        for stream, (texts, stamps) in pieces.items():
            marks = marks_of(texts, stamps, after)
            if whole or stream != name:
                texts.append(b"")
            sizes |= self._files.append(stream, b"\n".join(texts), marks)
        cursor.last = newest
        cursor.take(taken)
        cursor.commit(sizes)

    def _starts_mid_line(self, lines: list[bytes]) -> bool:
        """Whether a newly opened log begins with the rest of a line that was taken: the API cuts at a second, also between a line's pieces."""
        fresh, self._fresh = self._fresh, False
        expects = self.cursor.expects
        return fresh and len(lines) > 1 and expects(lines[1]) and not expects(lines[0])

    def _store_part(self, data: bytes) -> None:
        """Store a part of a line that has no end yet. It is committed with the line's end only: until then it may come again."""
        if self._part is None:
            stamp, start = self._stamps.split(data)
            route = self.routes.of(data, start, stamp) or (SLOT_STREAM, start)
            file = self._files.file(route[0])
            self._part = _Part(route[0], stamp=stamp, size=file.size, index_size=file.index_size)
            file.write(data[route[1] :], stamp)
        else:
            self._files.file(self._part.stream).write(data, None)
        self._part.sum = zlib.crc32(data, self._part.sum)

    def _gap(self, after: int | None, before: int | None) -> None:
        self.cursor.gaps += 1
        if self._on_gap is not None:
            self._on_gap(after, before)

    def _measure(self, newest: int | None) -> None:
        if newest is not None:
            delay = self._now() - newest
            if (self.live or delay < 0) and (self.delay_ns is None or delay < self.delay_ns):
                self.delay_ns = delay


class _Part:
    """A line that was stored in part: its stream, what the stream's files were before it, and the checksum so far."""

    __slots__ = ("index_size", "size", "stamp", "stream", "sum")

    def __init__(self, stream: str, *, stamp: int | None, size: int, index_size: int) -> None:
        self.stream = stream
        self.stamp = stamp
        self.size = size
        self.index_size = index_size
        self.sum = 0
