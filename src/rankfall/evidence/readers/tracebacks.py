"""Finds whole Python tracebacks, chained and interleaved with other ranks' lines.

Their lines are never scanned as ordinary ones. Without prefixes a garbled one ends at the first unfitting line.

Cost: each line is read once; without an open traceback, one search skips to the next head.
Memory: at most ``MAX_OPEN`` open tracebacks with at most ``MAX_TEXT`` bytes in all; no line is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

from rankfall.evidence.readers.frames import (
    FILE,
    HEAD,
    LONGEST,
    QUOTED_HEAD,
    Announcement,
    LastLine,
    OpenTraceback,
    TracebackText,
    announcement,
    cut_above,
    exception_of,
)
from rankfall.evidence.readers.prefixes import MAX_LEARNED, Prefix, learn, parse_prefix
from rankfall.evidence.readers.text import decode, fold, repeats, traceback_within, unescape
from rankfall.model.numbers import matched
from rankfall.model.patterns import bounded

# Maximum lines of a traceback.
MAX_LINES: Final = 2000
MAX_MESSAGE: Final = LONGEST - 1024
# Stored exceptions of a chain: the first and last.
MAX_CHAIN: Final = 32
# Maximum speakers with an open traceback.
MAX_OPEN: Final = 4096
# A traceback ends after so many other lines, or bytes.
MAX_SILENT: Final = 4096
MAX_REACH: Final = 16 << 20
# Bytes of all open tracebacks' text.
MAX_TEXT: Final = 8 << 20
_MAX_TYPE: Final = 512
# Bytes and words between the tags of a prefix and a head that are no part of a prefix: those of an exception group.
_BARS: Final = b" \t|+-"
_GROUP: Final = b"Exception Group "
# Begin of the line before each of its exceptions.
_MEMBER: Final = b"+-"
# Line that begins and ends a notice of mpirun, and the maximum lines between.
_RULE: Final = 60 * b"-"
_MAX_NOTICE: Final = 40
# Lines from the head of a thread's traceback to that of another one which is mixed with it.
_MIXED: Final = 3

DURING: Final = b"During handling of the above exception, another exception occurred:"
_CHAIN: Final = frozenset({DURING, b"The above exception was the direct cause of the following exception:"})
_CONTINUATIONS: Final = (
    b"details = ", b"status = StatusCode.", b"Exception raised from", b"Last error:", b"Missing key", b"Parameter", b"Socket ",
    b"Unexpected key", b"frame #", b"nccl", b"size mismatch",
)  # fmt: skip
# Head of another rank's traceback in a message of torch.distributed.checkpoint.
_OF_RANK: Final = bounded(rb"\ATraceback \(most recent call last\): \(RANK (\d{1,6})\)", limit=512)
# Ray's line about a remote task, before the frames of that task; the type's exception follows them.
_REMOTE: Final = bounded(
    rb"\A(?:(?:ray\.exceptions\.)?RayTaskError(?:\([\w.]{1,128}\))?: )?ray::\S{1,256}\(\) \(pid=(\d{1,9})\b", limit=512
)


class Closed(msgspec.Struct, frozen=True):
    """A completed traceback; ``found`` is None if the lines were no traceback."""

    read: OpenTraceback
    found: TracebackText | None


class TracebackLines(msgspec.Struct, frozen=True):
    """Result of one chunk.

    Attributes:
        closed: Completed, in the order of their ends.
        spans: Begin and end of traceback lines in the chunk.
    """

    closed: list[Closed]
    spans: list[tuple[int, int, OpenTraceback]]


def find_tracebacks(data: bytes) -> Iterator[TracebackText]:
    """Yields all tracebacks of a whole text, in the order of their ends."""
    for item in TracebackReader().push(data, at=0, line=0, final=True).closed:
        if item.found is not None:
            yield item.found


def _of_its_rank(prefix: Prefix, head: bytes, announced: Announcement) -> Prefix:
    """Prefix with the rank that the head or the line before it names."""
    if (named := _OF_RANK.match(head)) is not None:
        return msgspec.structs.replace(prefix, rank=matched(named[1]), local_rank=None, tasks=())
    return msgspec.structs.replace(prefix, **announced.ranks) if prefix.local_rank is prefix.rank is None else prefix


class TracebackReader:
    """Reads the tracebacks of one stream; its chunks come in order, split between lines."""

    def __init__(self) -> None:
        # By speaker, the most recent last; and by first byte.
        self._open: OrderedDict[bytes, OpenTraceback] = OrderedDict()
        self._by_start: OrderedDict[int, OpenTraceback] = OrderedDict()
        self._text = 0
        # Number of open tracebacks by the first two bytes and the size of their learned prefix, and the one opened last.
        self._sizes: dict[bytes, dict[int, int]] = {}
        self._newest: OpenTraceback | None = None
        # Until here no traceback has to be closed.
        self._line_limit = self._byte_limit = -1
        # What the previous chunk's last line announced.
        self._announced = Announcement()
        self._closed: list[Closed] = []
        #: Prefix of the last traceback whose exception the text does not hold.
        self.cut_off: Prefix | None = None

    @property
    def oldest(self) -> int | None:
        """Byte of the stream where the oldest open traceback began; None if none is open."""
        return next(iter(self._by_start), None)

    def push(self, data: bytes, *, at: int, line: int, final: bool) -> TracebackLines:
        """Reads the next chunk of whole lines.

        ``at`` and ``line``: its first byte and line in the stream. ``final``: an unfinished traceback counts.
        """
        spans: list[tuple[int, int, OpenTraceback]] = []
        cut, number = (-1, line) if at else cut_above(data)
        position, size = max(0, cut), len(data)
        while position < size:
            if not self._open and position != cut:
                head = data.find(HEAD, position)
                if head < 0:
                    break
                begin = data.rfind(b"\n", position, head) + 1 or position
                number += data.count(b"\n", position, begin)
                position = begin
            stop = data.find(b"\n", position)
            stop = size if stop < 0 else stop
            self._leave_behind(at + position, number)
            owner, again = self._line(data, position, stop, at=at, number=number, cut=position == cut)
            width = stop + 1 - position
            if again and data.startswith(data[position : stop + 1], stop + 1):
                skipped = self._skip(data, position, width, owner=owner, number=number)
                stop, number = stop + skipped * width, number + skipped
            if owner is not None:
                if spans and spans[-1][2] is owner and spans[-1][1] + 1 == position:
                    spans[-1] = (spans[-1][0], stop, owner)
                else:
                    spans.append((position, stop, owner))
            position, number = stop + 1, number + 1
        if data:
            self._announced = announcement(data, size) or self._announced
        while final and self._by_start:
            last = next(iter(self._by_start.values()))
            last.drop_cut_type()
            self.cut_off = last.prefix if last.frames.count and (last.expect or not last.message) else self.cut_off
            self._close(last, at + size)
        closed, self._closed = self._closed, []
        return TracebackLines(closed=closed, spans=spans)

    def _line(
        self, data: bytes, position: int, stop: int, *, at: int, number: int, cut: bool
    ) -> tuple[OpenTraceback | None, bool]:
        """Traceback that a line belongs to, and True if the same line again would change nothing."""
        line, start = data[position:stop], at + position
        own = parse_prefix(line)
        head = own.length if cut else line.find(HEAD)
        if head >= 0 and line.startswith((b"\\", b' File "'), head + len(HEAD)):
            return self._quoted(line, head, start, number), False
        begins = 0 <= head <= MAX_LEARNED
        owner, body = self._speaker(line, own)
        bare = self._open.get(b"") if own.raw else None
        if bare is not None and bare is not owner:
            if own.rank is not None or own.local_rank is not None or own.slot is not None:
                if not bare.expect:
                    self._close(bare, start)
            elif owner is None and begins:
                self._close(bare, start)
            elif owner is None:
                owner, body = bare, line
        if owner is not None:
            if begins and not owner.chain and owner.type is None:
                self._restart(owner, start, number, announced=announcement(data, position) or self._announced)
                return owner, True
            if owner.expect and not owner.key and (owner.notice or line.startswith(_RULE)):
                ends = owner.notice and line.startswith(_RULE)
                owner.notice = 0 if ends else owner.notice - 1 if owner.notice else _MAX_NOTICE
                return None, False
            again = self._take(owner, body[:LONGEST].rstrip(b"\r"), line, start, number)
            if again is not None:
                owner.seen, owner.lines = number, owner.lines + 1
                self._open.move_to_end(owner.key)
                if owner.lines >= MAX_LINES:
                    self._close(owner, start)
                return owner, again and owner.real is None
            self._close(owner, start)
        if not begins:
            return None, bool(self._open)
        if len(self._open) >= MAX_OPEN:
            self._close(next(iter(self._open.values())), start)
        before, gap = line[:head], line[own.length : head].removesuffix(_GROUP)
        learned = own.length > head or bool(gap.strip(_BARS))
        prefix, key = (learn(before), fold(before)) if learned else (own, own.raw)
        announced = announcement(data, position) or self._announced
        prefix = _of_its_rank(prefix, line[head:], announced)
        if key in self._open:
            self._close(self._open[key], start)
        owner = OpenTraceback(
            prefix=prefix,
            start=start,
            end=at + stop,
            seen=number,
            ignored=announced.ignored,
            threaded=announced.threaded,
            key=key,
            learned=head if learned else 0,
            tags=own.raw,
            # Spaces behind a prefix, or the bars of an exception group.
            margin=len(gap) if not learned and (gap.strip() or own.raw) else 0,
            cut=cut,
        )
        self._open[owner.key] = self._by_start[start] = owner
        if owner.learned:
            sizes = self._sizes.setdefault(owner.key[:2], {})
            sizes[owner.learned] = sizes.get(owner.learned, 0) + 1
        if owner.learned or own.raw or own.stamp is not None:
            self._newest = owner
        if cut:
            self._take(owner, line[head:][:LONGEST].rstrip(b"\r"), line, start, number)
        return owner, True

    def _quoted(self, line: bytes, head: int, start: int, number: int) -> OpenTraceback | None:
        """Traceback that one line contains, as JSON or a page without line ends does; None if it is incomplete."""
        inner = list(find_tracebacks(traceback_within(line, head) + b"\n"))
        if not inner:
            return None
        found = inner[-1]
        stop = start + len(line)
        own = parse_prefix(line)
        prefix = own if own.raw else learn(line[:head]) if head <= MAX_LEARNED else found.prefix
        read = OpenTraceback(
            prefix=prefix, start=start, end=stop, seen=number, ignored=False, real=True, closed_at=stop
        )
        finals = tuple(LastLine(start, stop, number + 1, last.text) for last in found.finals)
        self._closed.append(
            Closed(read, msgspec.structs.replace(found, prefix=prefix, finals=finals, start=start, end=stop))
        )
        return read

    def _speaker(self, line: bytes, own: Prefix) -> tuple[OpenTraceback | None, bytes]:
        """Open traceback of a line's speaker, and the line without its prefix."""
        if self._sizes:
            folded = fold(line[:MAX_LEARNED])
            for size in (*self._sizes.get(folded[:2], ()), *self._sizes.get(folded[:1], ())):
                owner = self._open.get(folded[:size])
                if owner is not None and owner.learned == size:
                    return owner, unescape(line, size, quote=b'"').rstrip(b"\n") if line[:1] == b"{" else line[size:]
        owner = self._open.get(own.raw)
        timed = owner is not None and owner.prefix.stamp is not None
        body = line[own.length :] if own.raw or timed else line
        if owner is None and self._newest is not None:
            owner, self._newest = self._newest, None
            known = not own.raw or (owner.learned and own.raw == owner.tags)
            if owner.lines > 1 or not known or FILE.match(body[:LONGEST]) is None:
                return None, body
            # A logger printed its words before the head alone.
            self._forget(owner)
            owner.key, owner.learned = own.raw, 0
            self._open[owner.key] = owner
        if owner is not None and owner.margin and not body[: owner.margin].strip(b" \t|"):
            body = body[owner.margin :]
        return owner, body

    def _forget(self, state: OpenTraceback) -> None:
        del self._open[state.key]
        if state is self._newest:
            self._newest = None
        if state.learned:
            sizes = self._sizes[state.key[:2]]
            sizes[state.learned] -= 1
            if not sizes[state.learned]:
                del sizes[state.learned]
            if not sizes:
                del self._sizes[state.key[:2]]

    def _skip(self, data: bytes, position: int, width: int, *, owner: OpenTraceback | None, number: int) -> int:
        """Returns how many directly following copies of a line to skip, never the last one, within all limits."""
        room = MAX_SILENT + next(iter(self._open.values())).seen - number - 1
        if owner is not None:
            own_room = MAX_LINES - owner.lines - 2
            room = own_room if len(self._open) == 1 else min(room, own_room)
        if room <= 0:
            return 0
        skipped = max(0, repeats(data, position, width, most=room + 1) - 1)
        if owner is not None:
            owner.lines += skipped
            owner.seen += skipped
            owner.end += skipped * width
        return skipped

    def _leave_behind(self, start: int, number: int) -> None:
        """Closes tracebacks that wait too long or use too much memory."""
        if number <= self._line_limit and start <= self._byte_limit and self._text <= MAX_TEXT:
            return
        while self._open:
            silent, first = next(iter(self._open.values())), next(iter(self._by_start.values()))
            self._line_limit, self._byte_limit = silent.seen + MAX_SILENT, first.start + MAX_REACH
            if number > self._line_limit:
                self._close(silent, start)
            elif start > self._byte_limit or self._text > MAX_TEXT:
                self._close(first, start)
            else:
                return

    def _restart(self, owner: OpenTraceback, start: int, number: int, *, announced: Announcement) -> None:
        """Starts again at another head of a speaker whose traceback ended before it named an exception."""
        del self._by_start[owner.start]
        self._by_start[start] = owner
        owner.start = owner.end = start
        # Tracebacks of several threads may be mixed: then another line follows the announcement.
        mixed = owner.threaded and number - owner.seen <= _MIXED
        owner.seen, owner.lines = number, 1
        owner.ignored, owner.threaded = announced.ignored, announced.threaded or mixed
        owner.frames.clear()
        self._open.move_to_end(owner.key)

    def _take(self, state: OpenTraceback, body: bytes, line: bytes, at: int, number: int) -> bool | None:
        """Adds a line: None if it does not fit, True if a repetition would change nothing."""
        text, stop = body.strip(), at + len(line)
        of_rank = not state.expect and _OF_RANK.match(text) is not None
        if not state.expect and text.startswith(HEAD) and not of_rank:
            return None  # a separate exception
        quotes = of_rank or (text == QUOTED_HEAD and b"".join(state.message).startswith(b"Caught "))
        if text in _CHAIN or text.startswith(HEAD) or quotes:
            self._finish(state)
            state.begin_next(handling=text == DURING, head=text.startswith(HEAD))
            state.quotes = state.quotes or quotes
            state.expect, state.end = True, stop
            return True
        if state.expect:
            match = FILE.match(body)
            if match:
                state.frames.add(match[1], match[2], (match[3] or b"").strip(), flat=body.startswith(b"File"))
                state.end = stop
                return False
            if state.frames.belongs(body, text):
                state.frames.statement(text)
                state.end = stop
                return True
            if (remote := _REMOTE.match(text)) is not None:
                state.frames.chain()
                state.pid = matched(remote[1])
                state.end = stop
                return False
            raised = exception_of(text)
            if raised is None:
                return None
            message = raised[1][:MAX_MESSAGE]
            state.type, state.size = raised[0][:_MAX_TYPE], len(message)
            state.continues = text.endswith(b":")
            state.message = [] if state.continues and not message else [message]
            if state.quotes:
                state.final = msgspec.structs.replace(state.final, text=state.final.text.partition("\n")[0])
                state.extend(body, stop)
            else:
                also = b"\n" + state.frames.assertion if not message and state.frames.assertion else b""
                state.final = LastLine(at, stop, number + 1, decode(line) + decode(also))
            state.end, state.expect = stop, False
            self._grow(state, len(state.type) + len(message))
            return False
        if not text:
            return True  # before a chained exception, or the traceback's end
        if state.members is not None or (text.startswith(_MEMBER) and (state.type or b"").endswith(b"Group")):
            return self._of_group(state, text, LastLine(at, stop, number + 1, decode(line)))
        if state.continues and state.type is not None and not text.startswith((b"--", b"==", b"**")):
            state.extend(body, stop)
            state.continues = text.endswith(b":") and state.size < MAX_MESSAGE
        elif state.type is None or state.size >= MAX_MESSAGE or not text.startswith(_CONTINUATIONS):
            return None
        else:
            state.continues = False
        # A C++ stack of torch, details of an argument error; log lines do not continue a message.
        state.message.append(text[:MAX_MESSAGE])
        state.size += len(text)
        state.end = stop
        self._grow(state, len(text))
        return False

    def _of_group(self, state: OpenTraceback, text: bytes, line: LastLine) -> bool | None:
        if text.startswith(_MEMBER):
            self._finish(state)
            state.members = state.members or 0
            return False
        size = state.add_member(text.lstrip(b"| ")[:MAX_MESSAGE], line)
        self._grow(state, size)
        return False if size else None

    def _finish(self, state: OpenTraceback) -> None:
        if state.type is None or not state.message:
            state.type = None
            return
        message = b"\n".join(state.message)[:MAX_MESSAGE]
        place = len(state.chain) - state.quotes
        state.chain.insert(place, (state.type.decode("utf-8", "replace"), message.decode("utf-8", "replace")))
        # A quoted exception is displayed with the one that quotes it.
        state.finals[place:] = [state.final] * (1 + state.quotes)
        state.type, state.message, state.size = None, [], 0
        if len(state.chain) > MAX_CHAIN:
            left_out = state.chain.pop(MAX_CHAIN // 2)
            del state.finals[MAX_CHAIN // 2]
            self._grow(state, -sum(map(len, left_out)))

    def _grow(self, state: OpenTraceback, size: int) -> None:
        state.text += size
        self._text += size

    def _close(self, state: OpenTraceback, at: int) -> None:
        self._forget(state)
        del self._by_start[state.start]
        self._finish(state)
        later = state.drop_clean_up()
        if state.cut:
            state.frames.origins.discard("library")
            if not state.chain or not state.chain[-1][0].endswith(("Error", "Exception")):
                state.chain.clear()
        self._text -= state.text
        state.real, state.closed_at = bool(state.chain), at
        found = None
        if state.chain:
            found = TracebackText(
                start=state.start,
                end=state.end,
                prefix=state.prefix,
                chain=tuple(reversed(state.chain)),
                frame=state.frames.function,
                places=state.frames.places,
                collective=state.frames.collective,
                frames=state.frames.count,
                finals=tuple(reversed(state.finals)),
                origins=frozenset(state.frames.origins),
                ignored=state.ignored or "logger" in state.frames.origins,
                threaded=state.threaded,
                pid=state.pid,
                later=later,
            )
        self._closed.append(Closed(state, found))
