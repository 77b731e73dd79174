"""``ps`` and ``status`` from the tables of one run. Nothing here is kept: each call reads what stands there now."""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from rankfall.model import RankFacts, RankStatus, RunSummary, SlotFacts, SlotStatus, StatusDocument, StoreError
from rankfall.model.times import rfc3339
from rankfall.store.after_success import note_of
from rankfall.store.stream import IndexReader

if TYPE_CHECKING:
    from rankfall.store.queries import Queries
    from rankfall.store.rundir import RunDir

_NS = 1e9


def summary(run_dir: RunDir, tables: Queries) -> RunSummary:
    """The run as ``ps`` lists it."""
    row = tables.run()
    name, backend = _named(run_dir, tables)
    found = tables.diagnosis()
    verdict = found.verdict if found else None
    return RunSummary(
        run=run_dir.id,
        name=name,
        backend=backend,
        state=row.state,
        attempts=tables.newest_attempt() or 0,
        started=rfc3339(row.started),
        ended=rfc3339(row.ended),
        cause=verdict.cause.slug if verdict else None,
        rank=verdict.rank if verdict else None,
        node=verdict.node if verdict else None,
    )


def status(run_dir: RunDir, tables: Queries, *, now: int) -> StatusDocument:
    """The run with slots and ranks of its newest attempt; ranks of the newest round only."""
    short = summary(run_dir, tables)
    row = tables.run()
    attempt = tables.newest_attempt()
    slots = tables.slots(attempt) if attempt is not None else []
    ranks = newest_round(tables.ranks(attempt)) if attempt is not None else []
    last = _last_lines(run_dir, tables, attempt, ranks) if attempt is not None else {}
    notes = _notes(run_dir, slots, ranks) if short.state == "succeeded" else {}
    return StatusDocument(
        run=short.run,
        name=short.name,
        backend=short.backend,
        state=short.state,
        attempts=short.attempts,
        started=short.started,
        ended=short.ended,
        cause=short.cause,
        rank=short.rank,
        node=short.node,
        reason=row.reason,
        supervised=run_dir.lease_holder() is not None,
        incomplete=tuple(dict.fromkeys([*row.incomplete, *tables.problems])),
        slots=tuple(_slot(run_dir, attempt or 0, facts, notes.get(("slot", facts.slot))) for facts in slots),
        ranks=tuple(_rank(facts, now, last.get(facts.rank), notes.get(("rank", facts.rank))) for facts in ranks),
    )


def _notes(run_dir: RunDir, slots: list[SlotFacts], ranks: list[RankFacts]) -> dict[tuple[str, int], str | None]:
    """What is said beside the exits of slots and ranks of a run that succeeded."""
    try:
        spec = run_dir.spec
    except StoreError:
        return {}
    of_slots = {("slot", facts.slot): note_of(facts, spec=spec, slots=slots) for facts in slots}
    return of_slots | {("rank", facts.rank): note_of(facts, spec=spec, slots=slots) for facts in ranks}


def newest_round(ranks: list[RankFacts]) -> list[RankFacts]:
    """Ranks of the newest round; those of no round only when there is no other."""
    rounds = {-1 if facts.round is None else facts.round for facts in ranks}
    newest = max(rounds, default=-1)
    return [facts for facts in ranks if (-1 if facts.round is None else facts.round) == newest]


def exit_text(code: int | None, signal: int | None) -> str | None:
    """An exit as people write it: ``0``, ``1``, ``SIGKILL``; None when it is not known."""
    if signal is not None:
        try:
            return signals.Signals(signal).name
        except ValueError:
            return f"signal {signal}"
    return None if code is None else str(code)


def _named(run_dir: RunDir, tables: Queries) -> tuple[str, str]:
    try:
        spec = run_dir.spec
    except StoreError as error:
        tables.problems.append(error.message)
        return run_dir.id.rpartition("-")[0] or run_dir.id, "unknown"
    return spec.name, spec.backend


def _slot(run_dir: RunDir, attempt: int, facts: SlotFacts, note: str | None) -> SlotStatus:
    role = facts.role or ""
    return SlotStatus(
        slot=facts.slot,
        role=role,
        state=facts.state,
        node=facts.node,
        pod=facts.pod,
        pid=_wrapper_pid(run_dir, attempt, role, facts.slot),
        launcher=facts.launcher,
        exit=exit_text(facts.exit_code, facts.signal),
        note=note,
    )


def _wrapper_pid(run_dir: RunDir, attempt: int, role: str, slot: int) -> int | None:
    """From the slot's own ``lock`` file: ``pid start_ticks boot_id``."""
    try:
        with (run_dir.slot_dir(attempt, role, slot) / "lock").open("rb") as file:
            first = file.read(64).split(b" ", 1)[0]
        return int(first)
    except (OSError, ValueError):
        return None


def _last_lines(run_dir: RunDir, tables: Queries, attempt: int, ranks: list[RankFacts]) -> dict[int, int]:
    """When each rank's newest chunk came, from the indexes: true also while nobody supervises the run."""
    rounds = {facts.rank: facts.round for facts in ranks}
    found: dict[int, int] = {}
    for row in tables.streams(attempt):
        if row.rank is None or row.rank not in rounds or row.to_byte is not None or row.round != rounds[row.rank]:
            continue
        stamp = IndexReader(run_dir.path / row.stream).last_stamp()
        if stamp is not None:
            found[row.rank] = max(stamp, found.get(row.rank, stamp))
    return found


def _rank(facts: RankFacts, now: int, last: int | None, note: str | None) -> RankStatus:
    known = [at for at in (facts.last_line_at, last) if at is not None]
    age = max(0.0, (now - max(known)) / _NS) if known else None
    return RankStatus(
        rank=facts.rank,
        state=facts.state,
        slot=facts.slot,
        local_rank=facts.local_rank,
        node=facts.node,
        pod=facts.pod,
        pid=facts.pid,
        hook=facts.hook,
        step=facts.step,
        exit=exit_text(facts.exit_code, facts.signal),
        line_age_s=age,
        note=note,
    )
