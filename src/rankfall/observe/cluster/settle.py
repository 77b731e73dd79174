"""Compares what is stored of a container's log with what its wrapper counted when it printed it, and writes down what is missing.

A kubelet that cannot keep up with a log leaves pieces out and says nothing of it, so nobody who reads by the API can see that they are
missing: only who printed them knows. Where all is there, this takes away what was written down as perhaps missing. A container without a
wrapper, or with an older or a killed one, has no counts: nothing is compared then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rankfall.model import Record, decoding
from rankfall.model.patterns import anchored, bounded
from rankfall.store.content import content_size, read_bytes
from rankfall.store.fs import write_file

SUM: Final = "all"
_BLOCK: Final = 1 << 20
_STREAM: Final = anchored(r"slot|all|r\d{1,7}", limit=16)
_RETURNS: Final = bounded(rb"(?<!\r)\r+(?=\n)", limit=1 << 30)
# A container has so many ranks at most; a forged record must not cost more.
_MAX_STREAMS: Final = 4096


class Short(NamedTuple):
    """What a stream has less than was printed: lines, bytes."""

    stream: str
    lines: int
    size: int


class Outcome(NamedTuple):
    """What a comparison gave: streams that are short, and whether all have exactly what was printed."""

    short: tuple[Short, ...]
    whole: bool


def compare(
    printed: Mapping[str, tuple[int, int]],
    held: Mapping[str, tuple[int, int]],
    *,
    returns: Callable[[], Mapping[str, int]] | None,
) -> Outcome:
    """Compare.

    Args:
        printed: (lines, bytes) by stream, or one sum of all, ``all``.
        held: the same of what is stored; streams that hold nothing may be left out.
        returns: gives the carriage returns before line feeds of each stream that is stored, which were not counted; asked only where the
            bytes differ. None = bytes are not compared, because they came through something that changes them.
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
    """Carriage returns right before line feeds in each stream of an instance."""
    return {stream: _returns(folder / f"{stream}.out.log") for stream in streams}


def write_down(
    outcome: Outcome, *, folder: Path, head: str, uid: str, number: int, record_of: Callable[[Short], Record]
) -> None:
    """Have the records say what was found, however often it is found: those of before that no longer hold go.

    Args:
        outcome: of the comparison.
        folder: of records.
        head: how the names of this slot's gap records begin.
        uid: of the pod.
        number: restart number of the container.
        record_of: makes the record of a stream that is short.

    Raises:
        OSError: one could not be written.
    """
    said = {f"{head}{(record := record_of(short)).id}.json": record for short in outcome.short}
    for path, record in _gaps(folder, head, uid=uid, number=number):
        counted = record.lost is not None and record.lost.stream is not None
        if (counted and record != said.get(path.name)) or (outcome.whole and not counted):
            path.unlink(missing_ok=True)
    for name, record in said.items():
        if not (folder / name).exists():
            temporary = (folder / name).with_suffix(".new")
            write_file(temporary, msgspec.json.encode(record))
            temporary.rename(folder / name)


def clean(printed: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]] | None:
    """Counts as a wrapper tells them; None where these are none."""
    good = len(printed) <= _MAX_STREAMS and all(
        min(counts) >= 0 and _STREAM.fullmatch(stream) for stream, counts in printed.items()
    )
    return dict(printed) if good else None


def _gaps(folder: Path, head: str, *, uid: str, number: int) -> Iterator[tuple[Path, Record]]:
    """Gap records of one container instance that the recorder wrote."""
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
            # A run of them may go on in the next block.
            body = data.rstrip(b"\r") if at < end else data
            rest = data[len(body) :]
            if b"\r" in body:
                count += sum(len(found) for found in _RETURNS.findall(body))
            if not new:
                break
    return count
