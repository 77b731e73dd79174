"""Finds missing lines of a container log and writes gap records.

Compares stored data with the wrapper's counts, because a slow kubelet drops pieces silently, and checks pauses of logs
without such counts.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankfall.model import Record, decoding, numbers
from rankfall.model.patterns import anchored, bounded
from rankfall.model.record import Lost
from rankfall.rundir.cluster.log_routes import stamp_text
from rankfall.rundir.lease import write_file
from rankfall.rundir.streams.content import content_size, read_bytes

# The same gap has the same id in each write.
_SPACE: Final = uuid.UUID("5d0c5b8e-7a4f-4b0c-9d5e-52616e6b6661")


class LogOf(NamedTuple):
    """Source of a log: one container instance.

    Attributes:
        run, attempt, role, slot: Place of its pod.
        uid: UID of the pod.
        number: Restart number of the container.
    """

    run: str
    attempt: int
    role: str
    slot: int
    uid: str
    number: int

    @property
    def head(self) -> str:
        """Prefix of the file names of its gap records."""
        return f"gap-a{self.attempt}-{self.role}-{self.slot}-"

    @property
    def restart(self) -> str:
        """Text of the restart; empty for the first start."""
        return f", restart {self.number}" if self.number else ""


# Bytes; a kubelet rotates at 10 MiB unless configured otherwise.
_LEAST_FILE: Final = 64 << 10
_NS: Final = 1_000_000_000


class Pauses:
    """Finds pauses during which a kubelet may have left a whole file out of a followed log.

    A kubelet notices rotations only while it waits at the end of a file, and continues with the newest file: others are
    never sent (1.34). A pause is suspected if the log, at its recent rate, would have filled a file meanwhile.

    Attributes:
        suspected: Timestamps before and after such a pause, until ``settle``.
        rate: Recent rate in bytes per second.
    """

    __slots__ = ("_begin", "_bytes", "_grown", "_since", "_window", "rate", "suspected")

    def __init__(self) -> None:
        self.suspected: tuple[int, int] | None = None
        self.rate = 0.0
        self._since: int | None = None
        self._window = 0
        # Timestamp of the first line of the file, bytes read of it, most bytes of any file without rotation.
        self._begin: int | None = None
        self._bytes = self._grown = 0

    def take(self, size: int, *, after: int | None, newest: int | None, moments: Iterable[int], sent: bool) -> None:
        """Examines new lines.

        ``after`` and ``newest`` are the last timestamps before and in them, ``moments`` all in them, read only once a
        second. Without ``sent`` the lines come from one file and prove only the rate.
        """
        self._bytes += size
        self._window += size
        if newest is None or (self._since is not None and 0 <= newest - self._since < _NS):
            return
        times = sorted({*moments, newest if after is None else after})
        pause = max(pairwise(times), key=lambda pair: pair[1] - pair[0], default=(newest, newest))
        length = pause[1] - pause[0]
        since = times[0] if self._since is None else self._since
        rate = self._window * _NS / max(_NS, newest - since - length)
        # A pause may cut its window short: the rate before counts, too.
        most, self.rate = max(rate, self.rate), max(rate, self.rate / 2)
        self._since, self._window = newest, 0
        # A file ends after the kubelet's limit, at its next check: a lost one is at most by half shorter than another.
        if sent and length >= _NS and most * length / _NS >= max(_LEAST_FILE, self._grown / 4):
            self.suspected = (self.suspected or pause)[0], pause[1]

    def settle(self, begin: int | None) -> tuple[int, int] | None:
        """Ends the suspicion; ``begin`` is the timestamp of the current file's first line.

        Returns the pause if lines may be missing in it: the file does not contain what was before.
        """
        pause, self.suspected = self.suspected, None
        if begin is not None and begin == self._begin:
            self._grown = max(self._grown, self._bytes)
        else:
            self._begin, self._bytes = begin, 0
        return None if pause is None or (begin is not None and begin <= pause[0]) else pause


def gap_record(log: LogOf, *, after: int | None, before: int | None, why: str | None = None) -> Record:
    """Gap's record; ``after`` and ``before`` are the neighbors' timestamps, None at the log's ends."""
    since = "its beginning" if after is None else stamp_text(after)
    until = "its end" if before is None else stamp_text(before)
    note = f"lines of slot {log.slot}{log.restart} may be missing: between {since} and {until} of its log"
    lost = Lost(number=log.number, after_ns=after, before_ns=before, why=why)
    return _record(log, f"{after} {before}", lost=lost, note=note, at_ns=after)


def short_record(log: LogOf, *, stream: str, lines: int, size: int) -> Record:
    """Record of lines that a stream lacks; ``stream`` is ``r<rank>``, ``slot`` or ``all``."""
    rank = numbers.whole(stream[1:])
    whose = {"slot": f"slot {log.slot} (lines of no rank)", "all": f"slot {log.slot} and its ranks"}.get(
        stream, f"rank {rank}"
    )
    note = (
        f"{lines} lines of {whose}{log.restart} are missing, {size} bytes: its container printed them, "
        "but the log from the cluster does not contain them"
    )
    lost = Lost(number=log.number, stream=stream, lines=lines, bytes=size)
    return _record(log, f"{stream} short", lost=lost, note=note, rank=rank)


def _record(
    log: LogOf, key: str, *, lost: Lost, note: str, at_ns: int | None = None, rank: int | None = None
) -> Record:
    return Record(
        id=uuid.uuid5(_SPACE, f"{log.run} {log.attempt} {log.uid} {log.number} {key}").hex,
        kind="gap",
        writer="wrapper",
        run=log.run,
        attempt=log.attempt,
        role=log.role,
        slot=log.slot,
        pod_uid=log.uid,
        rank=rank,
        at_ns=at_ns,
        lost=lost,
        notes=(note,),
    )


SUM: Final = "all"
_BLOCK: Final = 1 << 20
_STREAM: Final = anchored(r"slot|all|r\d{1,7}", limit=16)
_RETURNS: Final = bounded(rb"(?<!\r)\r+(?=\n)", limit=1 << 30)
# Ranks per container; bounds a forged record.
_MAX_STREAMS: Final = 4096


class Short(NamedTuple):
    """Lines and bytes that a stream lacks."""

    stream: str
    lines: int
    size: int


class Outcome(NamedTuple):
    """Streams that lack data; ``whole`` is True if all streams equal the printed data."""

    short: tuple[Short, ...]
    whole: bool


def compare(
    printed: Mapping[str, tuple[int, int]],
    held: Mapping[str, tuple[int, int]],
    *,
    returns: Callable[[], Mapping[str, int]] | None,
) -> Outcome:
    """Compares printed and stored (lines, bytes) by stream.

    ``returns`` counts carriage returns; None compares no bytes, because the source of the log changes them.
    """
    if SUM in printed:
        held = {SUM: (sum(lines for lines, _ in held.values()), sum(size for _, size in held.values()))}
    differs = returns is not None and any(held.get(stream, (0, 0))[1] != size for stream, (_, size) in printed.items())
    extra = returns() if differs and returns is not None else {}
    if SUM in printed:
        extra = {SUM: sum(extra.values())}
    short, whole = [], True
    for stream, (lines, size) in sorted(printed.items()):
        has_lines, has_bytes = held.get(stream, (0, 0))
        less = lines - has_lines
        fewer = size - (has_bytes - extra.get(stream, 0)) if returns is not None or less > 0 else 0
        whole = whole and not less and not fewer
        if less > 0 or fewer > 0:
            short.append(Short(stream, max(0, less), max(0, fewer)))
    return Outcome(tuple(short), whole)


def returns_of(folder: Path, streams: Mapping[str, object]) -> dict[str, int]:
    """Number of carriage returns right before line feeds in each stream of an instance."""
    return {stream: _returns(folder / f"{stream}.out.log") for stream in streams}


def write_down(
    outcome: Outcome, *, folder: Path, head: str, uid: str, number: int, record_of: Callable[[Short], Record]
) -> None:
    """Writes the gap records of a comparison and removes outdated ones; idempotent.

    Raises:
        OSError: A record could not be written.
    """
    records = {f"{head}{(record := record_of(short)).id}.json": record for short in outcome.short}
    for path, record in _gaps(folder, head, uid=uid, number=number):
        counted = record.lost is not None and record.lost.stream is not None
        if (counted and record != records.get(path.name)) or (outcome.whole and not counted):
            path.unlink(missing_ok=True)
    for name, record in records.items():
        if not (folder / name).exists():
            temporary = (folder / name).with_suffix(".new")
            write_file(temporary, msgspec.json.encode(record))
            temporary.rename(folder / name)


def clean(printed: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]] | None:
    """Wrapper's counts unchanged; None if they are invalid."""
    good = len(printed) <= _MAX_STREAMS and all(
        min(counts) >= 0 and _STREAM.fullmatch(stream) for stream, counts in printed.items()
    )
    return dict(printed) if good else None


def _gaps(folder: Path, head: str, *, uid: str, number: int) -> Iterator[tuple[Path, Record]]:
    for path in sorted(folder.glob(f"{head}*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
            record = decoding.decode(path.read_bytes(), kind=Record)
            if record.pod_uid == uid and record.lost is not None and record.lost.number == number:
                yield path, record


def _returns(path: Path) -> int:
    count, at = 0, 0
    rest = b""
    with contextlib.suppress(FileNotFoundError):
        end = content_size(path)
        while at < end:
            data = rest + (new := read_bytes(path, at, min(_BLOCK, end - at)))
            at += len(new)
            # They may continue in the next block.
            body = data.rstrip(b"\r") if at < end else data
            rest = data[len(body) :]
            if b"\r" in body:
                count += sum(len(found) for found in _RETURNS.findall(body))
            if not new:
                break
    return count
