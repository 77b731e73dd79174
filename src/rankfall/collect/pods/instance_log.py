"""Stores the log of one container instance: API bytes in, one stream per rank out, each line once.

Records go to the record intake, lines without rank to the slot's stream.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from rankfall.collect.background import Stir, undisturbed
from rankfall.collect.pods.chunks import LEAST, SplitChunk, Splitter, marks_of, rank_of
from rankfall.collect.pods.log_gaps import Pauses
from rankfall.collect.pods.resume import Cursor
from rankfall.kube.pod_logs import Complaint, complaint
from rankfall.rundir import StreamAppender
from rankfall.rundir.cluster.log_routes import SLOT_STREAM, Routes, StampParser, records_within
from rankfall.rundir.streams.writer import Mark


class StreamFiles:
    """Files by stream name, as ``r3.out``; ``stir`` is called after each piece."""

    def __init__(self, folder: Path, stir: Stir) -> None:
        self._folder = folder
        self._stir = stir
        self._files: dict[str, StreamAppender] = {}

    def append(self, name: str, data: bytes, marks: Iterable[Mark], *, lines: int | None = None) -> dict[str, int]:
        """Appends to a stream and returns the length of each file. ``lines`` avoids a second count.

        Raises:
            OSError: Nothing was stored.
        """
        file = self.file(name)
        if data:
            fresh = not file.size
            file.write_marked(data, marks, lines=lines)
            self._stir(lines=not fresh)
        return {f"{name}.log": file.size, f"{name}.idx": file.index_size}

    def file(self, name: str) -> StreamAppender:
        """Returns the files of a stream, opened or created.

        Raises:
            OSError: That failed.
        """
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = StreamAppender(self._folder / name)
        return file

    def close(self) -> None:
        """Closes all files; may be called again."""
        for file in self._files.values():
            file.close()


# Bytes of a part of an unfinished line, which bound memory.
MAX_PART: Final = 1 << 20
_NS: Final = 1_000_000_000
# Timestamps of two writers of one log, or within a chunk's tenth of a second, may decrease by less.
_BACK_NS: Final = 100_000_000


class Standing(NamedTuple):
    """Read position: number of whole lines, checksum of a partly stored line, bytes not yet stored."""

    lines: int
    part: int
    rest: bytes


class InstanceLog:
    """Streams of one container instance.

    ``on_record`` returns False for no record; ``on_gap`` receives the timestamps around missing lines. ``delay_ns`` is
    negative if the node's clock is ahead.

    Raises:
        OSError: The folder cannot be written.
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
        stir: Stir = undisturbed,
        foreign: bool = False,
    ) -> None:
        self.cursor = Cursor(folder)
        self.bytes = 0
        self.delay_ns: int | None = None
        self.at_end = False
        self.live = False
        # The newest stream is a followed one, of which a kubelet may leave out files.
        self._followed = False
        self.pauses = Pauses()
        self.why: str | None = None
        self.routes = Routes(on_record, foreign=foreign)
        self._now = now
        self._on_records = on_records
        self._on_gap = on_gap
        self._ended = ended
        self._foreign = foreign
        self._files = StreamFiles(folder, stir)
        self._stamps = StampParser()
        self._splitter = Splitter(self._stamps, foreign=foreign)
        self._rest = b""
        self._part: _Part | None = None
        # True until the newest stream has a whole line.
        self._fresh = False

    def opened(self, newest: array[int] | None = None, *, followed: bool = False) -> None:
        """Prepares for a reopened log, which begins with one of ``newest``, or at the cursor's second."""
        self._followed = followed
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
        """Stores new bytes.

        Raises:
            OSError: Not stored; uncommitted bytes arrive again.
        """
        self.bytes += len(data)
        end = data.rfind(b"\n") + 1
        if end:
            # Copied once for speed.
            whole = data if end == len(data) and not self._rest else b"".join((self._rest, memoryview(data)[:end]))
            self._rest = data[end:]
            self._take(whole)
        else:
            self._rest += data
        if len(self._rest) > MAX_PART and not self.cursor.expecting:
            self._store_part(self._rest)
            self._rest = b""

    def continues(self, data: bytes) -> bool | None:
        """True if the reopened log begins with a known line; None until a line arrived. Call before ``push``."""
        line, newline, _ = (self._rest + data).partition(b"\n")
        return self.cursor.expects(line) if newline else None

    def joins(self, data: bytes) -> bool | None:
        """Checks the same as ``continues``, for a log reopened at one of its newest lines."""
        known = self.continues(data)
        if not known:
            return known
        stamp, last = self._stamps.split(self._rest + data)[0], self.cursor.last
        # A new line may equal a known one of the newest moment.
        return stamp is not None and last is not None and stamp < last

    def finish(self) -> Complaint | None:
        """Stores a last line without newline; returns the kubelet's message in its place, or None.

        Raises:
            OSError: The line could not be stored.
        """
        found = self.complaint()
        if found is None and (self._rest or self._part is not None):
            self._note_step_back(self._rest)
            self._lines([self._rest], whole=False)
            self._rest = b""
        return found

    def complaint(self) -> Complaint | None:
        """Removes and returns the kubelet's message at the end of this stream; None without one."""
        found = complaint(self._rest) if self._part is None else None
        if found is not None:
            self._rest = b""
        return found

    def standing(self) -> Standing:
        """Read position."""
        return Standing(self.cursor.lines, 0 if self._part is None else self._part.sum, self._rest)

    def leave(self, *, unheard: bool = False) -> bool:
        """Closes the log for good.

        Returns True if the whole log is stored: the stream ended, or the wrapper wrote its last record. With
        ``unheard`` (no end reported) only the record counts.

        Raises:
            OSError: Lines could not be stored.
        """
        if self._part is not None or (not self.cursor.expecting and self._stamps.split(self._rest)[0] is not None):
            self.finish()
        return (self.at_end and not unheard) or self._ended()

    def held(self) -> dict[str, tuple[int, int]]:
        """Returns stored (lines, bytes) by stream: ``slot`` or ``r<rank>``.

        Raises:
            OSError: A stream cannot be read.
        """
        names = [name.removesuffix(".log") for name in self.cursor.sizes if name.endswith(".log")]
        found = {name.removesuffix(".out"): self._files.file(name).counted for name in names}
        return {stream: (counted.lines, counted.size) for stream, counted in found.items()}

    def settle(self, head: bytes) -> None:
        """Records a gap if the log's file began in a suspected pause; ``head`` begins that file."""
        pause = self.pauses.settle(self._stamps.split(head)[0])
        if pause is not None:
            self._gap(*pause)

    def lose(self, why: str | None = None) -> None:
        """Records a gap after the newest line."""
        self.why = why
        self._gap(self.cursor.last, None)

    def close(self) -> None:
        """Closes the files; may be called again."""
        self._files.close()
        self.cursor.close()

    # -- lines

    def _take(self, data: bytes) -> None:
        if not self._foreign and self._plain(data):
            # Records are few, at a log's beginning and end.
            begin, end = records_within(data)
            if begin >= LEAST:
                self._take_alike(data[:begin])
                data, end = data[begin:], end - begin
            if end and len(data) - end >= LEAST:
                self._take_alike(data[:end])
                data = data[end:]
        self._take_alike(data)

    def _take_alike(self, data: bytes) -> None:
        self._note_step_back(data)
        taken = self._splitter.split(data) if self._plain(data) else None
        if taken is not None:
            self._chunk(data, taken)
        else:
            self._lines(data[:-1].split(b"\n"))

    def _plain(self, data: bytes) -> bool:
        whole = len(data) >= LEAST and self._part is None and not self.cursor.expecting
        return whole and (not self._foreign or self.routes.alike(data))

    def _note_step_back(self, data: bytes) -> None:
        """Prepares for known lines if the time goes back.

        A kubelet that left out a whole file reads the next one from its beginning again.
        """
        cursor = self.cursor
        if cursor.last is None or cursor.expecting or self._part is not None:
            return
        stamp = self._stamps.split(data)[0]
        if stamp is not None and stamp < cursor.last - _BACK_NS:
            cursor.expect_repetition(data.partition(b"\n")[0], stamp // _NS)

    def _chunk(self, data: bytes, taken: SplitChunk) -> None:
        self._fresh = False
        cursor = self.cursor
        self._measure(taken.last)
        moments = (at for marks in taken.marks.values() for _, _, *ends in marks for at in ends)
        self.pauses.take(len(data), after=cursor.last, newest=taken.last, moments=moments, sent=self._followed)
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
        while lines := self._rising(lines, whole=whole):
            self._note_step_back(lines[0])

    def _rising(self, lines: list[bytes], *, whole: bool) -> list[bytes]:
        """Stores lines up to one that is earlier than the line before it; returns the rest."""
        pieces: dict[str, tuple[list[bytes], list[int]]] = {}
        split, cursor = self._stamps.split, self.cursor
        after = newest = cursor.last
        # Known lines before new ones prove that none is missing, or that is recorded.
        sent = self._followed and not cursor.expecting
        taken: list[tuple[int, int]] = []
        begin, name, last = 0, None, None
        if self._part is not None:
            part, self._part, begin = self._part, None, 1
            name = part.stream
            pieces[name] = [lines[0]], [part.stamp or 0]
            newest = part.stamp or newest
            cursor.lines += 1
            taken.append(((newest or 0) // _NS, zlib.crc32(lines[0], part.sum)))
        if self._starts_mid_line(lines):
            begin = 1
            cursor.repeated += 1
        back: list[bytes] = []
        for number, line in enumerate(lines[begin:], begin):
            name, lost = None, False
            if cursor.expecting:
                if cursor.repeats(line):
                    continue
                lost = cursor.lost_track
            stamp, start = split(line)
            if lost:
                self._gap(newest, stamp)
            if (taken or number > begin) and stamp is not None and newest is not None and stamp < newest - _BACK_NS:
                # A repetition is recognized by the stored lines before it.
                lines, back = lines[:number], lines[number:]
                break
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
        moments = (stamp for _, stamps in pieces.values() for stamp in stamps if stamp)
        self.pauses.take(sum(map(len, lines)), after=after, newest=newest, moments=moments, sent=sent)
        sizes = self._append(pieces, after, unfinished=name if not whole and not back else None)
        cursor.last = newest
        cursor.take(taken)
        cursor.commit(sizes)
        return back

    def _append(
        self, pieces: dict[str, tuple[list[bytes], list[int]]], after: int | None, *, unfinished: str | None
    ) -> dict[str, int]:
        """Appends lines with their timestamps to their streams, the last one of a stream without its end; the new sizes."""
        sizes: dict[str, int] = {}
        for stream, (texts, stamps) in pieces.items():
            end = [] if stream == unfinished else [b""]
            sizes |= self._files.append(stream, b"\n".join(texts + end), marks_of(texts, stamps, after))
        return sizes

    def _starts_mid_line(self, lines: list[bytes]) -> bool:
        """True if a log begins inside a known line: the API cuts at a second."""
        fresh, self._fresh = self._fresh, False
        expects = self.cursor.expects
        return fresh and len(lines) > 1 and expects(lines[1]) and not expects(lines[0])

    def _store_part(self, data: bytes) -> None:
        """Stores a piece of an unfinished line.

        Only the line's end commits it; until then the line may arrive again.
        """
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
    """A partly stored line: stream, former file sizes, checksum so far."""

    __slots__ = ("index_size", "size", "stamp", "stream", "sum")

    def __init__(self, stream: str, *, stamp: int | None, size: int, index_size: int) -> None:
        self.stream = stream
        self.stamp = stamp
        self.size = size
        self.index_size = index_size
        self.sum = 0
