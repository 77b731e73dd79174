"""Classified lines: a line's meaning is computed once, however often a program prints it.

Memory: at most ``_MAX_KNOWN`` lines of at most ``_MAX_KNOWN_LINE`` bytes for each catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from rankfall.evidence.readers.classify import Meaning, meaning_of_hit
from rankfall.evidence.readers.frames import exception_of
from rankfall.evidence.readers.prefixes import LOGGER_WORD, Prefix, parse_prefix
from rankfall.evidence.readers.text import decode, message_of, normalise
from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded, linear
from rankfall.model.timestamps import printed_second
from rankfall.verdict.diagnose.survived_lines import is_low
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit, Matcher, best

# Maximum lines with a cached meaning, and their length.
_MAX_KNOWN: Final = 4096
_MAX_KNOWN_LINE: Final = 512
_ANCHOR: Final = bounded(r"(?:^|[^\[\\])(?:\^|\$)|\\[Az]", limit=1 << 16)
_LINE_END: Final = linear(rb"(?:\x1b\[[0-9;]*m|\s)+$")
# All words of a logger before its message: also glog's head, seconds, and the logger's name.
_LOGGER: Final = anchored(
    rb"(?:"
    + LOGGER_WORD
    + rb"|[EWIF]\d{4} [\d:.]{8,15} +\d{1,8} \S{1,128}:\d{1,6}\] ?|\d{10}\.\d{1,9} |[\w.:<>]{1,64} - ){1,8}",
    limit=1024,
)
# How pytest marks the lines of an exception, and its summary of one.
_PYTEST: Final = bounded(rb"\A(?:E {2,16}|FAILED \S{1,300} - )", limit=1 << 16)
# Bytes of a line in which its time is.
_MAX_STAMPED: Final = 512
# Lines of one JSON message.
_MAX_MESSAGE_LINES: Final = 64
# A damaged report in the launcher's log format. The logger shortens its path at the first sys.path match, so in working
# folder / a job's path is complete.
_DAMAGED_LOGGED: Final = bounded(
    rb"[EWI]\d{4} [\d:.]+ +\d+ (?:[^ ]*/)?torch/distributed/elastic/multiprocessing/errors/__init__.py:\d+\]", limit=512
)
# A bar of preparing data that is not full: ``Tokenizing:  9%|##   | 280000/2969526 [29:55<4:48:08, 155.57 examples/s]``.
_BAR: Final = linear(
    rb"([^\n\r|]{0,120})\b\d{1,2}% ?\|(?:[^|\n\r]{0,600}\|)?[^\[|\n\r]{1,60}\[(?:(\d{1,3}):)?(\d{1,2}):(\d\d)<[^\]\n\r]{1,80}\]"
)
_PREPARES: Final = linear(
    rb"(?i)token|\bmap|filter|process|generat|pack|group|format|extract|convert|download|pars|cach|prepar|index|encod|examples/s"
)
_WAITED: Final = bounded(r"(?:Timeout\(ms\)=|timed? ?out after )(\d{5,9})(?:ms|\))", limit=1024)
# Of process groups: NCCL's, and gloo's and the store's.
_USUAL_WAITS_MS: Final = (600_000, 1_800_000)


# A statement of Python that raises an exception.
_STATEMENT: Final = bounded(
    rb"\A(?:raise ([A-Za-z_][\w.]{0,120})(?:\([fr]?[\"']{1,3}(.*))?|assert\b ?(.*))", limit=4096
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One classified line or traceback.

    Attributes:
        start, end: Bytes of the decisive line.
        explicit: True for a whole traceback.
        kind: Key for counting.
        last: True if it represents its kind after the first ones.
        clean_up: True if raised during an ending process's cleanup.
        place, collective: Where the user's code raised it, and the collective that it called.
        caught: The program caught the exception and printed it.
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
    place: str | None = None
    collective: str | None = None
    caught: bool = False

    @property
    def fails(self) -> bool:
        """True if the finding reports a failure, of its speaker or of another process."""
        return self.meaning.role != "context"

    @property
    def uncaught(self) -> bool:
        """True for a cause that nothing caught: its process ended."""
        return self.explicit and self.meaning.role == "primary" and not self.caught


_INFO: Final = b" NCCL INFO "
# A line in the form of any exception, and causes of exceptions without a known message.
_EXCEPTION: Final = "user_code_exception.line"
_GENERAL: Final = frozenset({"user_code_exception", "unknown"})


class LineMeaning:
    """A line with a hit; its meaning is computed only on demand.

    Attributes:
        kind: Key for counting; None if the line is no finding.
        slug: Cause of its finding.
        launcher: True if a launcher wrote the line.

    Its hits are in ``text``: the line, or a part of it without prefix or JSON.
    """

    __slots__ = ("_finding", "_hit", "_hits", "_prefix", "_raw", "_text", "kind", "launcher", "slug")

    def __init__(self, raw: bytes, hits: list[Hit], *, text: bytes) -> None:
        self.launcher = any("launcher" in hit.signature.where for hit in hits)
        self.kind: tuple[str, int | None] | None = None
        self.slug = ""
        self._finding: Finding | None = None
        hit = best(hits)
        if hit is None or (hit.signature.slug == "unknown" and hit.signature.role == "context"):
            return
        self._raw, self._hits, self._hit = raw, hits, hit
        self._text = text
        own = parse_prefix(raw)
        self._prefix = own if own.raw or text is raw else parse_prefix(text)
        rank = self._prefix.rank if self._prefix.rank is not None else numbers.whole(hit.groups.get("rank"))
        self.kind, self.slug = (hit.signature.id, rank), hit.signature.slug

    @property
    def finding(self) -> Finding:
        """The finding, at byte 0."""
        if self._finding is None:
            self._finding = self._made()
            self._raw, self._hits, self._text = b"", [], b""
        return self._finding

    def _made(self) -> Finding:
        raw, hit = self._raw, self._hit
        signature, text = hit.signature, decode(raw)
        matched = normalise(decode(self._text[hit.start : hit.end]))
        meaning = meaning_of_hit(hit, text=text, fingerprint=f"{signature.slug}:{signature.id}:{matched}")
        if "launcher" not in signature.where and _DAMAGED_LOGGED.search(raw) is not None:
            meaning = msgspec.structs.replace(meaning, slug="controller_verdict", role="context")
        if is_low(raw):
            # The error that follows such a warning has more detail.
            meaning = msgspec.structs.replace(meaning, specificity=meaning.specificity - 1)
        merged = {key: value for each in self._hits for key, value in each.groups.items()} | hit.groups
        return Finding(start=0, end=len(raw), line=meaning.text, meaning=meaning, prefix=self._prefix, groups=merged)


class LineMeanings:
    """Cache: a program that repeats a line is classified once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.matcher = catalogue.matcher(Catalogue.STREAM)
        # Prefix or line end hide a text from patterns with anchors only.
        anchored = [one for one in self.matcher.signatures if _ANCHOR.search(one.pattern)]
        self._anchored = Matcher(anchored, self.matcher.words)
        self._exceptions = catalogue.matcher("exception")
        self._known: dict[bytes, LineMeaning] = {}

    def of(self, raw: bytes) -> LineMeaning:
        """Meaning of a line."""
        known = self._known.get(raw)
        if known is None:
            known = self._meaning(raw)
            if len(raw) <= _MAX_KNOWN_LINE:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[raw] = known
        return known

    def _meaning(self, raw: bytes) -> LineMeaning:
        """Meaning of the line; of its text without prefix if a pattern for the line's beginning matches only there."""
        hits = self.matcher.match_line(raw)
        if _INFO in raw:
            # NCCL tries plug-ins and devices that need not exist.
            hits = [hit for hit in hits if "NCCL" in hit.signature.printed_by]
        length = parse_prefix(raw).length
        message, matcher = message_of(raw[length:] if length else raw), self.matcher
        if message is None and not hits:
            # A color ends with a letter, which hides the beginning of a word.
            matcher = self.matcher if b"\x1b" in raw else self._anchored
            message = raw[length:]
            if (end := _LINE_END.search(message)) is not None:
                message = message[: end.start()]
            if (words := _LOGGER.match(message)) is not None and not is_low(raw):
                # The text behind the words of a logger is tried, too.
                message += b"\n" + message[words.end() :]
        chosen, text = best(hits), raw
        for line in message.split(b"\n", _MAX_MESSAGE_LINES)[:_MAX_MESSAGE_LINES] if message else ():
            inner = matcher.match_line(line) if line != raw else []
            found = best((*inner, *((chosen,) if chosen is not None else ())))
            if found is not chosen:
                chosen, text, hits = found, line, inner
        if chosen is not None and chosen.signature.id == _EXCEPTION:
            behind = text[length:] if text is raw else text[parse_prefix(text).length :]
            hits = self._of_exception(_PYTEST.sub(b"", behind, count=1).strip(), chosen) or hits
        return LineMeaning(raw, hits, text=text)

    def _of_exception(self, text: bytes, line: Hit) -> list[Hit]:
        """Hit of the exception that a line without a traceback shows, if a signature of exceptions knows its cause.

        ``text``: the line without prefix, of which ``line`` is the hit.
        """
        raised = exception_of(text)
        if raised is None:
            return []
        found = best(self._exceptions.match_line(b": ".join(raised)))
        if found is None or found.signature.slug in _GENERAL:
            return []
        return [msgspec.structs.replace(found, start=line.start, end=line.end)]


@lru_cache(maxsize=4)
def line_meanings(catalogue: Catalogue) -> LineMeanings:
    """Cache that all streams of a catalogue share: bounds memory."""
    return LineMeanings(catalogue)


class Bar(msgspec.Struct, frozen=True):
    """Progress bar of preparing data that is not full: its time in seconds, its first byte and its text."""

    seconds: int
    byte: int
    line: bytes

    def covers(self, complaint: str) -> bool:
        """True if the bar ran during the whole time that a line of a time-out states; without one, that torch usually waits."""
        stated = _WAITED.search(complaint)
        waits = _USUAL_WAITS_MS if stated is None else (numbers.matched(stated[1]) or 1,)
        return any(0.75 <= self.seconds * 1000 / wait <= 1.2 for wait in waits)  # noqa: PLR2004 - it may begin late, and both are rounded


def bars_of(data: bytes, *, at: int) -> Iterator[Bar]:
    """Yields the bars of preparing data in a part of a stream that begins at byte ``at``."""
    if b"%|" not in data and b"% |" not in data:
        return
    for found in _BAR.finditer(data):
        if _PREPARES.search(found[0]) is not None:
            hours, minutes, seconds = (numbers.matched(found[each] or b"0") or 0 for each in (2, 3, 4))
            yield Bar(seconds=(hours * 60 + minutes) * 60 + seconds, byte=at + found.start(), line=found[0].strip())


def last_time(text: bytes) -> float | None:
    """Time of the last line of a text that has one with its date, in seconds; None without one."""
    for line in reversed(text.splitlines()):
        printed = printed_second(parse_prefix(line[:_MAX_STAMPED]).stamp)
        if printed is not None:
            return printed[0]
    return None


def raising(text: bytes) -> tuple[bytes, bytes] | None:
    """Returns type of the exception that a statement of Python raises, and its words or what it asserts; None for another line."""
    match = _STATEMENT.match(text)
    if match is None:
        return None
    return (match[1] or b"AssertionError").rpartition(b".")[2], match[3] or (match[2] or b"").rstrip(b"\"')")
