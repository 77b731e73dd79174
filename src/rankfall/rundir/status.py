"""Builds the documents of ps and status from one run's tables; nothing is cached.

Platform counters are not used: they forget deleted pods and count Rankfall's stops.
"""

from __future__ import annotations

import contextlib
import signal as signals
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from rankfall.model import (
    FINAL_STATES,
    JobSpec,
    Part,
    RankFacts,
    RankStatus,
    Record,
    Restarts,
    RunSummary,
    SlotFacts,
    SlotStatus,
    StatusDocument,
    StoreError,
    Verdict,
    decoding,
)
from rankfall.model.jobspec.sizes import sized
from rankfall.model.record import ExitInfo
from rankfall.model.timestamps import rfc3339
from rankfall.rundir.incomplete import lost_of_run, waiting
from rankfall.rundir.lease import boot_id
from rankfall.rundir.records import MAX_RECORD, read_end, read_lock, read_untrusted_file
from rankfall.rundir.requests import left_slots, planned_sizes, requested_sizes
from rankfall.rundir.streams.files import IndexReader

if TYPE_CHECKING:
    from rankfall.rundir.database import Queries
    from rankfall.rundir.layout import RunPaths

STOPPED = "stopped after success"
ENDED = "ended after success"
TOLERATED = "failed, not needed for success"
# For a gang of MIN:MAX nodes.
LEFT = {
    "resize": "removed by a resize",
    "lost": "lost, the others continued",
    "surplus": "started after the job had succeeded",
}


def note_of(facts: SlotFacts | RankFacts, *, spec: JobSpec, slots: Sequence[SlotFacts]) -> str | None:
    """Note of one slot or rank of a successful run; None if its exit needs no note."""
    role = spec.success.role
    if (spec.success.policy == "all" and role is None) or not (
        facts.signal or facts.exit_code or facts.state == "lost"
    ):
        return None
    if facts.killed_by in {"wrapper", "agent"}:
        return STOPPED
    if spec.success.policy == "rank0":
        # Before rank 0's success it would have been a failure.
        return ENDED
    counted = [s for s in slots if role is None or s.role == role]
    good = sorted(s.ended_at or 0 for s in counted if s.state == "ended" and s.exit_code == 0 and s.signal is None)
    wanted = spec.success.wanted(len(counted))
    reached = good[wanted - 1] if len(good) >= wanted else None
    late = reached is not None and facts.ended_at is not None and facts.ended_at > reached
    return ENDED if late else TOLERATED


Standing = Literal["active", "succeeded", "failed", "stopped", "none"]
_NO_FAILURE = frozenset({STOPPED, ENDED, LEFT["resize"], LEFT["surplus"]})
_RESTARTS = frozenset({"retry", "retry_elsewhere", "resize"})


def standing(facts: SlotFacts, *, goes_on: bool, first: bool = False, note: str | None = None) -> Standing:
    """Returns the category under which a slot is counted.

    ``goes_on``: the attempt is not over. ``first``: its rank failed first, by itself.
    """
    if facts.state not in {"ended", "lost"}:
        return "active" if goes_on else "none"
    if first and facts.exit_code:
        return "failed"
    if facts.killed_by == "wrapper" or note in _NO_FAILURE:
        return "stopped"
    return "succeeded" if facts.exit_code == 0 and facts.signal is None else "failed"


def ranks_started(ranks: Iterable[RankFacts]) -> Counter[int | None]:
    """Number of ranks that each slot started, of the newest round."""
    return Counter(slot for slot, _ in {(one.slot, one.rank) for one in ranks})


def is_ready(facts: SlotFacts, *, ranks: int, nproc: int | None) -> bool:
    """True if a slot runs, its platform reports it ready, and its ranks have started.

    ``nproc``: ranks it will start; None if unknown.
    """
    if facts.state != "running" or facts.platform_ready is False:
        return False
    return nproc is None or not facts.recorder or ranks >= nproc


def restarts(tables: Queries, *, limit: int) -> Restarts:
    """Number of restarts, by cause; ``limit`` is the job's."""
    counted: Counter[str] = Counter()
    newest = tables.newest_attempt() or 0
    for row in tables.decisions():
        if row.decision.action in _RESTARTS and row.attempt < newest:
            found = tables.diagnosis(row.attempt)
            counted[found.verdict.cause.slug if found is not None else "unknown"] += 1
    for one in tables.falls():
        if one.done_at is not None and one.fall.again:
            counted[one.fall.diagnosis.verdict.cause.slug] += 1
    return Restarts(count=counted.total(), limit=limit, by_cause=dict(sorted(counted.items())))


_NS = 1e9
# States in which a supervisor that died leaves processes behind.
_LEFT_ALONE = frozenset({"starting", "running"})


def _ends_unseen(
    run_dir: RunPaths, attempt: int, slots: list[SlotFacts], ranks: list[RankFacts]
) -> tuple[list[SlotFacts], list[RankFacts]]:
    """Returns slots and ranks of a run without a supervisor, with the ends that it did not store."""
    found = {facts.slot: _end_unseen(run_dir, attempt, facts) for facts in slots}
    over = {facts.slot: facts.role or "" for facts in found.values() if facts.state in {"ended", "lost"}}
    ends: dict[tuple[int | None, int | None], ExitInfo] = {}
    for slot, role in over.items():
        for path in run_dir.records_dir.glob(f"end-a{attempt}-{role}-{slot}-*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                end = decoding.decode(read_untrusted_file(path, limit=MAX_RECORD)[0], kind=Record)
                ends[slot, end.pid] = end.exit or ExitInfo()

    def ended(facts: RankFacts) -> RankFacts:
        if facts.state != "running" or facts.slot not in over:
            return facts
        info = ends.get((facts.slot, facts.pid))
        if info is None:
            return msgspec.structs.replace(facts, state="unknown")
        return msgspec.structs.replace(facts, state="ended", exit_code=info.code, signal=info.signal)

    return [found[facts.slot] for facts in slots], [*map(ended, ranks)]


def _end_unseen(run_dir: RunPaths, attempt: int, facts: SlotFacts) -> SlotFacts:
    """Returns the slot's facts with its end, if its wrapper has ended on this machine since its boot."""
    if facts.state not in {"expected", "running"}:
        return facts
    folder = run_dir.slot_dir(attempt, facts.role or "", facts.slot, facts.instance)
    lock = read_lock(folder)
    if lock is None or lock.boot != boot_id() or lock.lives():
        return facts
    try:
        end = read_end(folder)
    except ValueError:
        end = None
    if end is None or end.exit is None:
        return msgspec.structs.replace(facts, state="lost")
    return msgspec.structs.replace(
        facts, state="ended", exit_code=end.exit.code, signal=end.exit.signal, ended_at=end.at_ns
    )


def _ended_unseen(run_dir: RunPaths, tables: Queries, *, held: bool) -> int | None:
    """Time at which the last process of a run ended whose supervisor had died; None if one may live."""
    attempt, spec = tables.newest_attempt(), _spec(run_dir)
    if held or attempt is None or spec is None or spec.backend != "local" or tables.run().state not in _LEFT_ALONE:
        return None
    slots, _ = _ends_unseen(run_dir, attempt, tables.slots(attempt), [])
    if not slots or any(facts.state not in {"ended", "lost"} for facts in slots):
        return None
    # A wrapper that was killed left no time of its end.
    last = _LastLines(run_dir, tables, attempt, []).of_slot
    return max(facts.ended_at or last.get(facts.slot) or facts.started_at or 1 for facts in slots)


def summary(run_dir: RunPaths, tables: Queries) -> RunSummary:
    """Run as ``ps`` lists it."""
    found = tables.diagnosis()
    return _summary(run_dir, tables, found.verdict if found else None)


def _summary(run_dir: RunPaths, tables: Queries, verdict: Verdict | None) -> RunSummary:
    row = tables.run()
    name, backend = _named(run_dir, tables)
    held = run_dir.lease_holder() is not None
    unattended = _unattended(run_dir)
    ended = row.ended or _ended_unseen(run_dir, tables, held=held)
    return RunSummary(
        run=run_dir.id,
        name=name,
        backend=backend,
        state=row.state,
        attempts=tables.newest_attempt() or 0,
        started=rfc3339(row.started),
        ended=rfc3339(ended),
        cause=verdict.cause.slug if verdict else None,
        rank=verdict.rank if verdict else None,
        node=verdict.node if verdict else None,
        supervised=not unattended and held,
        unattended=unattended,
        foreign=_foreign(run_dir),
        seen=rfc3339(run_dir.last_seen() or None) if not held and row.state not in FINAL_STATES else None,
    )


def status(run_dir: RunPaths, tables: Queries, *, now: int) -> StatusDocument:
    """Run with slots and ranks of its newest attempt; ranks of the newest round only."""
    found = tables.diagnosis()
    verdict = found.verdict if found else None
    short = _summary(run_dir, tables, verdict)
    row = tables.run()
    lost = lost_of_run(run_dir)
    lacks = [*(one.text for one in lost), *waiting(run_dir, state=short.state), *row.incomplete, *tables.problems]
    attempt = tables.newest_attempt()
    slots = tables.slots(attempt) if attempt is not None else []
    ranks = newest_round(tables.ranks(attempt)) if attempt is not None else []
    if attempt is not None and not short.supervised and short.backend == "local" and short.state in _LEFT_ALONE:
        slots, ranks = _ends_unseen(run_dir, attempt, slots, ranks)
    last = _LastLines(run_dir, tables, attempt, ranks)
    spec = _spec(run_dir)
    notes = _notes(spec, slots, ranks) if short.state == "succeeded" and spec is not None else {}
    notes |= _left(tables, attempt, ranks)
    sizes, requested = _sizes(run_dir, tables, attempt, spec)
    spec = sized(spec, sizes) if spec is not None else None
    goes_on = short.state not in FINAL_STATES and any(
        one.attempt == attempt and one.ended is None for one in tables.attempts()
    )
    parts = spec.parts if spec is not None else ()
    started = ranks_started(ranks)
    ready = {
        facts.slot: goes_on and is_ready(facts, ranks=started[facts.slot], nproc=_ranks_of(facts, parts))
        for facts in slots
    }
    failed = verdict is not None and verdict.attempt == attempt and verdict.exit_origin == "rank"
    first = verdict.slot if verdict is not None and failed else None
    standings = Counter(
        # A suspended job has no pods, or they are ending.
        standing(
            facts,
            goes_on=goes_on and (short.state != "suspended" or facts.pod is not None),
            first=facts.slot == first,
            note=notes.get(("slot", facts.slot)),
        )
        for facts in slots
    )
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
        supervised=short.supervised,
        unattended=short.unattended,
        foreign=short.foreign,
        seen=short.seen,
        recorded=run_dir.lease_holder() is not None,
        ready=sum(ready.values()),
        active=standings["active"],
        succeeded=standings["succeeded"],
        failed=standings["failed"],
        stopped=standings["stopped"],
        restarts=restarts(tables, limit=spec.policies.max_restarts if spec is not None else 0),
        incomplete=tuple(dict.fromkeys(lacks)),
        lost_lines=lost,
        sizes=sizes,
        sizes_wished=requested,
        slots=tuple(
            _slot(
                run_dir,
                attempt or 0,
                facts,
                ready=ready[facts.slot],
                age=_age(now, last.of_slot.get(facts.slot)),
                note=notes.get(("slot", facts.slot)),
            )
            for facts in slots
        ),
        ranks=tuple(
            _rank(
                facts,
                age=_age(now, facts.last_line_at, last.of_rank.get(facts.rank)),
                note=notes.get(("rank", facts.rank)),
            )
            for facts in ranks
        ),
    )


def _spec(run_dir: RunPaths) -> JobSpec | None:
    try:
        return run_dir.spec
    except StoreError:
        return None


def _sizes(
    run_dir: RunPaths, tables: Queries, attempt: int | None, spec: JobSpec | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns nodes by role: of this attempt, and as requested."""
    if spec is None:
        return {}, {}
    plan = next((row.plan for row in tables.attempts() if row.attempt == attempt), {})
    return planned_sizes(plan, spec), requested_sizes(run_dir.path, spec)


def _ranks_of(facts: SlotFacts, parts: Sequence[Part]) -> int | None:
    """Number of ranks that this slot starts; None if unknown in advance or unobservable."""
    part = next((one for one in parts if facts.slot in one.slots), None)
    if part is None or not part.in_world or part.spec.inside == "off" or facts.launcher in {"exec", None}:
        return None
    return part.spec.nproc_per_node


def _left(tables: Queries, attempt: int | None, ranks: list[RankFacts]) -> dict[tuple[str, int], str | None]:
    """Notes for slots that left the gang during the attempt, and for their ranks."""
    plan = next((row.plan for row in tables.attempts() if row.attempt == attempt), {})
    left = {slot: LEFT[why] for slot, why in left_slots(plan).items()}
    notes: dict[tuple[str, int], str | None] = {("slot", slot): text for slot, text in left.items()}
    return notes | {("rank", facts.rank): left[facts.slot] for facts in ranks if facts.slot in left}


def _notes(spec: JobSpec, slots: list[SlotFacts], ranks: list[RankFacts]) -> dict[tuple[str, int], str | None]:
    of_slots = {("slot", facts.slot): note_of(facts, spec=spec, slots=slots) for facts in slots}
    return of_slots | {("rank", facts.rank): note_of(facts, spec=spec, slots=slots) for facts in ranks}


def _unattended(run_dir: RunPaths) -> bool:
    try:
        return run_dir.spec.unattended
    except StoreError:
        return False


def _foreign(run_dir: RunPaths) -> str | None:
    try:
        return run_dir.foreign.target.label if run_dir.foreign is not None else None
    except StoreError:
        return None


def newest_round(ranks: list[RankFacts]) -> list[RankFacts]:
    """Ranks of the newest round; ranks without a round only if no rank has one."""
    rounds = {-1 if facts.round is None else facts.round for facts in ranks}
    newest = max(rounds, default=-1)
    return [facts for facts in ranks if (-1 if facts.round is None else facts.round) == newest]


def exit_text(code: int | None, signal: int | None) -> str | None:
    """Returns an exit for display: ``0``, ``SIGKILL``; None if unknown."""
    if signal is not None:
        try:
            return signals.Signals(signal).name
        except ValueError:
            return f"signal {signal}"
    return None if code is None else str(code)


def _named(run_dir: RunPaths, tables: Queries) -> tuple[str, str]:
    try:
        spec = run_dir.spec
    except StoreError as error:
        tables.problems.append(error.message)
        return run_dir.id.rpartition("-")[0] or run_dir.id, "unknown"
    return spec.name, spec.backend


def _slot(
    run_dir: RunPaths, attempt: int, facts: SlotFacts, *, ready: bool, age: float | None, note: str | None
) -> SlotStatus:
    role = facts.role or ""
    return SlotStatus(
        slot=facts.slot,
        role=role,
        state=facts.state,
        node=facts.node,
        pod=facts.pod,
        pid=_wrapper_pid(run_dir, attempt, role, facts),
        restarts=facts.instance,
        launcher=facts.launcher,
        ready=ready,
        exit=exit_text(facts.exit_code, facts.signal),
        line_age_s=age,
        note=note,
    )


def _wrapper_pid(run_dir: RunPaths, attempt: int, role: str, facts: SlotFacts) -> int | None:
    """Pid in the slot's ``lock`` file, or None."""
    lock = read_lock(run_dir.slot_dir(attempt, role, facts.slot, facts.instance))
    return None if lock is None else lock.pid


class _LastLines:
    """Arrival time of the newest chunk of each rank and slot, from the indexes: valid even without a supervisor."""

    def __init__(self, run_dir: RunPaths, tables: Queries, attempt: int | None, ranks: list[RankFacts]) -> None:
        self.of_rank: dict[int, int] = {}
        self.of_slot: dict[int, int] = {}
        rounds = {facts.rank: facts.round for facts in ranks}
        for row in tables.streams(attempt) if attempt is not None else ():
            if row.to_byte is not None:
                continue
            stamp = IndexReader(run_dir.path / row.stream).last_stamp()
            if stamp is None:
                continue
            self.of_slot[row.slot] = max(stamp, self.of_slot.get(row.slot, stamp))
            if row.rank is not None and row.rank in rounds and row.round == rounds[row.rank]:
                self.of_rank[row.rank] = max(stamp, self.of_rank.get(row.rank, stamp))


def _age(now: int, *stamps: int | None) -> float | None:
    known = [at for at in stamps if at is not None]
    return max(0.0, (now - max(known)) / _NS) if known else None


def _rank(facts: RankFacts, *, age: float | None, note: str | None) -> RankStatus:
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
