"""The gang of MIN:MAX nodes as it stands: without slots that left it, without rounds that it outlived, without what torchrun began after a fall.

Pure. Draws no conclusion: it says what of a case is about the present.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from rankfall.model import Case, RankFacts


def present_case(case: Case, *, left: Collection[int], fell_at: int | None = None) -> Case:
    """The case of those that belong to the gang, each slot with its newest round.

    Args:
        case: of the whole attempt.
        left: slots that do not belong to it any more.
        fell_at: when the fall came that is asked about, nanoseconds since the epoch: what started later is torchrun's own restart, which says
            nothing of it. None = nothing fell, or its time is not known.
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
    """Ranks of the present round: as many as are known of it, where slots left or others are gone."""
    return case.world_size if len(kept) == len(case.ranks) else len({facts.rank for facts in kept}) or case.world_size
