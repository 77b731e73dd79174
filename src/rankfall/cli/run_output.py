"""Writes a run's lines to stdout; reads user frames and last lines of unknown ranks.

Pipes get the job's raw bytes, terminals escaped text. Loads no supervisor, for ``logs`` and ``why``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import FINAL_STATES, LostLines, RankfallError, Record, StoreError, Verdict, decoding
from rankfall.model.evidence import line_place
from rankfall.model.jobspec.secrets import secrets_of
from rankfall.model.patterns import anchored, bounded
from rankfall.render import formatting
from rankfall.render.escape import Redactor, clean_line, is_plain, one_line
from rankfall.render.formatting import Paint, wants_color
from rankfall.render.tables import held_by
from rankfall.render.verdict import Details
from rankfall.rundir import RunDir
from rankfall.rundir.lines import Block, Line, LineQuery, block_of, read_lines
from rankfall.rundir.lines.derived_files import ALL_RANKS
from rankfall.rundir.records import read_untrusted_file
from rankfall.rundir.streams.content import Packed, Raw, open_content

_NS: Final = 1_000_000_000
# Largest batch in bytes; a larger one delays the first line.
_BATCH: Final = 256 << 10
# Characters of the sentence about a job's end.
_ENDED: Final = 400
_COLORS: Final = ("36", "33", "35", "32", "34", "96", "93", "95")


class LineWriter:
    """Writes lines to stdout.

    Args:
        prefix: Put ``[rank N] `` (or ``[slot S] ``) before each line.
        timestamps: Add arrival times.
        as_json: Write one JSON object per line.
        limit: Most bytes; the first line beyond them ends the output.
        redact: Masks secrets.

    Attributes:
        spent: True if ``limit`` was reached.
    """

    def __init__(
        self,
        *,
        prefix: bool = True,
        timestamps: bool = False,
        as_json: bool = False,
        limit: int | None = None,
        redact: Redactor | None = None,
    ) -> None:
        self._redact = redact
        self._left = limit
        self.spent = False
        self._prefix = prefix
        self._timestamps = timestamps
        self._json = as_json
        # Without a binary stdout, write text.
        self._safe = sys.stdout.isatty() or getattr(sys.stdout, "buffer", None) is None
        self._paint = Paint(color=wants_color(sys.stdout))

    def write(self, blocks: Iterable[Block], *, note: str | None = None) -> bool:
        """Writes and flushes blocks of lines, with ``note`` in the prefix; True if a line was written."""
        any_ = False
        raw: list[bytes] = []
        lines_out: list[str] = []
        size = 0
        for block in blocks if self._redact is None else self._masked(blocks, self._redact):
            if self.spent:
                break
            for text in self._texts(block, note):
                any_ = True
                size += len(text)
                if isinstance(text, str):
                    lines_out.append(text)
                else:
                    raw.append(text)
            if size >= _BATCH:
                self._flush(raw, lines_out)
                size = 0
        self._flush(raw, lines_out)
        return any_

    def _flush(self, raw: list[bytes], printed: list[str]) -> None:
        """Writes the batch in one piece, so its reader wakes once."""
        if printed:
            sys.stdout.write("".join(printed))
        if printed or raw:
            # Earlier text must come first.
            sys.stdout.flush()
        if raw:
            sys.stdout.buffer.write(b"".join(raw))
            sys.stdout.buffer.flush()
        raw.clear()
        printed.clear()

    def lost(self, lost: Sequence[LostLines]) -> None:
        """Prints the numbers of missing lines as a last JSON object, ``lost_lines``; nothing in other formats."""
        if self._json and lost:
            found = {"lost_lines": msgspec.to_builtins(lost), "incomplete": [one.text for one in lost]}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()

    def _texts(self, block: Block, note: str | None) -> Iterator[str | bytes]:
        """Yields a block's text, or the lines within the limit."""
        text = self._text(block, note)
        if self._left is None:
            yield text
            return
        if (size := _size(text)) <= self._left:
            self._left -= size
            yield text
            return
        for line in block.lines():
            text = self._text(block_of(line), note)
            self._left -= _size(text)
            if self._left < 0:
                self.spent = True
                return
            yield text

    def _text(self, block: Block, note: str | None) -> str | bytes:
        """Raw bytes for a pipe, escaped text for a terminal."""
        if self._json:
            return "".join(json.dumps(as_data(line)) + "\n" for line in block.lines())
        head = self._head(block.first, note)
        if not self._safe:
            return _before_each(head.encode(), block.data)
        if is_plain(block.data):
            return _before_each(head.encode(), block.data).decode()
        return "".join(f"{head}{clean_line(line)}\n" for line in block.data[:-1].split(b"\n"))

    def _masked(self, blocks: Iterable[Block], redact: Redactor) -> Iterator[Block]:
        """Yields each line without secrets."""
        for line in (line for block in blocks for line in block.lines()):
            text = redact.line(line.data.decode("utf-8", "surrogateescape"), stream=line.stream)
            data = text.encode("utf-8", "surrogateescape")
            yield block_of(msgspec.structs.replace(line, data=data, stream=redact.text(line.stream)))

    def _head(self, line: Line, note: str | None) -> str:
        time = f"{stamp(line.at)} " if self._timestamps else ""
        if not self._prefix:
            return time
        who = f"rank {line.rank}" if line.rank is not None else f"slot {line.slot}"
        who = f"[{', '.join(filter(None, (who, 'late' if line.late else None, note)))}]"
        code = _COLORS[line.rank % len(_COLORS)] if line.rank is not None else "2"
        return f"{time}{self._paint(who, code)} "


def _before_each(head: bytes, data: bytes) -> bytes:
    return head + data[:-1].replace(b"\n", b"\n" + head) + b"\n" if head else data


def _size(text: str | bytes) -> int:
    return len(text if isinstance(text, bytes) else text.encode(errors="replace"))


def secret_values(directory: RunDir) -> list[str]:
    """Secrets of a run's job; empty if they cannot be read."""
    try:
        return [found.text for found in secrets_of(directory.whole_spec()).values()]
    except RankfallError:
        return []


def spent_text(directory: RunDir) -> str:
    """Message for a reached ``--max-bytes``."""
    file = f", {directory.path / ALL_RANKS} (at the run's end)" if directory.foreign is None else ""
    return f"--max-bytes is reached, so the output ends here; all of it: rankfall logs {directory.id}{file}"


def ended_text(directory: RunDir) -> str:
    """Returns how a foreign job ended, with the next command; empty while it runs."""
    foreign = directory.foreign
    with directory.reader() as reader:
        row = reader.run()
    if foreign is None or row.state not in FINAL_STATES:
        return ""
    reason = f": {row.reason}" if row.reason else ""
    why = "" if row.state == "succeeded" else f"; rankfall why {directory.id}"
    return one_line(f"{foreign.target.label} {row.state}{reason}{why}", width=_ENDED)


def as_data(line: Line) -> dict[str, object]:
    """Returns a line as plain data; ``text`` escapes invalid UTF-8."""
    return {
        "at": stamp(line.at) if line.at is not None else None,
        "rank": line.rank,
        "attempt": line.attempt,
        "role": line.role,
        "slot": line.slot,
        "out": line.out,
        "stream": line.stream,
        "offset": line.offset,
        "text": line.data.decode("utf-8", "backslashreplace"),
        "truncated": line.truncated,
        "late": line.late,
    }


def stamp(at: int | None) -> str:
    """Formats RFC 3339 in UTC with nanoseconds; equally wide dashes if unknown."""
    if at is None:
        return "-" * 30
    return f"{datetime.fromtimestamp(at // _NS, UTC):%Y-%m-%dT%H:%M:%S}.{at % _NS:09d}Z"


_NAME: Final = anchored(r"records/([A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json)", limit=512)
_MAX_RECORD: Final = 1 << 20
_MAX_LISTED: Final = 3
# Lines shown before the decisive one, and bytes of a stream that are read to find them.
_BEFORE: Final = 3
# Lines in which the frames of the decisive exception are searched.
_TRACED: Final = 400
_OUTPUT: Final = 30
_SCAN: Final = 1 << 20
_MAX_SCAN: Final = 256 << 20
_MAX_CONTEXT: Final = 4096
# One frame of faulthandler.
_FATAL_FRAME: Final = bounded(r'  File "([^"]{1,1024})", line (\d{1,9}) in (\S{1,200})', limit=_MAX_CONTEXT)


def details_of(directory: RunDir, verdict: Verdict, redact: Redactor | None = None) -> Details:
    """Reads details of a verdict: stack frames, lines before the decisive one, and the step of the failed rank.

    ``redact`` masks secrets, also those that begin in earlier lines.
    """
    with directory.reader() as reader:
        rows = [row for row in reader.streams(verdict.attempt) if row.slot == verdict.slot]
        step = reader.failed_step(verdict.attempt or 0, verdict.rank)
        run = reader.summary()
    lines, after = _context_lines(verdict, directory.path)
    frames = _raised_at(directory, verdict) or _raised_in_text(verdict, lines, after)
    before = lines if frames or lines else _last_words(directory, verdict)
    return Details(
        frames=frames,
        before=(redact.lines(before) if redact is not None else before)[-_BEFORE:],
        step=step,
        apart=verdict.slot is None or not rows or any(row.rank is not None for row in rows),
        foreign=run.foreign,
        held=held_by(run, now=datetime.now(UTC)) if run.seen and verdict.attempt in {None, run.attempts} else "",
    )


def details_of_files(verdict: Verdict, within: Path = Path(), redact: Redactor | None = None) -> Details:
    """Reads the lines and frames before the decisive line of a verdict about files in ``within``; as :func:`details_of`."""
    lines, after = _context_lines(verdict, within)
    before = redact.lines(lines) if redact is not None else lines
    return Details(frames=_raised_in_text(verdict, lines, after), before=before[-_BEFORE:])


def last_lines(directory: RunDir, verdict: Verdict, redact: Redactor | None = None) -> tuple[str, ...]:
    """Reads the newest lines of the rank that failed first; none if the rank or its lines are unknown."""
    lines = _newest_lines(directory, verdict)
    return tuple(redact.lines(lines) if redact is not None else lines)[-_OUTPUT:]


def _last_words(directory: RunDir, verdict: Verdict) -> tuple[str, ...]:
    """Last lines of the failed rank, if the evidence is only its end."""
    if verdict.decisive is None or verdict.decisive.source not in {"exit", "record"}:
        return ()
    return _newest_lines(directory, verdict)


def _newest_lines(directory: RunDir, verdict: Verdict) -> tuple[str, ...]:
    if verdict.rank is None:
        return ()
    query = LineQuery(ranks=frozenset({verdict.rank}), attempt=verdict.attempt, tail=_TRACED)
    try:
        return tuple(
            line.data[:_MAX_CONTEXT].decode("utf-8", "backslashreplace") for line in read_lines(directory, query)
        )
    except RankfallError:
        return ()


def _raised_at(directory: RunDir, verdict: Verdict) -> tuple[str, ...]:
    """Returns ``FILE:LINE in FUNCTION`` of the innermost frames of the user's code, innermost first."""
    match = _NAME.fullmatch(verdict.decisive.where) if verdict.decisive else None
    if match is None:
        return ()
    try:
        record = decoding.decode(
            read_untrusted_file(directory.records_dir / match[1], limit=_MAX_RECORD)[0], kind=Record
        )
    except (OSError, msgspec.MsgspecError):
        return ()
    frames = record.error.frames if record.error else ()
    own = [frame for frame in frames if frame.user] or list(frames)
    return tuple(f"{frame.file}:{frame.line} in {frame.func or '?'}" for frame in reversed(own[-_MAX_LISTED:]))


def _raised_in_text(verdict: Verdict, lines: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Returns ``FILE:LINE in FUNCTION`` from the traceback that ends with the decisive line between the other lines.

    The stack of a fatal error of Python follows its line.
    """
    if verdict.decisive is not None and "Fatal Python error" in verdict.decisive.line:
        return _fatal_stack(after)
    if verdict.decisive is None or not lines:
        return ()
    from rankfall.evidence.readers.tracebacks import find_tracebacks  # noqa: PLC0415

    text = "\n".join((*lines, verdict.decisive.line, "")).encode("utf-8", "replace")
    found = [each for each in find_tracebacks(text) if each.finals[0].number > len(lines)]
    return found[-1].places if found else ()


def _fatal_stack(lines: Sequence[str]) -> tuple[str, ...]:
    """Places in the user's code of the thread that crashed, the innermost first."""
    from rankfall.evidence.readers.frames import Frames  # noqa: PLC0415

    found, stack = Frames(), list[tuple[bytes, bytes, bytes]]()
    for line in lines:
        match = _FATAL_FRAME.search(line)
        if match is not None:
            stack.append((match[1].encode(), match[2].encode(), match[3].encode()))
        elif stack:
            break
    for frame in reversed(stack):
        found.add(*frame)
    return found.places


def _context_lines(verdict: Verdict, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Lines of the stream before and after the decisive line, at most ``_TRACED`` each; none if that is no line of a log."""
    if verdict.decisive is None or verdict.decisive.source != "log":
        return (), ()
    name, number = line_place(verdict.decisive.where)
    if not name or number is None:
        return (), ()
    try:
        with open_content(folder / name) as content:
            chunks = _chunks(content, folder / name)
            lines = [*_window(chunks, number)] if verdict.run else _rows(chunks, number, verdict.decisive.line)
    except OSError:
        return (), ()
    at = next((index for index, (each, _) in enumerate(lines) if each >= number), len(lines))
    if at == len(lines):
        return (), ()
    return tuple(text for _, text in lines[:at]), tuple(text for _, text in lines[at + 1 :])


def _chunks(content: Raw | Packed, path: Path) -> Iterator[bytes]:
    """Yields the first ``_MAX_SCAN`` bytes of a stream, uncompressed, up to a damage."""
    from rankfall.evidence.files.bounded_read import unpacked_stream  # noqa: PLC0415

    def stored() -> Iterator[bytes]:
        start = 0
        while data := content.read(start, _SCAN):
            yield data
            start += len(data)

    taken = 0
    with contextlib.suppress(OSError):
        for data in unpacked_stream(stored(), path):
            yield data
            taken += len(data)
            if taken >= _MAX_SCAN:
                return


def _rows(chunks: Iterator[bytes], number: int, text: str) -> list[tuple[int, str]]:
    """Numbers and texts around line ``number``; of a document of JSON the text of its records."""
    from rankfall.evidence.files.json_records import MAX_DOCUMENT, may_be_document, nearby_lines  # noqa: PLC0415

    if may_be_document(data := next(chunks, b"")):
        data = b"".join((data, *islice(chunks, MAX_DOCUMENT // _SCAN)))
        if (rows := nearby_lines(data, number, text, most=_TRACED)) is not None:
            return [(at, row[:_MAX_CONTEXT]) for at, row in rows]
    return [*_window(chain((data,), chunks), number)]


def _window(chunks: Iterable[bytes], number: int) -> Iterator[tuple[int, str]]:
    """Yields the numbers and texts of the lines around line ``number``."""
    found: deque[tuple[int, bytes]] = deque(maxlen=2 * _TRACED + 1)
    first, rest = 1, b""
    for data in chunks:
        if first > number + _TRACED:
            break
        *lines, rest = (rest + data).split(b"\n")
        # A line without an end must not be copied again and again.
        rest = rest[:_MAX_CONTEXT]
        low, high = max(0, number - _TRACED - first), max(0, number + _TRACED + 1 - first)
        found.extend((first + at, line[:_MAX_CONTEXT]) for at, line in enumerate(lines[low:high], low))
        first += len(lines)
    if rest and number <= first <= number + _TRACED:
        found.append((first, rest))
    return ((at, line.decode("utf-8", "backslashreplace")) for at, line in found)


_LINES: Final = 20
_SLOTS: Final = 16


class UnknownRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Output of slots with unknown ranks.

    Attributes:
        slots: Slots with output.
        lines: Last lines of the first slots.
    """

    slots: tuple[int, ...]
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """Message before the lines."""
        more = f" (of the first {_SLOTS})" if len(self.slots) > _SLOTS else ""
        named = f"slot {self.slots[0]}" if len(self.slots) == 1 else f"slots {formatting.ranks(self.slots)}"
        return f"the ranks of {named} are unknown; last lines of any rank there{more}:"


def unknown_ranks(directory: RunDir) -> UnknownRanks | None:
    """Reads the newest attempt; None without output of unknown ranks.

    Omits slots outside the world of ranks, if there is one.
    """
    try:
        spec = directory.spec
    except StoreError:
        return None
    with directory.reader() as reader:
        attempt = reader.newest_attempt()
        if attempt is None:
            return None
        known = {facts.slot for facts in reader.ranks(attempt)}
        known |= {row.slot for row in reader.streams(attempt) if row.rank is not None}
        begun = {facts.slot for facts in reader.slots(attempt)}
    has_world = any(part.in_world for part in spec.parts)
    outside = {slot for part in spec.parts if has_world and not part.in_world for slot in part.slots}
    found: list[int] = []
    lines: list[Line] = []
    for slot in sorted(begun - known - outside):
        if len(found) >= _SLOTS:
            found.append(slot)
            continue
        last = list(read_lines(directory, LineQuery(slots=frozenset({slot}), attempt=attempt, tail=_LINES)))
        if last:
            found.append(slot)
            lines += last
    return UnknownRanks(slots=tuple(found), lines=tuple(lines)) if lines else None
