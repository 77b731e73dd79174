"""Builds the input of a diagnosis from one attempt's facts and evidence. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

import msgspec

from rankfall.evidence.facts import Facts
from rankfall.model import Case, Evidence, JobSpec, RankFacts
from rankfall.model.foreign import FOREIGN
from rankfall.model.numbers import numbered
from rankfall.model.timestamps import Bound


def present_case(case: Case, *, left: Collection[int], fell_at: int | None = None) -> Case:
    """Returns the case of the gang's current slots, each with its newest round.

    Starts after ``fell_at`` (nanoseconds since the epoch, or None) are torchrun's restart and excluded, as are
    slots that ``left``.
    """
    ranks = tuple(facts for facts in case.ranks if facts.slot not in left)
    before = [facts for facts in ranks if fell_at is None or (facts.started_at or 0) <= fell_at]
    newest: dict[int | None, int] = {}
    for facts in before:
        newest[facts.slot] = max(facts.round or 0, newest.get(facts.slot, 0))
    kept = tuple(facts for facts in before if (facts.round or 0) == newest[facts.slot])
    later = {(facts.slot, facts.pid) for facts in ranks if facts not in before}
    evidence = tuple(
        piece
        for piece in case.evidence
        if piece.slot not in left
        and (piece.pid is None or (piece.slot, piece.pid) not in later)
        and (piece.round is None or piece.slot not in newest or piece.round <= newest[piece.slot])
    )
    slots = tuple(facts for facts in case.slots if facts.slot not in left)
    return msgspec.structs.replace(case, ranks=kept, slots=slots, evidence=evidence, world_size=_world(case, kept))


def _world(case: Case, kept: tuple[RankFacts, ...]) -> int | None:
    """Number of ranks of the current round, as far as known, if slots left or ranks ended."""
    return case.world_size if len(kept) == len(case.ranks) else len({facts.rank for facts in kept}) or case.world_size


_SIGKILL: Final = 9
_NS: Final = 1_000_000_000
# Maximum named clocks that differ, and ranks without a hook.
_MAX_CLOCKS: Final = 4
# torch 2.15, dynamic_rendezvous: a node is dropped if its last heartbeat is older than 3 intervals of 5 s, by the
# reader's wall clock.
_KEEP_ALIVE_S: Final = 15.0


def make_case(
    spec: JobSpec,
    facts: Facts,
    evidence: Collection[Evidence],
    *,
    run: str,
    attempt: int,
    missing: Sequence[str],
    kernel_note: str | None,
    denied: bool,
    cancelled: str | None,
    hung: bool,
    only: int | None,
) -> Case:
    """Returns the current case of an attempt.

    ``missing``: messages about missing evidence. ``kernel_note``: why the kernel log was unreadable, or None.
    ``denied``: a
    worker reported a failure despite its exit code. ``cancelled``: text about the cancel, or None. ``hung``: no
    activity for
    the configured time. ``only``: the slot that failed alone, or None.
    """
    slots = tuple(facts.slots[n] for n in sorted(facts.slots) if only is None or n == only)
    ranks = tuple(sheet for sheet in facts.ranks() if only is None or sheet.slot == only)
    begun = [slot for slot in slots if slot.state != "expected"]
    ended = bool(begun) and all(slot.state in {"ended", "lost"} for slot in begun)
    # In an elastic gang, slots that never appeared do not count.
    counted = begun if spec.elastic else slots
    succeeded = bool(slots) and all(slot.state == "ended" and slot.exit_code == 0 for slot in counted)
    denied = denied and only is None
    return Case(
        run=run,
        attempt=attempt,
        backend=spec.backend,
        role=spec.one_role,
        world_size=_world_size(spec, facts, ranks),
        nnodes=spec.least_slots if only is None else 1,
        ended=ended,
        succeeded=succeeded and not denied,
        denied=denied,
        cancelled=cancelled,
        hung=hung,
        ranks=ranks,
        slots=slots,
        evidence=tuple(piece for piece in evidence if only is None or piece.slot == only),
        missing=(*missing, *_missing_of_ranks(spec, ranks, kernel_note), *_clock_notes(facts)),
        clocks=facts.clocks.table(),
    )


def explained(evidence: Collection[Evidence]) -> bool:
    """True if a rank's record gives a cause, so that messages of the platform would add nothing."""
    return any(piece.role == "primary" and piece.source == "record" for piece in evidence)


def _world_size(spec: JobSpec, facts: Facts, ranks: Sequence[RankFacts]) -> int | None:
    # Only the ranks of a foreign job report their number.
    if spec.backend == FOREIGN or spec.elastic or not any(part.in_world for part in spec.parts):
        sizes = [s.world_size for r in ranks if (s := facts.start_of(r.slot, r.pid)) and s.world_size]
        return max(sizes, default=None)
    return spec.world_size


def _missing_of_ranks(spec: JobSpec, ranks: Sequence[RankFacts], kernel_note: str | None) -> list[str]:
    found = []
    if kernel_note and any(r.signal == _SIGKILL and r.killed_by == "foreign" for r in ranks):
        found.append(kernel_note)
    absent = [r.rank for r in ranks if r.hook == "absent"]
    if absent and spec.inside != "off":
        found.append(f"records of{numbered('rank', absent)}: the hook was not loaded there")
    return found


def _clock_notes(facts: Facts) -> list[str]:
    return [_clock_note(slot, ahead) for slot, ahead in islice(facts.clocks.off().items(), _MAX_CLOCKS)]


def _clock_note(slot: int, ahead: Bound) -> str:
    if ahead.middle is None:
        return f"a clock that agrees: the clock of slot {slot} was changed during the run"
    # Lines arrive almost immediately: their bound is better than the middle.
    off = (ahead.middle if ahead.lo is None else ahead.lo) / _NS
    words = f"a clock that agrees: the clock of slot {slot} is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}"
    late = abs(off) >= _KEEP_ALIVE_S
    return words + (f"; c10d's rendezvous drops nodes whose clocks differ by {_KEEP_ALIVE_S:.0f} s" if late else "")
