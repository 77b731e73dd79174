r"""Removes from a text what its way to a person put around every line: colors, quotation marks, numbers, an indent, a collector's JSON.

The first bytes of a text show what is around all of its lines; a later line without it stays as it is. A document of JSON is read whole.
Lines that a terminal broke at its right edge are joined; a traceback in an object's other key follows its text. ``Unwrapper.number`` gives
the number that a line has in the file.

Cost: one pass over a text that is wrapped, a search for escapes in others. Memory: the unfinished line, at most ``MAX_HELD`` bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from rankfall.evidence.files.json_records import MAX_DOCUMENT, lines_of_document, may_be_document, text_of_record
from rankfall.evidence.readers.frames import HEAD
from rankfall.evidence.readers.prefixes import learn, parse_prefix
from rankfall.evidence.readers.text import fold
from rankfall.model import numbers
from rankfall.model.patterns import Anchored, anchored, bounded

# Bytes that show how a text is wrapped; fewer lines show nothing.
_SAMPLE: Final = 64 << 10
_LEAST_LINES: Final = 3
# A longer line is passed on unfinished.
MAX_HELD: Final = 1 << 20
_MAX_LAYERS: Final = 3
# Records of several lines; a further one stays an object, which the readers know.
_MAX_TRACED: Final = 1 << 16
_LONGEST_NAME: Final = 256

# What follows the escape character of a terminal; and colors that have lost theirs in a page.
_ESCAPED: Final = anchored(rb"\[[0-9;?]{0,64}[A-Za-z]|\][^\x07\n]{0,512}(?:\x07|\Z)|\\|\([A-Z0-9]", limit=600)
_BARE: Final = bounded(rb"\[\d{1,3}(?:;\d{1,3}){0,6}m", limit=64 << 20)
_BARE_END: Final = b"[0m"
_ESCAPE_TAIL: Final = 64
_QUOTED: Final = anchored(rb"> ?", limit=4)
_NUMBERED: Final = anchored(rb"[ \t]{0,8}(\d{1,7})(?:[:|] ?|-|[ ]{2}|\t|\.(?: |\Z)|\Z)", limit=32)
# Name of a log and perhaps the number of its line, as grep prints them; a line near a match has dashes.
_GREPPED: Final = anchored(
    rb"((?:[\w.+=@,/-]{0,200}[\w-])?\.(?:log|txt|out|err|stdout|stderr|jsonl?)(?:\.\d{1,4})?)([:-])(?:(\d{1,9})([:-]))?",
    limit=256,
)
_RANK_OF_NAME: Final = bounded(rb"(?i)(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?:[^0-9]|$)", limit=256)
# Between the matches of grep, and around text in a page.
_GAP: Final = b"--"
_FENCES: Final = (b"```", b"~~~", b"grep: ", b"Binary file ")
# A message of syslog or the journal, but not one about its machine: the reader of prefixes takes the node from it.
_SYSLOG: Final = anchored(
    rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16}) [\w.-]{1,253} (?!kernel|systemd(?:-oomd)?\[)[\w./@-]{1,128}\[\d{1,8}\]: ?",
    limit=512,
)
# A line of a container runtime's log file.
_RUNTIME: Final = anchored(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} std(?:out|err) [FP] ?", limit=64)
# ctest puts a test's number before what it prints.
_TEST: Final = anchored(rb"\d{1,6}: (?:Test command|Working Directory|Test timeout computed to be): ", limit=64)
_TEST_NUMBER: Final = anchored(rb"\d{1,6}: ?", limit=16)
_INDENT: Final = anchored(rb"[ \t]+", limit=64)
# A time alone on its line, before the line that it dates.
_DATE: Final = anchored(
    rb"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s*\Z", limit=64
)
_LEAST_DATES: Final = 4
_FRAME: Final = anchored(rb'[ \t]*File "', limit=96)
# A terminal's right edge: columns, broken lines that show it, and joined lines of a text.
_COLUMNS: Final = range(60, 513)
_LEAST_BROKEN: Final = 2
_MAX_JOINED: Final = 1 << 16
# Bytes that show how a line begins, without its digits; and characters of lines of tables.
_BEGIN: Final = 8
_RULES: Final = b"|=-*#+_~"
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
# Begin of an entry, whatever is before it.
_ENTRY: Final = anchored(
    rb"\s*(?:File \"|Traceback |\[rank|\[default|\[\d|\d{4}-\d\d|\d\d:\d\d|[A-Z]{4,8}[: ]|[IWEF]\d{4} |\w{1,60}(?:Error|Exception)\b)",
    limit=128,
)

Layer = Callable[[bytes], bytes | None]


class Unwrapper:
    """Unwraps one text, part by part."""

    def __init__(self) -> None:
        self._layers: list[Layer] | None = None
        self._joins: LineJoiner | None = None
        # Lines that each layer added.
        self._added: list[_Added] = []
        self._held = b""
        # Number of the line of each line of a document's records.
        self._numbers: array[int] | None = None
        self._whole = False
        # A search of all bytes costs more than all that a plain text needs.
        self._bare = False

    def push(self, data: bytes, *, final: bool = False) -> bytes:
        """Returns the text of the next bytes without what is around it; an unfinished line of a wrapped text waits.

        Args:
            data: the next bytes.
            final: no more follow directly; what waits counts.
        """
        data = self._held + data if self._held else data
        self._held = b""
        if self._layers is None:
            self._whole = self._whole or (bool(data) and may_be_document(data))
            if self._whole and len(data) <= MAX_DOCUMENT:
                if not final:
                    self._held = data
                    return b""
                if (found := lines_of_document(data)) is not None:
                    data, self._numbers = found
            cut = len(data) if final else data.rfind(b"\n", 0, _SAMPLE) + 1
            if not cut and len(data) < _SAMPLE:
                self._held = data
                return b""
            self._layers = layers_of(data[: cut or _SAMPLE])
            self._added = [_Added() for _ in self._layers]
            sample = without_escapes(data[: cut or _SAMPLE]).split(b"\n")
            for layer in self._layers:
                sample = _Added().inner(sample, layer)
            columns = columns_of(sample)
            self._joins = (
                DateJoiner(sample) if dates_lines(sample) else LineJoiner(sample, columns) if columns else None
            )
            self._bare = _BARE_END in data[:_SAMPLE]
        if not final and (self._layers or self._joins or b"\x1b" in data[-_ESCAPE_TAIL:]):
            cut = data.rfind(b"\n") + 1
            if cut or len(data) <= MAX_HELD:
                data, self._held = data[:cut], data[cut:]
        data = without_escapes(data, bare=self._bare)
        if self._layers:
            lines = data.split(b"\n")
            for layer, added in zip(self._layers, self._added, strict=True):
                lines = added.inner(lines, layer)
            data = b"\n".join(lines)
        return self._joins.push(data, final=final) if self._joins is not None else data

    def number(self, line: int) -> int:
        """Number in the file, from 1, of a line of the returned text."""
        line = self._of_layers(line)
        for added in reversed(self._added):
            line -= added.before(line)
        return line if self._numbers is None else self._numbers[max(0, min(line, len(self._numbers)) - 1)]

    def is_added(self, line: int) -> bool:
        """True for a line of a traceback that a record holds in another key than its text's."""
        line = self._of_layers(line)
        for added in reversed(self._added):
            if (before := added.before(line)) != added.before(line - 1):
                return True
            line -= before
        return False

    def _of_layers(self, line: int) -> int:
        """Number of a line among those that the layers left."""
        return line if self._joins is None else line + self._joins.before(line)


class _Added:
    """Applies one layer, and counts the lines that it adds: those of tracebacks behind the texts of their records."""

    def __init__(self) -> None:
        self._lines = 0
        # Number of the last line of each record that has several, and of the lines that were added up to it.
        self._ends = array("L")
        self._counts = array("L")

    def inner(self, lines: list[bytes], layer: Layer) -> list[bytes]:
        """Returns what the layer leaves of lines; the last one has no end yet."""
        if layer is not text_of_record:
            return [line if (inner := layer(line)) is None else inner for line in lines]
        out: list[bytes] = []
        for line in lines:
            inner = layer(line)
            if inner is None:
                out.append(line)
            elif b"\n" not in inner:
                out.append(inner)
            elif len(self._ends) >= _MAX_TRACED:
                out.append(line)
            else:
                several = inner.split(b"\n")
                out += several
                self._ends.append(self._lines + len(out))
                self._counts.append(self._counted(len(self._counts)) + len(several) - 1)
        self._lines += len(out) - 1
        return out

    def before(self, line: int) -> int:
        """Number of lines that were added before this one, from 1; a line of a traceback has its record's number."""
        record = bisect_left(self._ends, line)
        before = self._counted(record)
        if record == len(self._ends):
            return before
        # Of the record itself, whose first line is not added.
        first = self._ends[record] - (self._counts[record] - before)
        return before + max(0, line - first)

    def _counted(self, records: int) -> int:
        return self._counts[records - 1] if records else 0


class LineJoiner:
    """Joins lines that end at the right edge with the lines that continue them.

    ``columns``: the edge. A line that begins like an entry of the sample continues nothing.
    """

    def __init__(self, sample: list[bytes], columns: int = 0) -> None:
        self._columns = columns
        self._begins = begins_of(sample, columns)
        # Broken lines that wait for their end.
        self._whole: list[bytes] = []
        # Complete lines so far, and for each joined line the number that its first part has among them.
        self._lines = 0
        self._joined = array("L")

    def push(self, data: bytes, *, final: bool) -> bytes:
        """Returns complete lines; a broken line waits for its end."""
        out: list[bytes] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._whole and not self._continues(line):
                self._flush(out)
            self._whole.append(line)
            if not self._broken(line) or len(self._joined) >= _MAX_JOINED:
                self._flush(out)
        if final or rest:
            # An unfinished line is the last one.
            if self._whole and not self._continues(rest):
                self._flush(out)
            self._whole.append(rest)
            out.append(self._joined_line())
            self._whole = []
        else:
            out.append(b"")
        return b"\n".join(out)

    def before(self, line: int) -> int:
        """Number of line ends that were removed before this line of the joined text."""
        return bisect_left(self._joined, line)

    def _flush(self, out: list[bytes]) -> None:
        self._lines += 1
        self._joined.extend([self._lines] * (len(self._whole) - 1))
        out.append(self._joined_line())
        self._whole = []

    def _joined_line(self) -> bytes:
        return b"".join(self._whole)

    def _continues(self, line: bytes) -> bool:
        return _may_continue(line, self._begins)

    def _broken(self, line: bytes) -> bool:
        return _width(line) == self._columns and not _ends_in_frame(line)


class DateJoiner(LineJoiner):
    """Drops the lines of a page that hold only the time of the next line."""

    def _joined_line(self) -> bytes:
        return self._whole[-1]

    def _continues(self, line: bytes) -> bool:
        return not self._broken(line)

    def _broken(self, line: bytes) -> bool:
        return _DATE.match(line) is not None


def dates_lines(lines: list[bytes]) -> bool:
    """True if times alone on their lines alternate with other lines."""
    dates = [_DATE.match(line) is not None for line in lines if line]
    return sum(dates) >= _LEAST_DATES and all(one or other for one, other in pairwise(dates))


def columns_of(lines: list[bytes]) -> int | None:
    """Columns of the terminal that broke these lines; None if they do not show it.

    At the edge words are broken: other lines of one length end and begin with whole ones.
    """
    widths = [_width(line) for line in lines]
    edge = max(widths, default=0)
    full = [at for at, width in enumerate(widths[:-1]) if width == edge]
    if edge not in _COLUMNS or len(full) < _LEAST_BROKEN:
        return None
    begins = begins_of(lines, edge)
    broken = [at for at in full if not _ends_in_frame(lines[at]) and _may_continue(lines[at + 1], begins)]
    inside = [at for at in broken if lines[at][-1:].isalnum() and lines[at + 1][:1].isalnum()]
    # Ranks print one message at one length.
    different = {lines[at].translate(_DIGITS) for at in inside}
    return edge if 2 * len(broken) >= len(full) and len(different) >= _LEAST_BROKEN else None


def begins_of(lines: list[bytes], columns: int) -> frozenset[bytes]:
    """Begins of the lines that certainly continue no other one: those after a shorter line, and the first."""
    return frozenset(
        _begin(line) for at, line in enumerate(lines) if line and (not at or _width(lines[at - 1]) < columns)
    )


def _begin(line: bytes) -> bytes:
    return line[:_BEGIN].translate(_DIGITS)


def _may_continue(line: bytes, begins: frozenset[bytes]) -> bool:
    return bool(line) and not _ENTRY.match(line) and _begin(line) not in begins


def _ends_in_frame(line: bytes) -> bool:
    """True for a line of a table or a box, and for one that blanks fill up to the edge."""
    last = line[-1:]
    return line.endswith(b"  ") or last in _RULES or last >= b"\x80"


def _width(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode(errors="replace"))


def without_escapes(data: bytes, *, bare: bool = True) -> bytes:
    """A text without colors and other escapes of a terminal; ``bare``: also colors that have lost their escape."""
    if b"\x1b" in data:
        first, *rest = data.split(b"\x1b")
        data = first + b"".join([text[match.end() :] if (match := _ESCAPED.match(text)) else text for text in rest])
    return _BARE.sub(b"", data) if bare and _BARE_END in data else data


def layers_of(sample: bytes) -> list[Layer]:
    """Returns the layers around every line of a text, the outermost first.

    Args:
        sample: the text's first lines.
    """
    lines = [line.rstrip(b"\r") for line in without_escapes(sample).split(b"\n") if line.strip()]
    found: list[Layer] = []
    if any(_TEST.match(line) for line in lines):
        found.append(_behind(_TEST_NUMBER))
        lines = [line if (inner := found[0](line)) is None else inner for line in lines]
    while len(found) < _MAX_LAYERS and len(lines) >= _LEAST_LINES:
        plain = [line for line in lines if line != _GAP and not line.startswith(_FENCES)]
        of_all = [one for one in _LAYERS if all(one(line) is not None for line in lines)]
        if not of_all and len(plain) >= _LEAST_LINES:
            of_all = [*_counted(plain, gaps=lines.count(_GAP)), *_grepped(plain)]
        if not of_all:
            of_all = [one for one in (*_margin(lines), *_named(lines)) if all(one(line) is not None for line in lines)]
        layer = of_all[0] if of_all else None
        if layer is None:
            break
        found.append(layer)
        lines = [inner for inner in _Added().inner(lines, layer) if inner.strip()]
    return found


def _behind(pattern: Anchored[bytes]) -> Layer:
    def inner(line: bytes) -> bytes | None:
        match = pattern.match(line)
        return None if match is None else line[match.end() :]

    return inner


def _counted(lines: list[bytes], *, gaps: int) -> list[Layer]:
    """Numbers that grow with every line; only behind one of the gaps by more."""
    counts = [numbers.matched(match[1]) if (match := _NUMBERED.match(line)) else None for line in lines]
    steps = [b - a if a is not None and b is not None else 0 for a, b in pairwise(counts)]
    return [_behind(_NUMBERED)] if all(s > 0 for s in steps) and sum(s >= _LEAST_LINES for s in steps) <= gaps else []


def _grepped(lines: list[bytes]) -> list[Layer]:
    """Name of a file before every line, with the number of the line if it grows in each file; a rank in the name stays."""
    matches = [match for line in lines if (match := _GREPPED.match(line)) is not None]
    if len(matches) < len(lines):
        return []
    following = [(a[3], b[3]) for a, b in pairwise(matches) if a[1] == b[1]]
    numbered = all(match[3] and match[2] == match[4] for match in matches) and bool(following)
    numbered = numbered and all(numbers.matched(a) < numbers.matched(b) for a, b in following)

    def inner(line: bytes) -> bytes | None:
        match = _GREPPED.match(line)
        if match is None or (numbered and not match[3]):
            return None
        rest = line[match.end(4 if numbered else 2) :]
        rank = _RANK_OF_NAME.search(match[1])
        return rest if rank is None or parse_prefix(rest).rank is not None else b"[rank%s]: %s" % (rank[1], rest)

    return [inner]


def _margin(lines: list[bytes]) -> list[Layer]:
    """An indent of all lines; but frames alone are a traceback without its ends."""
    widths = {len(match.group()) if (match := _INDENT.match(line)) else 0 for line in lines}
    width = min(widths)
    if not width or all(_FRAME.match(line) for line in lines if not line[width : width + 1].isspace()):
        return []
    return [lambda line: line[width:] if not line[:width].strip() else None]


def _named(lines: list[bytes]) -> list[Layer]:
    """Words and a clock before every line of a text that holds a traceback, as of a pod or a logger; never a rank."""
    folded = [fold(line[:_LONGEST_NAME]) for line in lines]
    first, last = min(folded), max(folded)
    size = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
    words = lines[0][:size]
    size = max(words.rfind(b" "), words.rfind(b"\t")) + 1
    known = learn(words[:size])
    if not words[:size].strip() or known.name or not known.rank is known.local_rank is known.slot is known.pid is None:
        return []
    if not any(line.startswith(HEAD, size) or _FRAME.match(line, size) for line in lines):
        return []
    alone = known.stamp is not None and all(parse_prefix(line).length >= size for line in lines)
    if alone and not any(parse_prefix(line[size:]).stamp is not None or _DATE.match(line, size) for line in lines):
        return []  # the readers use the only time of a line
    name = fold(words[:size])
    return [lambda line: line[size:] if fold(line[:size]) == name else None]


def _before_mark(line: bytes) -> bytes | None:
    """A line without the mark of its end, as ``cat -A`` and editors show it."""
    return line[:-1] if line.endswith(b"$") else None


_LAYERS: Final = (text_of_record, _behind(_QUOTED), _behind(_RUNTIME), _behind(_SYSLOG), _before_mark)
