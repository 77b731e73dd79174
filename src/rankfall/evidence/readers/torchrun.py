"""Reads the report blocks of torchrun and Open MPI in text, and torchelastic's error.json files.

The wrapper's wait status has precedence. A missing or zero time is unknown, never earliest. No error file older
than its slot counts.

Cost: fourteen RE2 patterns over chunks with their fixed words. At most ``_MAX`` statements of a chunk are read and of a
stream stored. Of an error file: at most ``MAX_FILE`` bytes; memory at most thirty times that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rankfall.evidence.readers.classify import exception_meaning
from rankfall.evidence.readers.text import decode
from rankfall.evidence.readers.tracebacks import find_tracebacks
from rankfall.model import Evidence, RankFacts, SlotFacts, decoding, numbers
from rankfall.model.evidence import digest
from rankfall.model.exit_codes import SIGNALLED
from rankfall.model.numbers import whole
from rankfall.model.patterns import Linear, bounded, linear
from rankfall.rundir.records import read_untrusted_file
from rankfall.verdict.signatures.catalogue import Catalogue

_STOP = linear(rb"Sending process (\d+) closing signal SIG[A-Z0-9]+")
_FORCED = linear(rb"Unable to shutdown process (\d+) via[^\n]{0,200}forcefully exiting via")
_FAILED = linear(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of binary")
_ROW = linear(
    rb"rank *: (\d+) \(local_rank: (\d+)\)[ \t\r]*\n(?:[ \t\r]{0,8}\n)?[^\n]{0,400}?exitcode *: (-?\d+) \(pid: (\d+)\)"
)
# The root's row of a report that is cut off, or that a person typed: its code may be missing.
_CUT_ROW = linear(
    rb"Root Cause \(first observed failure\):[^=]{0,1000}?\srank *: (\d+) \(local_rank: (\d+)\b(?:[^=]{0,200}?\sexitcode *: (-?\d+))?"
)
_ROOT: Final = b"Root Cause (first observed failure)"
# A page may put a whole report on one line.
_FLAT_ROW = linear(rb"rank +: (\d+) \(local_rank: (\d+)\) +exitcode +: (-?\d+) \(pid: (\d+)\)")
# The words before a row's rank, behind the prefix of a launcher.
_HOST = bounded(rb"(?:^|\s)host *: ([A-Za-z0-9][\w.-]{0,252})\s*\Z", limit=512)
# Local time of the launcher's node, whole seconds.
_TIME = bounded(rb"time *: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)\s", limit=512)
# Open MPI names the process as [[job,application],rank] or [prterun-host-pid@job,rank]; the rank that calls MPI_ABORT
# ends all others.
# Horovod names it by its rank alone.
_MPI_EXIT = linear(
    rb"Process name: (?:\[(?:\[\d+,\d+\]|[\w.@-]{1,300}),)?(\d+)\]?[ \t\r]*\n(?:\[[^\]\n]{1,64}\](?:<std(?:out|err)>)?:?)?\s*Exit code: +(\d+)"
)
# Intel MPI's box, and MVAPICH's and MPD's launchers; the words of a signal are before its number.
_HYDRA = linear(
    rb"RANK (\d+) PID (\d+) RUNNING AT ([\w.-]{1,253}),?[ \t\r]*\n=?[ \t]*(?:(KILLED BY SIGNAL): |EXIT (?:STATUS|CODE): )(\d+)"
)
_MPISPAWN = linear(rb"MPI process \(rank: (\d+), pid: (\d+)\) (?:(terminated with signal)|exited with status) (\d+)")
_MPD = linear(rb"xit status of rank (\d+): (?:(killed by signal)|return code) (\d+)")
_MPI_ABORT = linear(
    rb"MPI_ABORT was invoked on rank (\d+) in communicator[^\n]{0,200}\n(?:[^\n]{0,200}Proc:[^\n]{0,200}\n)?\s*(?:with errorcode|Errorcode:) (-?\d+)"
)
_MPICH_ABORT = linear(rb"application called MPI_Abort\([^\n,]{1,80}, (-?\d+)\) - process (\d+)")
_MPI_SIGNAL = linear(
    rb"process rank (\d+)\s+with\s+PID\s+(\d+)\s+on\s+node\s+([\w.-]{1,253})\s+(exited\s+on\s+signal)\s+(\d+)"
)
_SIGNALLED = linear(rb"Received (\d+) death signal, shutting down workers")
# Signals that a shell or a container reports as exit codes.
_SIGTERM: Final = 15
_SHELL_SIGNALS: Final = frozenset({4, 6, 7, 8, 9, 11})
_MAX: Final = 4096
# A report repeats a statement two or three times.
_MAX_REPEATS: Final = 8
# A report's row has two or three lines: maximum length of all but the last at a chunk's end.
_FIRST_LINES: Final = (
    b"(local_rank: ",
    b"Process name: ",
    b" RUNNING AT ",
    b"MPI_ABORT was invoked on rank",
    b"noticed that process rank",
)
_MAX_FIRST: Final = 512
_ROW_LINES: Final = 3

# An agent polls its processes every 5 s at most, by default, and notes whole seconds; the rest is for the clocks.
_BETWEEN_NODES_S: Final = 10

_Kind = Literal["stopped", "exit", "signalled"]


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of a launcher.

    Attributes:
        kind: ``stopped`` (by torchrun's signal), ``exit``, ``signalled`` (torchrun received a signal).
        code: Exit code; negative for a signal; None where the report ends before it.
        at: Offset in the chunk; negative in the previous one.
        first: The launcher observed it before all others.
        time: Seconds of the row's clock, without a time zone.
    """

    kind: _Kind
    at: int
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None
    host: str | None = None
    first: bool = False
    time: float | None = None


class ReportReader:
    """Reads the statements in one stream; its chunks come in order, split between lines."""

    def __init__(self) -> None:
        # The row that a chunk cuts, and the statements before its code that were returned with it.
        self._first = b""
        self._given: frozenset[tuple[str, int]] = frozenset()
        self._seen: dict[tuple[object, ...], int] = {}

    def push(self, data: bytes, *, speaks: bool) -> list[Reported]:
        """Returns the statements of the next chunk.

        Without ``speaks`` (a launcher's lines) only the rest of a report is searched.
        """
        first, text = self._first, self._first + data if self._first else data
        found: list[Reported] = []
        if speaks or first:
            for one in read_reports(text):
                if one.code is None and (one.kind, one.at) in self._given:
                    continue
                key = (one.kind, one.pid, one.rank, one.local_rank, one.code)
                count = self._seen.get(key, 0)
                if count < _MAX_REPEATS and (count or len(self._seen) < _MAX):
                    self._seen[key] = count + 1
                    found.append(msgspec.structs.replace(one, at=one.at - len(first)) if first else one)
        self._first, self._given = _unfinished(text)
        return found


def _unfinished(text: bytes) -> tuple[bytes, frozenset[tuple[str, int]]]:
    """Begun row at the end of a chunk, empty if there is none; kind and offset of each statement in it, all without a code."""
    near = max(0, len(text) - _MAX_FIRST)
    at = max(text.rfind(words, near) for words in _FIRST_LINES)
    if at < 0 or text.count(b"\n", at) >= _ROW_LINES:
        return b"", frozenset()
    begin = text.rfind(b"\n", 0, at)
    # The title shows that it is the first failure.
    title = text.rfind(_ROOT, near, at)
    row = text[max(near, title if title >= 0 else text.rfind(b"\n", 0, max(0, begin)) + 1) :]
    reports = [*read_reports(row)]
    if any(one.code is not None for one in reports):
        return b"", frozenset()
    return row, frozenset((one.kind, one.at) for one in reports)


def read_reports(data: bytes) -> Iterator[Reported]:
    """Yields all statements of a chunk."""
    if data.find(b"closing signal SIG") >= 0:
        for match in _numbers(_STOP, data):
            yield _reported("stopped", match, pid=1)
    if data.find(b"forcefully exiting via") >= 0:
        for match in _numbers(_FORCED, data):
            yield _reported("stopped", match, pid=1)
    if data.find(b"death signal, shutting down workers") >= 0:
        for at, (signal,) in _numbers(_SIGNALLED, data):
            yield Reported(kind="signalled", at=at, code=None if signal is None else -signal)
    if data.find(b"Process name: ") >= 0:
        for match in _numbers(_MPI_EXIT, data):
            row = _reported("exit", match, rank=1, code=2)
            signal = (row.code or 0) - SIGNALLED
            yield msgspec.structs.replace(row, code=-signal) if signal in _SHELL_SIGNALS else row
    for words, pattern, rank, code in (
        (b"MPI_ABORT was invoked", _MPI_ABORT, 1, 2),
        (b"application called MPI_Abort", _MPICH_ABORT, 2, 1),
    ):
        if data.find(words) < 0:
            continue
        for match in _numbers(pattern, data):
            # With 0 it ends all processes too, with a code that it does not name. A negative one is no signal.
            if (row := _reported("exit", match, rank=rank, code=code)).code:
                yield row if row.code > 0 else msgspec.structs.replace(row, code=row.code % 256 or 255)
    yield from _of_mpi(data)
    yield from _of_torchrun(data)


def _of_torchrun(data: bytes) -> Iterator[Reported]:
    """Yields the ends that torchrun reports."""
    whole_roots: set[int | None] = set()
    if data.find(b"exitcode") >= 0:
        for match in _numbers(_FAILED, data):
            yield _reported("exit", match, code=1, local_rank=2, pid=3)
        for pattern in (_ROW, _FLAT_ROW):
            for match in _numbers(pattern, data):
                row = _reported("exit", match, rank=1, local_rank=2, code=3, pid=4)
                first = _is_root(data, row.at)
                # The part of a report that a page shows may begin behind the root.
                if first:
                    whole_roots.add(row.rank)
                if first or pattern is _ROW:
                    time = _time(data, row.at) if first else None
                    yield msgspec.structs.replace(row, host=_host(data, row.at), first=first, time=time)
    if data.find(_ROOT) >= 0:
        for cut in islice(_CUT_ROW.finditer(data), _MAX):
            rank, local_rank, code = (None if text is None else whole(text, digits=10) for text in cut.groups())
            if rank is not None and rank not in whole_roots:
                at = data.rfind(b"rank", 0, cut.start(1))
                yield Reported(
                    kind="exit", at=at, rank=rank, local_rank=local_rank, code=code, host=_host(data, at), first=True
                )


def _of_mpi(data: bytes) -> Iterator[Reported]:
    """Yields the ends that MPI's launchers report as rank, perhaps pid and host, words of a signal, and number."""
    for words, pattern in (
        (b"that process rank", _MPI_SIGNAL),
        (b" RUNNING AT ", _HYDRA),
        (b"MPI process (rank: ", _MPISPAWN),
        (b"xit status of rank ", _MPD),
    ):
        if data.find(words) < 0:
            continue
        for match in islice(pattern.finditer(data), _MAX):
            first, *more, signalled, last = match.groups()
            rank, number = whole(first, digits=10), whole(last, digits=10)
            if rank is None or not number:
                continue
            yield Reported(
                kind="exit",
                at=match.start(),
                rank=rank,
                pid=whole(more[0], digits=10) if more else None,
                code=-number if signalled else number,
                host=decode(more[1]) if len(more) > 1 else None,
            )


def _is_root(data: bytes, at: int) -> bool:
    """True if a row follows the title of the first observed failure."""
    title = data.rfind(_ROOT, max(0, at - _MAX_FIRST), at)
    return title >= 0 and data.find(b"exitcode", title, at) < 0


def _time(data: bytes, at: int) -> float | None:
    """Time in the row before its rank."""
    begin = data.rfind(b"exitcode", max(0, at - _MAX_FIRST), at)
    found = _TIME.search(data[max(begin, at - _MAX_FIRST, 0) : at])
    if found is None:
        return None
    try:
        return datetime.strptime(decode(found[1]), "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _host(data: bytes, at: int) -> str | None:
    """Host before a row's rank, or in the line before; None if it is not there."""
    if (found := _HOST.search(data[max(0, at - _MAX_FIRST) : at])) is not None:
        return decode(found[1])
    end = data.rfind(b"\n", max(0, at - _MAX_FIRST), at)
    begin = data.rfind(b"\n", max(0, end - _MAX_FIRST), max(0, end)) + 1
    found = _HOST.search(data[begin:end]) if end >= 0 else None
    return decode(found[1]) if found is not None else None


def _reported(kind: _Kind, match: tuple[int, list[int | None]], **groups: int) -> Reported:
    at, numbers = match
    found = {name: numbers[group - 1] for name, group in groups.items()}
    return msgspec.structs.replace(Reported(kind=kind, at=at), **found)


def first_ranks(reports: Iterable[Reported]) -> set[int]:
    """Ranks that torchrun's reports name first; of the reports of several nodes, those that are not surely the later ones."""
    rows = [r for r in reports if r.first and r.rank is not None]
    times = [r.time for r in rows if r.time is not None]
    # Two reports from one first rank of a node are of two runs.
    nodes = {_first_of_node(r) for r in rows} - {None}
    comparable = len(nodes) == len(times) == len(rows) > 1
    latest = min(times) + _BETWEEN_NODES_S if comparable else math.inf
    return {r.rank for r in rows if r.rank is not None and (r.time or 0) <= latest}


def _first_of_node(row: Reported) -> int | None:
    """Returns the lowest rank of the row's node."""
    return None if row.rank is None or row.local_rank is None else row.rank - row.local_rank


def facts_of_reports(
    reported: Collection[tuple[Reported, str]], *, firsts: set[int], stream: str
) -> Iterator[RankFacts]:
    """Yields facts from a text's reports with their places: ends, and processes that torchrun stopped.

    ``firsts``: ranks that may have failed first.
    """
    stopped = {r.pid for r, _ in reported if r.kind == "stopped"}
    rows = {r.rank: (r, where) for r, where in reported if r.kind == "exit" and r.rank is not None}
    # An agent stops only processes of the same node.
    at_fault = {_first_of_node(r) for r, _ in rows.values() if r.code not in {None, 0, -15} and r.pid not in stopped}
    for rank, (row, where) in rows.items():
        signal = -row.code if row.code is not None and row.code < 0 else None
        by_agent = signal is not None and (
            row.pid in stopped or (signal == _SIGTERM and _first_of_node(row) in at_fault)
        )
        yield RankFacts(
            rank=rank,
            local_rank=row.local_rank,
            node=row.host,
            pid=row.pid,
            state="ended",
            exit_code=row.code if signal is None else None,
            signal=signal,
            killed_by="agent" if by_agent else "foreign" if signal is not None else None,
            stream=stream,
            where=where,
            reported_first=row.first and rank in firsts,
        )


def _numbers(pattern: Linear[bytes], data: bytes) -> Iterator[tuple[int, list[int | None]]]:
    """Yields a statement's place and numbers; skips invalid ones."""
    for match in islice(pattern.finditer(data), _MAX):
        numbers = [whole(text, digits=10) for text in match.groups()]
        if None not in numbers:
            yield match.start(), numbers


MAX_FILE: Final = 1 << 20
_NS: Final = 1_000_000_000


def error_file_evidence(data: bytes, *, name: str, stream: str, catalogue: Catalogue) -> Evidence | str:
    """Evidence of one file, or a message about its problem."""
    if not data.strip():
        return f"{name} is empty"
    if len(data) > MAX_FILE:
        return f"{name} is larger than {MAX_FILE} bytes and was not used"
    try:
        document = decoding.decode(data)
    except msgspec.DecodeError:
        return f"{name} is damaged: not JSON"
    if not isinstance(document, dict) or "message" not in document:
        return f"{name} is not an error record: it has no message"
    message = document["message"]
    text, stack, stamp = _fields(message, document)
    if text is None:
        return f"{name} is not an error record: its message is neither text nor an object with one"
    chain: list[tuple[str, str]] = []
    frame = ""
    for item in find_tracebacks(stack.encode("utf-8", "replace") + b"\n"):
        chain, frame = list(item.chain), item.frame
    if not chain:
        kind, _, words = text.partition(": ")
        chain = [(kind, words)] if kind.replace(".", "").isidentifier() else [("Exception", text)]
    meaning = exception_meaning(catalogue, chain, frame=frame)
    seconds = _seconds(stamp)
    return Evidence(
        id=digest("elastic", name, text),
        source="record",
        slug=meaning.slug,
        role=meaning.role,
        trust="job",
        at=seconds * _NS if seconds else None,
        uncertainty=1.0 if seconds else None,
        stream=stream,
        where=name,
        line=meaning.text[:2000],
        signature=meaning.signature,
        retry=meaning.retry,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
    )


def _fields(message: Any, document: dict[str, Any]) -> tuple[str | None, str, Any]:
    if isinstance(message, str):
        return message, "", document.get("timestamp")
    if not isinstance(message, dict):
        return None, "", None
    text = message.get("message")
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    stamp = extra.get("timestamp", message.get("timestamp"))
    return (text if isinstance(text, str) else None), (stack if isinstance(stack, str) else ""), stamp


def _seconds(stamp: Any) -> int | None:
    value = stamp if isinstance(stamp, int | float) else numbers.real(stamp) if isinstance(stamp, str) else None
    return math.floor(value) if value is not None and 1 <= value < 1 << 33 else None


# torchelastic's timestamps are whole seconds, rounded down.
_STAMP_NS: Final = 1_000_000_000


def single_file_evidence(
    ranks: Iterable[RankFacts],
    *,
    slots: dict[int, tuple[SlotFacts, Path]],
    known: Collection[Evidence],
    catalogue: Catalogue,
    attempt: int,
) -> tuple[list[Evidence], list[str]]:
    """Evidence of the error files of ranks that failed silently, and messages about problems."""
    spoken = {e.rank for e in known if e.role == "primary" and e.source in {"log", "record"}}
    found, problems = [], []
    for facts in ranks:
        place = slots.get(facts.slot) if facts.slot is not None else None
        if place is None or facts.hook == "loaded" or facts.state != "ended" or facts.rank in spoken:
            continue
        slot, folder = place
        if not (facts.exit_code or facts.signal) or facts.local_rank is None:
            continue
        path = folder / "errors" / f"{facts.local_rank}.json"
        try:
            data, _ = read_untrusted_file(path, limit=MAX_FILE + 1)
        except OSError:
            continue
        name = "/".join(path.parts[-5:])
        piece = error_file_evidence(data, name=name, stream=name, catalogue=catalogue)
        if isinstance(piece, str):
            problems.append(piece)
        elif piece.at is not None and slot.started_at is not None and piece.at + _STAMP_NS < slot.started_at:
            problems.append(f"{name} is older than its slot and was not used")
        else:
            found.append(
                msgspec.structs.replace(
                    piece,
                    rank=facts.rank,
                    slot=facts.slot,
                    node=facts.node,
                    local_rank=facts.local_rank,
                    pid=facts.pid,
                    attempt=attempt,
                    round=facts.round,
                )
            )
    return found, problems
