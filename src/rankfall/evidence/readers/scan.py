"""Scans a chunk or growing stream for signatures, tracebacks, torchrun reports.

An unfinished line or traceback waits for the next chunk.

Cost: one search for signature words and traceback heads; only lines with one are read, each once.
After ``FLOOD`` lines without new information, a word is searched only at the end of each chunk (``flooded`` names it).
Memory: the unfinished line (at most ``MAX_PARTIAL`` bytes), that of ``tracebacks``, and counts of at most ``MAX_KINDS``
kinds. Of each kind the first ``KEEP_FIRST`` and the last of a chunk are returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rankfall.evidence.readers.classify import Meaning, exception_meaning, of_frames, ran_training
from rankfall.evidence.readers.findings import Finding, LineMeaning, line_meanings
from rankfall.evidence.readers.frames import LastLine, OpenTraceback, TracebackText
from rankfall.evidence.readers.prefixes import Prefix
from rankfall.evidence.readers.survival import Survival
from rankfall.evidence.readers.text import repeats
from rankfall.evidence.readers.torchrun import Reported, ReportReader
from rankfall.evidence.readers.tracebacks import TracebackReader
from rankfall.verdict.diagnose.cause_tables import OF_LIBRARY, OF_OWN, OWN_CODE, WAITS_FOR_FIRST
from rankfall.verdict.signatures.catalogue import Catalogue

# Bytes: a copy remains in the processor's cache.
_PIECE: Final = 64 << 10
# A longer line is read in pieces.
MAX_PARTIAL: Final = 1 << 20
# Findings of one kind (signature or fingerprint, and rank) returned singly; then only a chunk's last.
KEEP_FIRST: Final = 4
# Maximum kinds in a stream; others of one cause count as one.
MAX_KINDS: Final = 4096
# Consecutive lines with one signature word and no new information that make a flood; maximum flood words; bytes read at
# a chunk's end regardless.
FLOOD: Final = 4096
_MAX_FLOODED: Final = 8
TAIL: Final = 64 << 10
# Maximum chains with a cached meaning, and their text.
_MAX_CHAINS: Final = 512
_MAX_CHAIN_TEXT: Final = 2048
# Maximum lines in tracebacks with an unknown end.
_MAX_HELD: Final = 1024


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of a whole text."""

    found: tuple[Finding, ...]
    reported: tuple[Reported, ...]


def scan(data: bytes, catalogue: Catalogue) -> Findings:
    """Findings of a whole text, in order."""
    found, reported = ChunkScanner(catalogue).push(data, final=True)
    return Findings(
        found=tuple(sorted((one for one, _, _ in found), key=lambda one: one.start)),
        reported=tuple(one for one, _, _ in reported),
    )


class _Event(msgspec.Struct):
    """A finding, or ``count`` adjacent copies of ``width`` bytes each.

    Attributes:
        known: Byte at which it was recognized.
        byte: Offset in the stream.
        line: Number from 1; 0 = not counted.
    """

    known: int
    byte: int
    kind: tuple[str, int | None]
    what: Finding | LineMeaning
    line: int = 0
    count: int = 1
    width: int = 0

    @property
    def finding(self) -> Finding:
        """The finding itself."""
        return self.what if isinstance(self.what, Finding) else self.what.finding


class ChunkScanner:
    """Scans a stream in chunks; findings do not depend on chunk borders, except for lines longer than ``MAX_PARTIAL``.

    ``survival`` learns which speakers continued. ``of_a_job``: the text may be that of a script that starts the ranks,
    not of one rank.

    Attributes:
        consumed: No finding will start before this byte.
    """

    def __init__(self, catalogue: Catalogue, *, survival: Survival | None = None, of_a_job: bool = False) -> None:
        self._catalogue = catalogue
        self._of_a_job = of_a_job
        self._survival = survival
        self._meanings = line_meanings(catalogue)
        self._tracebacks = TracebackReader()
        self._reports = ReportReader()
        self._chains: dict[tuple[object, ...], Meaning] = {}
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._at = 0
        self._lines = 0
        self._in_line = False
        self._held = 0
        self._kinds: dict[tuple[str, int | None], int] = {}
        self._nothing_new: dict[bytes, int] = {}
        self._flooded: frozenset[bytes] = frozenset()
        self.consumed = 0

    @property
    def waiting(self) -> bool:
        """True if unfinished data waits for more."""
        return bool(self._partial) or self._tracebacks.oldest is not None

    @property
    def cut_off(self) -> Prefix | None:
        """Prefix of the traceback that the text does not finish; None if there is none."""
        return self._tracebacks.cut_off

    @property
    def lines(self) -> int:
        """Number of newlines that were read."""
        return self._lines

    @property
    def flooded(self) -> str | None:
        """Message about lines that were skipped because there were too many; None = none."""
        if not self._flooded:
            return None
        words = ", ".join(repr(word.decode("utf-8", "replace")) for word in sorted(self._flooded))
        return f"lines with {words} were skipped after {FLOOD:,} of them without new information"

    def restart(self) -> int:
        """Drops all waiting data, even in a damaged state, and continues after the last correctly read bytes."""
        self._tracebacks, self._reports = TracebackReader(), ReportReader()
        self._partial, self._partial_size, self._held, self._in_line = [], 0, 0, False
        self.consumed = self._at
        return self._at

    def skip(self, data: bytes) -> None:
        """Counts bytes without reading them; no data may be waiting."""
        self._lines += _newlines(data, len(data))
        self._at += len(data)
        self.consumed = self._at

    def skip_line(self) -> None:
        """Skips data up to the first newline."""
        self._in_line = True

    def push(
        self, data: bytes, *, final: bool
    ) -> tuple[list[tuple[Finding, int, int]], list[tuple[Reported, int, int]]]:
        """Returns findings and a launcher's reports, each with its byte (from 0) and line (from 1) in the stream.

        A traceback counts at its end. ``final``: unfinished data counts.
        """
        if self._in_line:
            cut = data.find(b"\n") + 1 or len(data)
            self._in_line = data[cut - 1 : cut] != b"\n"
            self.skip(data[:cut])
            data = data[cut:]
        text = self._whole_lines(data, final=final)
        read = self._tracebacks.push(text, at=self._at, line=self._lines, final=final)
        events: list[_Event] = []
        for item in read.closed:
            if item.found is not None:
                found, last = self._of_traceback(item.found)
                events.append(_Event(item.read.closed_at, last.start, found.kind, found, last.number))
            else:
                events += [
                    _Event(item.read.closed_at, byte, kind, finding, line)
                    for byte, kind, finding, line in item.read.held
                ]
            self._held -= len(item.read.held)
            item.read.held = []
        lines, waiting, speaks = self._of_lines(text, read.spans)
        chosen = self._choose(sorted(events + lines, key=lambda one: (one.known, one.byte)))
        if self._survival is not None:
            failures = ((f.prefix, f.end, f.explicit, f.uncaught) for f in (one.finding for one in chosen) if f.fails)
            self._survival.push(text, at=self._at, found=failures)
        reports = self._reports.push(text, speaks=speaks)
        uncounted: list[_Event] = [one for one in (*chosen, *(event for event, _ in waiting)) if not one.line]
        numbers = self._line_numbers(text, {*(one.byte for one in uncounted), *(self._at + r.at for r in reports)})
        for event, owner in waiting:
            owner.held.append((event.byte, event.kind, event.finding, numbers[event.byte]))
        self._held += len(waiting)
        self._lines += _newlines(text, len(text))
        self._at += len(text)
        oldest = self._tracebacks.oldest
        self.consumed = self._at if oldest is None else oldest
        return (
            [(one.finding, one.byte, one.line or numbers[one.byte]) for one in chosen],
            [(one, self._at - len(text) + one.at, numbers[self._at - len(text) + one.at]) for one in reports],
        )

    def _whole_lines(self, data: bytes, *, final: bool) -> bytes:
        cut = len(data) if final else data.rfind(b"\n") + 1
        if not cut and not final and self._partial_size + len(data) <= MAX_PARTIAL:
            self._partial += [data] if data else []
            self._partial_size += len(data)
            return b""
        cut = cut or len(data)
        whole = data[:cut] if cut < len(data) else data
        if self._partial:
            whole = b"".join((*self._partial, whole))
        rest = data[cut:]
        self._partial, self._partial_size = [rest] if rest else [], len(rest)
        return whole

    def _of_lines(
        self, data: bytes, spans: list[tuple[int, int, OpenTraceback]]
    ) -> tuple[list[_Event], list[tuple[_Event, OpenTraceback]], bool]:
        """Returns findings outside tracebacks, those that wait for a traceback, and True for a launcher's line."""
        found: list[_Event] = []
        waiting: list[tuple[_Event, OpenTraceback]] = []
        speaks, position, size, span = False, 0, len(data), 0
        tail = data.rfind(b"\n", 0, max(0, size - TAIL)) + 1
        matcher, meanings = self._meanings.matcher, self._meanings
        # By kind: count, and index of the last in ``found`` once there are enough.
        kinds: dict[tuple[str, int | None], tuple[int, int]] = {}
        while position < size:
            without = self._flooded if position < tail else frozenset[bytes]()
            line = matcher.candidate(data, position, without=without)
            if without and (line is None or line[0] >= tail):
                position = tail
                continue
            if line is None:
                break
            start, end, word = line
            position = end + 1
            while span < len(spans) and spans[span][1] < end:
                span += 1
            owner = spans[span][2] if span < len(spans) and spans[span][0] <= start else None
            if owner is not None and owner.real:
                position = spans[span][1] + 1
                continue
            what = meanings.of(data[start:end])
            speaks = speaks or what.launcher
            width = position - start
            copies = 0
            if owner is None and data.startswith(data[start:position], position):
                until = spans[span][0] if span < len(spans) else size
                copies = repeats(data, start, width, most=(until - position) // width)
                position += copies * width
            kind = what.kind
            if not what.launcher:
                self._watch_for_flood(word, new=kind is not None and self._is_new(kind, kinds.get(kind, (0, 0))[0]))
            if kind is None:
                continue
            known = self._at + start if owner is None else owner.closed_at
            event = _Event(known, self._at + start, kind, what, count=copies + 1, width=width)
            if owner is not None and owner.real is None and self._held + len(waiting) < _MAX_HELD:
                waiting.append((event, owner))
                continue
            seen, last = kinds.get(kind, (0, 0)) if owner is None else (0, 0)
            if seen > KEEP_FIRST:
                found[last] = event
                continue
            found.append(event)
            if owner is None:
                kinds[kind] = (seen + 1, len(found) - 1)
        return found, waiting, speaks

    def _is_new(self, kind: tuple[str, int | None], here: int) -> bool:
        """True if one more finding of a kind, with ``here`` in this chunk, would be returned singly."""
        count = self._kinds.get(kind)
        return (count or 0) + here <= KEEP_FIRST and (count is not None or len(self._kinds) < MAX_KINDS)

    def _watch_for_flood(self, word: bytes, *, new: bool) -> None:
        """Counts lines that contain ``word`` but bring no new finding; launcher reports are exempt."""
        count = 0 if new else self._nothing_new.get(word, 0) + 1
        if word in self._nothing_new or len(self._nothing_new) < MAX_KINDS:
            self._nothing_new[word] = count
        if count >= FLOOD and len(self._flooded) < _MAX_FLOODED:
            self._flooded |= {word}

    def _of_traceback(self, item: TracebackText) -> tuple[Finding, LastLine]:
        """Finding of a traceback, and the line of the exception that gives the cause."""
        meaning = self._meaning_of_chain(item)
        if item.ignored:
            meaning = msgspec.structs.replace(meaning, slug="teardown_noise", role="context")
        elif "damaged_report" in item.origins:
            # A damaged error file did not end the rank.
            meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
        elif meaning.slug == "peer_lost" and "data_loader" in item.origins:
            # The lost peer is this rank's data worker.
            meaning = msgspec.structs.replace(meaning, slug="dataloader_died", role="primary")
        elif "data_loader" in item.origins and item.chain[0][0].endswith("queue.Empty"):
            # Its workers deliver nothing: not an error of the loader.
            meaning = msgspec.structs.replace(meaning, slug="dataloader_died", role="secondary")
        elif "spawned" in item.origins and (meaning.slug == "checkpoint_corrupt" or "semaphore" in item.origins):
            # The parent ended before its worker had started.
            meaning = msgspec.structs.replace(meaning, slug="peer_teardown", role="secondary")
        elif meaning.slug == "external_signal" and item.prefix.raw.endswith(b"^C"):
            # The terminal shows the key that was pressed.
            meaning = msgspec.structs.replace(meaning, slug="cancelled", role="primary", retry=None)
        elif meaning.slug == "collective_timeout" and "main_first" in item.origins:
            meaning = msgspec.structs.replace(meaning, signature=WAITS_FOR_FIRST)
        else:
            meaning = of_frames(meaning, item.origins)
        if meaning.pid is None:
            meaning = msgspec.structs.replace(meaning, pid=item.pid)
        known = meaning.signature
        if meaning.slug == OWN_CODE and known is None:
            # What a data worker collates is the job's own.
            of_library = "library" in item.origins and "in DataLoader worker process" not in item.chain[0][1]
            meaning = msgspec.structs.replace(meaning, signature=OF_LIBRARY if of_library else OF_OWN)
        last = item.finals[min(meaning.place + _interrupted(item), len(item.finals) - 1)]
        prefix = item.prefix
        if meaning.failed and prefix.rank not in meaning.failed:
            of = meaning.failed[0] if len(meaning.failed) == 1 else None
            prefix = msgspec.structs.replace(prefix, rank=of, local_rank=None, tasks=())
        found = Finding(
            start=0,
            end=last.end - last.start,
            line=last.text,
            meaning=meaning,
            prefix=prefix,
            explicit=not meaning.end,
            groups=meaning.groups if meaning.end else {},
            clean_up=("clean_up" in item.origins and not _interrupted(item))
            or (item.threaded and "helper" in item.origins),
            place=next(iter(item.places), None),
            collective=item.collective,
            caught=item.frames > 0 and "entry" not in item.origins,
            kind=(known or meaning.fingerprint, prefix.rank),
        )
        return found, last

    def _meaning_of_chain(self, item: TracebackText) -> Meaning:
        launcher = "launcher" in item.origins
        if self._of_a_job and item.prefix.rank is None:
            launcher = launcher or ran_training(item.chain)
        chain = item.chain[_interrupted(item) :]
        key = (*chain, item.frame, launcher)
        known = self._chains.get(key)
        if known is None:
            known = exception_meaning(self._catalogue, chain, frame=item.frame, launcher=launcher)
            if sum(len(kind) + len(message) for kind, message in chain) <= _MAX_CHAIN_TEXT:
                if len(self._chains) >= _MAX_CHAINS:
                    self._chains.clear()
                self._chains[key] = known
        return known

    def _choose(self, events: Iterable[_Event]) -> list[_Event]:
        """Returns of each kind the stream's first and the chunk's last; counts the others."""
        chosen: list[_Event] = []
        last: dict[tuple[str, int | None], _Event] = {}
        for event in events:
            kind = event.kind
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = (
                    f"more:{event.what.slug if isinstance(event.what, LineMeaning) else event.what.meaning.slug}",
                    None,
                )
            count = self._kinds.get(kind, 0)
            self._kinds[kind] = count + event.count
            first = range(min(event.count, max(0, KEEP_FIRST - count)))
            chosen += [_placed(event, number, kind=kind, last=False) for number in first]
            if count + event.count > KEEP_FIRST:
                last.pop(kind, None)
                last[kind] = event
        chosen += [_placed(event, event.count - 1, kind=kind, last=True) for kind, event in last.items()]
        return chosen

    def _line_numbers(self, data: bytes, wanted: Iterable[int]) -> dict[int, int]:
        """Line, from 1, of each of these bytes of the stream."""
        numbers: dict[int, int] = {}
        at, line = 0, self._lines
        for byte in sorted(wanted):
            here = byte - self._at
            if here > at:
                line += data.count(b"\n", at, here)
                at = here
            numbers[byte] = line + 1 if here >= 0 else line
        return numbers


def _interrupted(item: TracebackText) -> bool:
    """True if a person interrupted the end of a process that had raised another exception before."""
    return len(item.chain) > 1 and item.chain[0][0] == "KeyboardInterrupt" and "clean_up" in item.origins


def _placed(event: _Event, number: int, *, kind: tuple[str, int | None], last: bool) -> _Event:
    byte = event.byte + number * event.width
    found = event.finding
    found = msgspec.structs.replace(found, start=byte, end=byte + found.end, kind=kind, last=last)
    return _Event(event.known, byte, kind, found, event.line)


def _newlines(data: bytes, end: int) -> int:
    """Number of newlines before ``end``, in half of the time of ``count``, which checks each byte."""
    pieces = (data[at : min(end, at + _PIECE)] for at in range(0, end, _PIECE))
    return end - sum(len(piece.replace(b"\n", b"")) for piece in pieces)
