"""Scans text for findings: signatures, tracebacks, torchrun reports; of a chunk or a growing stream.

Only whole lines are read; a cut line or traceback waits for the next chunk. The index gives arrival times.

Cost: one search through the chunk for the words of all signatures and for the heads of tracebacks; only lines that hold one are read, each once.
A word of a signature that stood in ``FLOOD`` lines which said nothing new is searched in the last part of each chunk only (``flooded`` names it). Time is linear in bytes. Memory: the broken-off line (at most
``MAX_PARTIAL`` bytes), what ``tracebacks`` holds, and counts of at most ``MAX_KINDS`` kinds of findings; of each kind the first ``KEEP_FIRST`` and
the last of a chunk are given, and the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from rankfall.evidence.readers.classify import Meaning, exception_meaning, meaning_of_hit
from rankfall.evidence.readers.survival import Survival
from rankfall.evidence.readers.text import Prefix, decode, normalise, parse_prefix, repeats
from rankfall.evidence.readers.torchrun import Reported, ReportReader
from rankfall.evidence.readers.tracebacks import OpenTraceback, TracebackReader, TracebackText
from rankfall.model.patterns import bounded
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit, best

# Small enough for a copy to stay in the processor's cache, bytes.
_PIECE: Final = 64 << 10
# A line longer than this is taken in pieces: nothing waits for its end.
MAX_PARTIAL: Final = 1 << 20
# Findings of one kind (signature or fingerprint, and the rank of the prefix) that are given one by one; of those after them the last of a chunk.
KEEP_FIRST: Final = 4
# Kinds of one stream that are told apart; all others of one cause count as one kind.
MAX_KINDS: Final = 4096
# Lines with the same word of a signature, one after the other, that said nothing new: from then on such lines are a flood. Words of floods at most,
# and how much of the end of a chunk is looked at all the same, bytes.
FLOOD: Final = 4096
_MAX_FLOODED: Final = 8
TAIL: Final = 64 << 10
# Lines whose meaning is kept, and how long such a line is at most.
_MAX_KNOWN: Final = 4096
_MAX_KNOWN_LINE: Final = 512
# Chains of exceptions whose meaning is kept, and how much text such a chain holds at most.
_MAX_CHAINS: Final = 512
_MAX_CHAIN_TEXT: Final = 2048
# Lines of tracebacks whose end is not known yet, which may turn out to be lines like any other.
_MAX_HELD: Final = 1024

# A damaged report, as the launcher's logger writes it: a prefix on each line hides that it is a traceback. The logger cuts its path at the
# first entry of sys.path that fits, so that of a job whose working folder is / stands there whole.
_DAMAGED_LOGGED: Final = bounded(
    rb"[EWI]\d{4} [\d:.]+ +\d+ (?:[^ ]*/)?torch/distributed/elastic/multiprocessing/errors/__init__.py:\d+\]", limit=512
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One classified line or traceback.

    Attributes:
        start, end: bytes of the stream of the line that speaks.
        meaning: what it says.
        prefix: what stood before it.
        explicit: a whole traceback: the last word of a process, not one line among many.
        groups: named parts of the text: exit, signal, rank, local_rank, pid, ...
        kind: what it is counted under.
        last: it stands for all of its kind after the first ones, so far.
        clean_up: it was raised while its process was cleaning up at its end.
    """

    start: int
    end: int
    line: str
    meaning: Meaning
    prefix: Prefix
    explicit: bool = False
    groups: dict[str, str] = {}
    kind: tuple[str, int | None] = ("", None)
    last: bool = False
    clean_up: bool = False

    @property
    def fails(self) -> bool:
        """Whether it tells of a failure, its speaker's or another one's."""
        return self.meaning.role != "context"


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


class _Line:
    """A line in which something was recognised. What it means is put together only where it is asked for: of a flood of lines few are.

    Attributes:
        kind: what its finding is counted under; None = it is no finding.
        slug: what it speaks of.
        launcher: a launcher speaks.
    """

    __slots__ = ("_finding", "_hit", "_hits", "_prefix", "_raw", "kind", "launcher", "slug")

    def __init__(self, raw: bytes, hits: list[Hit]) -> None:
        self.launcher = any("launcher" in hit.signature.where for hit in hits)
        self.kind: tuple[str, int | None] | None = None
        self.slug = ""
        self._finding: Finding | None = None
        hit = best(hits)
        if hit is None or (hit.signature.slug == "unknown" and hit.signature.role == "context"):
            return
        self._raw, self._hits, self._hit = raw, hits, hit
        self._prefix = parse_prefix(raw)
        self.kind, self.slug = (hit.signature.id, self._prefix.rank), hit.signature.slug

    @property
    def finding(self) -> Finding:
        """The finding, at byte 0."""
        if self._finding is None:
            self._finding = self._made()
            self._raw, self._hits = b"", []
        return self._finding

    def _made(self) -> Finding:
        raw, hit = self._raw, self._hit
        signature, text = hit.signature, decode(raw)
        matched = normalise(decode(raw[hit.start : hit.end]))
        meaning = meaning_of_hit(hit, text=text, fingerprint=f"{signature.slug}:{signature.id}:{matched}")
        if "launcher" not in signature.where and _DAMAGED_LOGGED.search(raw) is not None:
            meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
        merged = {key: value for each in self._hits for key, value in each.groups.items()} | hit.groups
        return Finding(start=0, end=len(raw), line=meaning.text, meaning=meaning, prefix=self._prefix, groups=merged)


class _LineMeanings:
    """What single lines mean, by the lines themselves: a program that prints the same again and again is understood once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.matcher = catalogue.matcher(Catalogue.STREAM)
        self._known: dict[bytes, _Line] = {}

    def of(self, raw: bytes) -> _Line:
        """What a line means."""
        known = self._known.get(raw)
        if known is None:
            known = _Line(raw, self.matcher.match_line(raw))
            if len(raw) <= _MAX_KNOWN_LINE:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[raw] = known
        return known


@lru_cache(maxsize=4)
def _line_meanings(catalogue: Catalogue) -> _LineMeanings:
    """Shared by all streams that are read with a catalogue: its memory is bounded once."""
    return _LineMeanings(catalogue)


class _Event(msgspec.Struct):
    """A finding, or ``count`` copies of it one after the other, each ``width`` bytes; ``known`` is where that was seen.

    Attributes:
        byte: of the stream. The finding's own bytes are its length alone.
        line: from 1; 0 where it is not counted yet.
    """

    known: int
    byte: int
    kind: tuple[str, int | None]
    what: Finding | _Line
    line: int = 0
    count: int = 1
    width: int = 0

    @property
    def finding(self) -> Finding:
        """The finding itself."""
        return self.what if isinstance(self.what, Finding) else self.what.finding


class ChunkScanner:
    """Scans a stream that comes in chunks cut anywhere: whole lines only, a broken-off line waits for the next chunk.

    What is found does not depend on where the chunks are cut, but for lines longer than ``MAX_PARTIAL``.

    Args:
        catalogue: the signatures in force.
        survival: learns who went on after what was found.

    Attributes:
        consumed: no finding comes of any byte before this one.
    """

    def __init__(self, catalogue: Catalogue, *, survival: Survival | None = None) -> None:
        self._catalogue = catalogue
        self._survival = survival
        self._meanings = _line_meanings(catalogue)
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
        """Whether something broken off waits for more."""
        return bool(self._partial) or self._tracebacks.oldest is not None

    @property
    def flooded(self) -> str | None:
        """What was passed over because there was too much of it; None = nothing."""
        if not self._flooded:
            return None
        words = ", ".join(repr(word.decode("utf-8", "replace")) for word in sorted(self._flooded))
        return f"lines with {words} were passed over after {FLOOD:,} of them that said nothing new"

    def restart(self) -> int:
        """Forget all that waits, also where the state is damaged, and go on behind the last bytes that were read well; where that is."""
        self._tracebacks, self._reports = TracebackReader(), ReportReader()
        self._partial, self._partial_size, self._held, self._in_line = [], 0, 0, False
        self.consumed = self._at
        return self._at

    def skip(self, data: bytes) -> None:
        """Count the next bytes without looking at what they say; nothing may wait meanwhile."""
        self._lines += _newlines(data, len(data))
        self._at += len(data)
        self.consumed = self._at

    def skip_line(self) -> None:
        """Take what comes next up to its first newline for the rest of a line that nobody read."""
        self._in_line = True

    def push(
        self, data: bytes, *, final: bool
    ) -> tuple[list[tuple[Finding, int, int]], list[tuple[Reported, int, int]]]:
        """Findings and a launcher's statements, each with its byte (from 0) and line (from 1) in the whole stream.

        A finding is given when it is known: that of a traceback when its end was seen.

        Args:
            data: the next bytes, none left out.
            final: nothing follows, so that what is broken off is taken as it is.
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
                found = self._of_traceback(item.found)
                place = item.found.final_start, found.kind, found, item.found.final_line
                events.append(_Event(item.read.closed_at, *place))
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
            failures = ((f.prefix, f.end, f.explicit) for f in (one.finding for one in chosen) if f.fails)
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
        """The whole lines that are there now; the rest is kept."""
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
        """Findings of lines that belong to no traceback, those of lines that wait for the end of one, and whether a launcher speaks."""
        found: list[_Event] = []
        waiting: list[tuple[_Event, OpenTraceback]] = []
        speaks, position, size, span = False, 0, len(data), 0
        tail = data.rfind(b"\n", 0, max(0, size - TAIL)) + 1
        matcher, meanings = self._meanings.matcher, self._meanings
        # Of each kind how many there are, and where the last one stands in ``found`` once there are enough.
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
        """Whether one more of a kind, of which so many are in this chunk, would be given by itself."""
        count = self._kinds.get(kind)
        return (count or 0) + here <= KEEP_FIRST and (count is not None or len(self._kinds) < MAX_KINDS)

    def _watch_for_flood(self, word: bytes, *, new: bool) -> None:
        """Count lines with a word that said nothing new; of what a launcher reports each line counts."""
        count = 0 if new else self._nothing_new.get(word, 0) + 1
        if word in self._nothing_new or len(self._nothing_new) < MAX_KINDS:
            self._nothing_new[word] = count
        if count >= FLOOD and len(self._flooded) < _MAX_FLOODED:
            self._flooded |= {word}

    def _of_traceback(self, item: TracebackText) -> Finding:
        meaning = self._meaning_of_chain(item)
        if item.ignored:
            meaning = msgspec.structs.replace(meaning, slug="teardown_noise", role="context")
        elif "damaged_report" in item.origins:
            # The launcher fell over a rank's damaged error file; what ended the rank is another matter.
            meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
        elif meaning.slug == "peer_lost" and "data_loader" in item.origins:
            # The lost partner is this rank's own data worker and no other rank.
            meaning = msgspec.structs.replace(meaning, slug="dataloader_died", role="primary")
        return Finding(
            start=0,
            end=item.final_end - item.final_start,
            line=item.line,
            meaning=meaning,
            prefix=item.prefix,
            explicit=True,
            clean_up="clean_up" in item.origins,
            kind=(meaning.signature or meaning.fingerprint, item.prefix.rank),
        )

    def _meaning_of_chain(self, item: TracebackText) -> Meaning:
        key = (*item.chain, item.frame)
        known = self._chains.get(key)
        if known is None:
            known = exception_meaning(self._catalogue, item.chain, frame=item.frame)
            if sum(len(kind) + len(message) for kind, message in item.chain) <= _MAX_CHAIN_TEXT:
                if len(self._chains) >= _MAX_CHAINS:
                    self._chains.clear()
                self._chains[key] = known
        return known

    def _choose(self, events: Iterable[_Event]) -> list[_Event]:
        """Of each kind the first ones of the stream and the last one of the chunk, each with its bytes; the rest is counted."""
        chosen: list[_Event] = []
        last: dict[tuple[str, int | None], _Event] = {}
        for event in events:
            kind = event.kind
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = f"more:{event.what.slug if isinstance(event.what, _Line) else event.what.meaning.slug}", None
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
        """The line, from 1, of each of these bytes of the stream; one before the chunk is on the line before it."""
        numbers: dict[int, int] = {}
        at, line = 0, self._lines
        for byte in sorted(wanted):
            here = byte - self._at
            if here > at:
                line += data.count(b"\n", at, here)
                at = here
            numbers[byte] = line + 1 if here >= 0 else line
        return numbers


def _placed(event: _Event, number: int, *, kind: tuple[str, int | None], last: bool) -> _Event:
    byte = event.byte + number * event.width
    found = event.finding
    found = msgspec.structs.replace(found, start=byte, end=byte + found.end, kind=kind, last=last)
    return _Event(event.known, byte, kind, found, event.line)


def _newlines(data: bytes, end: int) -> int:
    """How many newlines stand before ``end``; in half of the time that ``count`` takes, which looks at each byte by itself."""
    pieces = (data[at : min(end, at + _PIECE)] for at in range(0, end, _PIECE))
    return end - sum(len(piece.replace(b"\n", b"")) for piece in pieces)
