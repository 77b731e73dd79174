"""Determines which lines the record of a run lacks; derived at each call.

Main source: gap records of wrapper or recorder. Others: slots without end, and the disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rankfall.model import FINAL_STATES, LostLines, Record, StoreError, Verdict, decoding, numbers
from rankfall.model.timestamps import rfc3339
from rankfall.rundir.streams.content import lock_is_free
from rankfall.rundir.streams.files import IndexReader

if TYPE_CHECKING:
    from rankfall.rundir.layout import RunPaths

#: Prefix of sentences about lines in a verdict.
PREFIX: Final = "record incomplete: "
#: Free bytes of a full disk: less than a slot writes before its command.
FULL_BYTES: Final = 64 << 10
#: Free bytes that a new run needs: its database with journal, room for its end, and the first files of slots.
NEW_RUN_BYTES: Final = 2 << 20
_MAX_FILES: Final = 4096
_MAX_RECORD: Final = 64 << 10


class _Piece(NamedTuple):
    slot: int | None
    rank: int | None
    lines: int | None
    size: int | None
    after: int | None
    before: int | None
    why: str | None
    unread: bool = False


def lost_lines(records: Iterable[Record]) -> tuple[LostLines, ...]:
    """Sums up gap records: for each attempt the counted and the uncounted losses.

    A record's bounds locate counted lines; a record with bounds alone only means possible losses.
    """
    counted: dict[int, list[_Piece]] = {}
    places: dict[tuple[int, int | None, str | None, int], list[tuple[int | None, int | None]]] = {}
    reasons: dict[tuple[int, int | None, str | None, int], str] = {}
    gaps = [record for record in records if record.kind == "gap" and record.lost is not None]
    for record in gaps:
        lost = record.lost
        if lost is not None and lost.stream is None:
            places.setdefault(_container(record), []).append((lost.after_ns, lost.before_ns))
            if lost.why:
                reasons[_container(record)] = lost.why
    # Containers whose log was not read to its end.
    open_ends = {key for key, bounds in places.items() if any(before is None for _, before in bounds)}
    named: set[tuple[int, int | None, str | None, int]] = set()
    for record in gaps:
        lost = record.lost
        if lost is None or lost.stream is None:
            continue
        key = _container(record)
        unread = key in open_ends and key not in named
        named.add(key)
        after, before = lost.after_ns, lost.before_ns
        if after is None and before is None:
            after, before = _cluster_context(places.get(key, ()))
        rank = numbers.whole(lost.stream[1:]) if lost.stream.startswith("r") else None
        piece = _Piece(record.slot, rank, lost.lines, lost.bytes, after, before, lost.why or reasons.get(key), unread)
        counted.setdefault(record.attempt or 0, []).append(piece)
    found = []
    for attempt, pieces in counted.items():
        known = [piece for piece in pieces if piece.lines is not None]
        found += [_joined(attempt, some) for some in (known, [one for one in pieces if one.lines is None]) if some]
    maybe: dict[int, list[_Piece]] = {}
    for key, bounds in places.items():
        if key not in named:
            piece = _Piece(key[1], None, None, None, *_cluster_context(bounds), reasons.get(key), key in open_ends)
            maybe.setdefault(key[0], []).append(piece)
    found += [_joined(attempt, pieces) for attempt, pieces in maybe.items()]
    return tuple(sorted(found, key=lambda one: (one.attempt, one.lines is None, not one.bytes)))


def lost_of_run(run_dir: RunPaths, *, attempt: int | None = None) -> tuple[LostLines, ...]:
    """Lost lines of a run; ``attempt`` None = all."""
    names, gaps = _listed(run_dir.records_dir)
    found = [*lost_lines(gaps), *_unrecorded(run_dir, names)]
    return tuple(one for one in found if attempt is None or one.attempt == attempt)


def sentences(lost: Iterable[LostLines]) -> list[str]:
    """Sentences for a verdict's list of missing evidence."""
    return [f"{PREFIX}{one.text}" for one in lost]


def as_of_now(verdict: Verdict, run_dir: RunPaths) -> Verdict:
    """Verdict with the current losses; lines may have been recovered."""
    lost = sentences(lost_of_run(run_dir, attempt=verdict.attempt))
    others = [one for one in verdict.missing if not one.startswith(PREFIX)]
    return msgspec.structs.replace(verdict, missing=tuple(dict.fromkeys([*lost, *others])))


def disk_trouble(path: Path, *, least: int = FULL_BYTES) -> str | None:
    """Returns why nothing, or not more than ``least`` bytes, can be stored below ``path`` now; None if it can."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return f"{path} cannot be reached: {error.strerror}"
    if found.f_flag & os.ST_RDONLY:
        return f"the file system of {path} is read-only"
    free = found.f_bavail * found.f_frsize
    if free <= FULL_BYTES:
        return f"the file system of {path} is full"
    if free < least:
        return f"the file system of {path} has {free >> 10} KiB free; {least >> 10} KiB are needed"
    return None


def is_deleted(path: Path) -> bool:
    """True if ``path`` does not exist; an unreachable disk is no deletion."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def waiting(run_dir: RunPaths, *, state: str) -> tuple[str, ...]:
    """Messages for an unfinished run whose lines cannot be stored now."""
    trouble = disk_trouble(run_dir.path) if state not in FINAL_STATES else None
    return () if trouble is None else (f"{trouble}: new output is not stored",)


def _container(record: Record) -> tuple[int, int | None, str | None, int]:
    return (record.attempt or 0, record.slot, record.pod_uid, record.lost.number if record.lost is not None else 0)


def _cluster_context(bounds: Sequence[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Bounds (after, before) that enclose all given ones; None if one of them is open."""
    after = [one for one, _ in bounds if one is not None]
    before = [one for _, one in bounds if one is not None]
    return (
        min(after) if bounds and len(after) == len(bounds) else None,
        max(before) if bounds and len(before) == len(bounds) else None,
    )


def _joined(attempt: int, pieces: Sequence[_Piece]) -> LostLines:
    after, before = _cluster_context([(piece.after, piece.before) for piece in pieces])
    lines = [piece.lines for piece in pieces if piece.lines is not None]
    sizes = [piece.size for piece in pieces if piece.size is not None]
    return LostLines(
        attempt=attempt,
        lines=sum(lines) if lines else None,
        bytes=sum(sizes) if sizes else None,
        ranks=tuple(sorted({piece.rank for piece in pieces if piece.rank is not None})),
        slots=tuple(sorted({piece.slot for piece in pieces if piece.slot is not None})),
        after=rfc3339(after),
        before=rfc3339(before),
        why=next((piece.why for piece in pieces if piece.why), None),
        unread=sum(piece.unread for piece in pieces),
    )


def _listed(folder: Path) -> tuple[list[str], list[Record]]:
    """Names of all records in ``folder``, and the records about lost output (``gap-*``)."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return [], []
    gaps = []
    for name in [name for name in names if name.startswith("gap-")][:_MAX_FILES]:
        with contextlib.suppress(OSError, msgspec.DecodeError), (folder / name).open("rb") as file:
            gaps.append(decoding.decode(file.read(_MAX_RECORD), kind=Record))
    return names, gaps


def _unrecorded(run_dir: RunPaths, names: Sequence[str]) -> list[LostLines]:
    """Returns slots without container whose wrapper died without a recorded end.

    The wrapper's unstored output could not be counted.
    """
    try:
        spec = run_dir.spec
    except StoreError:
        return []
    if not spec.writes_run_dir:
        return []
    found = []
    for place in sorted((run_dir.path / "slots").glob("attempt-*")):
        attempt = numbers.whole(place.name[len("attempt-") :])
        pieces = []
        for slot in (slot for part in spec.parts for slot in part.slots) if attempt is not None else ():
            role = spec.role_of(slot)
            # A slot restarted alone has a folder for each start.
            folders = [
                path for path in (place / f"{role}-{slot}", *sorted(place.glob(f"{role}-{slot}.*"))) if path.is_dir()
            ]
            ends = sum(name.startswith(f"slot_end-a{attempt}-{role}-{slot}-") for name in names)
            if ends >= len(folders) or (folders[-1] / "end.json").exists() or not lock_is_free(folders[-1] / "lock"):
                continue
            logs = run_dir.stream_dir(attempt or 0, role, slot, len(folders) - 1)
            stamps = [IndexReader(path).last_stamp() or 0 for path in logs.glob("*.log")]
            why = disk_trouble(run_dir.path) or "the end of its wrapper is not recorded"
            pieces.append(_Piece(slot, None, None, None, max(stamps, default=0) or None, None, why))
        if pieces:
            found.append(_joined(attempt or 0, pieces))
    return found
