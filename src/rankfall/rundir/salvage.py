"""Reconstructs a run without its database: from folders, slot files and records.

Never guesses: a rank comes from a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import RankFacts, Record, SlotFacts, decoding, numbers
from rankfall.model.patterns import anchored
from rankfall.rundir.database import AttemptRow, StreamRow
from rankfall.rundir.layout import WRAPPER_LOG, RunPaths
from rankfall.rundir.streams.content import read_bytes
from rankfall.rundir.streams.files import StreamName, find_streams

_ATTEMPT: Final = anchored(r"attempt-([1-9][0-9]{0,8})", limit=256)
_SLOT: Final = anchored(r"(.+)-([0-9]{1,9})", limit=256)
_MAX_RECORD: Final = 1 << 20


def attempts(run_dir: RunPaths) -> list[AttemptRow]:
    """Attempts that have a folder."""
    found = {
        numbers.matched(match[1])
        for folder in (run_dir.logs_dir, run_dir.path / "slots")
        for name in _names(folder)
        if (match := _ATTEMPT.fullmatch(name))
    }
    return [AttemptRow(attempt=number, state="unknown") for number in sorted(found)]


def slots(run_dir: RunPaths, attempt: int) -> list[SlotFacts]:
    """Slots that have a folder."""
    found = []
    for name in _names(run_dir.path / "slots" / f"attempt-{attempt}"):
        match = _SLOT.fullmatch(name)
        if match:
            found.append(SlotFacts(slot=numbers.matched(match[2]), role=match[1]))
    return sorted(found, key=lambda facts: (facts.role or "", facts.slot))


def begun_slots(run_dir: RunPaths, attempt: int) -> list[SlotFacts]:
    """Slots of this machine whose wrapper was started."""
    found = slots(run_dir, attempt)
    return [one for one in found if (run_dir.slot_dir(attempt, one.role or "", one.slot) / WRAPPER_LOG).exists()]


def newest_start(run_dir: RunPaths, attempt: int, role: str, slot: int) -> int:
    """Number of a slot's newest start, from 0; a slot restarted alone has a folder for each."""
    number = 0
    while run_dir.slot_dir(attempt, role, slot, number + 1).exists():
        number += 1
    return number


def started(run_dir: RunPaths, attempt: int) -> int | None:
    """Time at which the first wrapper of an attempt took its lock, nanoseconds since the epoch; None without any."""
    locks = (run_dir.path / "slots" / f"attempt-{attempt}").glob("*/lock")
    return min((path.lstat().st_mtime_ns for path in locks), default=None)


def ranks(run_dir: RunPaths, attempt: int) -> list[RankFacts]:
    """Ranks with a start record, each with its end from a later record."""
    found: dict[tuple[int, int], RankFacts] = {}
    ends: dict[tuple[int, int], Record] = {}
    for record in _records(run_dir.records_dir, attempt, kinds=("start", "end")):
        if record.rank is None:
            continue
        key = (-1 if record.round is None else record.round, record.rank)
        if record.kind == "end":
            # The wrapper observed the end; the hook's record states an intention.
            if key not in ends or record.writer == "wrapper":
                ends[key] = record
            continue
        found[key] = RankFacts(
            rank=record.rank,
            slot=record.slot,
            node=record.node,
            role=record.role,
            local_rank=record.local_rank,
            group_rank=record.group_rank,
            pid=record.pid,
            round=record.round,
            started_at=record.at_ns,
            hook="loaded" if record.writer == "hook" else "absent",
        )
    for key, end in ends.items():
        if key in found:
            code = end.exit.code if end.exit else None
            signal = end.exit.signal if end.exit else None
            found[key] = msgspec.structs.replace(
                found[key], state="ended", exit_code=code, signal=signal, ended_at=end.at_ns
            )
    return [found[key] for key in sorted(found)]


def streams(run_dir: RunPaths, attempt: int | None = None) -> list[StreamRow]:
    """Streams whose rank comes from a start record with their process ordinal, or from their name."""
    owners: dict[tuple[int | None, str | None, int | None, str], Record] = {}
    for record in _records(run_dir.records_dir, attempt, kinds=("start",)):
        if record.rank is not None and record.ordinal is not None:
            owners[record.attempt, record.role, record.slot, str(record.ordinal)] = record
    found = []
    for name in find_streams(run_dir.logs_dir, attempt=attempt):
        owner = owners.get((name.attempt, name.role, name.slot, name.local))
        known = owner if owner is not None and _same_instance(owner, name) else None
        if known is not None or name.rank is not None:
            found.append(
                StreamRow(
                    stream=name.stream,
                    attempt=name.attempt,
                    round=known.round if known else None,
                    role=name.role,
                    slot=name.slot,
                    instance=name.instance,
                    local=name.local,
                    rank=known.rank if known else name.rank,
                    proof="record" if known else "prefix",
                )
            )
    return found


def _same_instance(record: Record, name: StreamName) -> bool:
    return record.instance is None or record.instance == str(name.instance)


def _records(folder: Path, attempt: int | None, *, kinds: tuple[str, ...]) -> Iterator[Record]:
    """Yields readable records of these kinds, by name."""
    decoder = decoding.decoder(Record)
    for name in _names(folder):
        if not name.endswith(".json") or not name.startswith(tuple(f"{kind}-" for kind in kinds)):
            continue
        try:
            record = decoder.decode(read_bytes(folder / name, 0, _MAX_RECORD))
        except (OSError, msgspec.MsgspecError):
            continue
        if record.kind in kinds and (attempt is None or record.attempt == attempt):
            yield record


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def world_sizes(run_dir: RunPaths, attempt: int) -> dict[int, int]:
    """World size of each round (-1 = no round) by the ranks' records."""
    return {
        -1 if record.round is None else record.round: record.world_size
        for record in _records(run_dir.records_dir, attempt, kinds=("start",))
        if record.world_size is not None and record.rank is not None
    }
