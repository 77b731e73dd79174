"""One chunk of text -> findings: signatures, whole tracebacks, torchrun's reports. The work is per chunk, not per line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from rankfall.observe.classify import Meaning, exception_meaning, meaning_of_hit
from rankfall.observe.prefixes import Prefix, parse_prefix
from rankfall.observe.text import decode, normalise
from rankfall.observe.torchrun import Reported, read_reports
from rankfall.observe.tracebacks import Incomplete, TracebackText, find_tracebacks
from rankfall.signatures.catalogue import Catalogue
from rankfall.signatures.matcher import Hit, best

# A traceback longer than this is taken as it is; nothing waits for its end.
MAX_HELD: Final = 1 << 18
# Small enough for a copy to stay in the processor's cache, bytes.
_PIECE: Final = 64 << 10
# A line longer than this is taken in pieces: nothing waits for its end.
MAX_PARTIAL: Final = 1 << 20

_DAMAGED_REPORT: Final = re.compile(
    rb'elastic/multiprocessing/errors/__init__\.py", line \d+, in (?:__post_init__|_get_error_data)\b'
)

_FROM_LOADER: Final = re.compile(rb'torch/utils/data/dataloader\.py", line \d+, in _(?:try_)?get_(?:data|batch)\b')
# A damaged report, as the launcher's logger writes it: a prefix on each line hides that it is a traceback. The logger cuts its path at the
# first entry of sys.path that fits, so that of a job whose working folder is / stands there whole.
_DAMAGED_LOGGED: Final = re.compile(
    rb"[EWI]\d{4} [\d:.]+ +\d+ (?:[^ ]*/)?torch/distributed/elastic/multiprocessing/errors/__init__\.py:\d+\]"
)
# Where that stands at the latest in a line, bytes.
_LOGGED_WITHIN: Final = 512


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One classified line or traceback.

    Attributes:
        start, end: bytes in the scanned data of the line that speaks.
        meaning: what it says.
        prefix: what stood before it.
        explicit: a whole traceback: the last word of a process, not one line among many.
        groups: named parts of the text: exit, signal, rank, local_rank, pid, ...
    """

    start: int
    end: int
    line: str
    meaning: Meaning
    prefix: Prefix
    explicit: bool = False
    groups: dict[str, str] = {}


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of a chunk.

    Attributes:
        consumed: bytes that are done with; the rest belongs to a traceback that goes on in the next chunk.
    """

    found: tuple[Finding, ...]
    reported: tuple[Reported, ...]
    consumed: int


def scan(data: bytes, catalogue: Catalogue, *, final: bool) -> Findings:
    """Findings of ``data``, which consists of whole lines (the very last may lack its newline when ``final``)."""
    consumed = len(data)
    tracebacks: list[TracebackText] = []
    for item in find_tracebacks(data, final=final):
        if isinstance(item, Incomplete):
            if len(data) - item.start < MAX_HELD:
                consumed = item.start
            break
        tracebacks.append(item)
    if consumed < len(data):
        tracebacks = [t for t in tracebacks if t.end <= consumed]
    text = data if consumed == len(data) else data[:consumed]
    inside = {span for t in tracebacks for span in t.spans}
    found = [f for f in (_of_traceback(text, t, catalogue) for t in tracebacks) if f is not None]
    hits = list(catalogue.scan(text, where=Catalogue.STREAM))
    found += _of_lines(text, hits, inside)
    found.sort(key=lambda f: f.start)
    # A launcher's statements are lines that a signature knows too, so a chunk without any needs no second look.
    reported = tuple(read_reports(text)) if any("launcher" in hit.signature.where for hit in hits) else ()
    return Findings(found=tuple(found), reported=reported, consumed=consumed)


def _of_traceback(data: bytes, item: TracebackText, catalogue: Catalogue) -> Finding | None:
    meaning = exception_meaning(catalogue, item.chain, frame=item.frame)
    if item.ignored:
        meaning = msgspec.structs.replace(meaning, slug="teardown_noise", role="context")
    elif _DAMAGED_REPORT.search(data, item.start, item.end):
        # The launcher fell over a rank's damaged error file; what ended the rank is another matter.
        meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
    elif meaning.slug == "peer_lost" and _FROM_LOADER.search(data, item.start, item.end):
        # The lost partner is this rank's own data worker and no other rank.
        meaning = msgspec.structs.replace(meaning, slug="dataloader_died", role="primary")
    line = data[item.final_start : item.final_end]
    return Finding(
        start=item.final_start,
        end=item.final_end,
        line=decode(line),
        meaning=meaning,
        prefix=item.prefix,
        explicit=True,
    )


def _of_lines(data: bytes, hits: list[Hit], inside: set[tuple[int, int]]) -> Iterator[Finding]:
    group: list[Hit] = []
    for hit in hits:
        if group and hit.line_start != group[0].line_start:
            yield from _line(data, group, inside)
            group = []
        group.append(hit)
    if group:
        yield from _line(data, group, inside)


def _line(data: bytes, hits: list[Hit], inside: set[tuple[int, int]]) -> Iterator[Finding]:
    start, end = hits[0].line_start, hits[0].line_end
    if (start, end) in inside:
        return
    hit = best(hits)
    if hit is None or (hit.signature.slug == "unknown" and hit.signature.role == "context"):
        return
    raw = data[start:end]
    prefix = parse_prefix(raw)
    signature = hit.signature
    matched = normalise(decode(data[hit.start : hit.end]))
    meaning = meaning_of_hit(hit, text=decode(raw), fingerprint=f"{signature.slug}:{signature.id}:{matched}")
    if "launcher" not in signature.where and _DAMAGED_LOGGED.search(raw, 0, _LOGGED_WITHIN) is not None:
        meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
    merged = {key: value for each in hits for key, value in each.groups.items()} | hit.groups
    yield Finding(start=start, end=end, line=meaning.text, meaning=meaning, prefix=prefix, groups=merged)


class ChunkScanner:
    """Scans a stream that comes in chunks cut anywhere: whole lines only, a broken-off line or traceback waits for the next chunk."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._carry = b""
        self._lines = 0
        self.consumed = 0

    @property
    def waiting(self) -> bool:
        """Whether something broken off waits for more."""
        return bool(self._carry)

    def feed(
        self, data: bytes, *, final: bool
    ) -> tuple[list[tuple[Finding, int, int]], list[tuple[Reported, int, int]]]:
        """Findings and a launcher's statements, each with its byte (from 0) and line (from 1) in the whole stream.

        Args:
            data: the next bytes, none left out.
            final: nothing follows, so that what is broken off is taken as it is.
        """
        text = self._carry + data if self._carry else data
        cut = len(text) if final else text.rfind(b"\n") + 1
        if not cut and len(text) > MAX_PARTIAL:
            cut = len(text)
        result = scan(text[:cut] if cut < len(text) else text, self._catalogue, final=final)

        def place(at: int) -> tuple[int, int]:
            return self.consumed + at, self._lines + text.count(b"\n", 0, at) + 1

        found = [(finding, *place(finding.start)) for finding in result.found]
        reported = [(one, *place(one.at)) for one in result.reported]
        self._lines += _newlines(text if result.consumed == len(text) else text[: result.consumed])
        self._carry = text[result.consumed :]
        self.consumed += result.consumed
        return found, reported


def _newlines(data: bytes) -> int:
    """How many newlines there are; in half of the time that ``count`` takes, which looks at each byte by itself."""
    pieces = (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
    return len(data) - sum(len(piece.replace(b"\n", b"")) for piece in pieces)
