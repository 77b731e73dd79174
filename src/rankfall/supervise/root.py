"""How the root of a verdict ended and what its platform said of it, read from the store, so that any supervisor decides alike.

Reasons and conditions come from evidence that a job cannot forge: of source pod, event or node, trust platform, on the root's own slot.
They stand in its ``detail`` as words ``reason=OOMKilled`` and ``condition=DisruptionTarget``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rankfall.decide import RootFacts
from rankfall.model import Case, Diagnosis, Evidence, RankFacts, SlotFacts, Verdict
from rankfall.store.queries import Queries

_SOURCES: Final = frozenset({"pod", "event", "node"})


def root_facts(tables: Queries, *, attempt: int, diagnosis: Diagnosis) -> RootFacts:
    """What the failure rules may match on.

    Args:
        tables: of the run.
        attempt: that the diagnosis is of.
        diagnosis: its verdict names the root's rank and slot.
    """
    past = {one for row in tables.falls(attempt) if row.fall.again for one in row.fall.evidence}
    evidence = [piece for piece in tables.evidence(attempt) if piece.id not in past]
    return _facts(diagnosis, ranks=tables.ranks(attempt), slots=tables.slots(attempt), evidence=evidence)


def root_facts_of(case: Case, diagnosis: Diagnosis) -> RootFacts:
    """The same of a diagnosis that is not in the store yet.

    Args:
        case: that it was made from.
        diagnosis: as above.
    """
    return _facts(diagnosis, ranks=case.ranks, slots=case.slots, evidence=case.evidence)


def _facts(
    diagnosis: Diagnosis, *, ranks: Iterable[RankFacts], slots: Iterable[SlotFacts], evidence: Iterable[Evidence]
) -> RootFacts:
    verdict = diagnosis.verdict
    sheet = _sheet(verdict, ranks, slots)
    reasons, conditions = _said(verdict, evidence)
    return RootFacts(
        code=diagnosis.exit_code,
        signal=sheet.signal if sheet is not None else None,
        role=verdict.role or (sheet.role if sheet is not None else None),
        reasons=reasons,
        conditions=conditions,
    )


def _sheet(verdict: Verdict, ranks: Iterable[RankFacts], slots: Iterable[SlotFacts]) -> RankFacts | SlotFacts | None:
    """The fact sheet of the root's own process: its rank's of the newest round, else its slot's."""
    if verdict.rank is not None:
        own = [facts for facts in ranks if facts.rank == verdict.rank]
        return max(own, key=lambda facts: facts.round or 0, default=None)
    return next((facts for facts in slots if facts.slot == verdict.slot), None)


def _said(verdict: Verdict, evidence: Iterable[Evidence]) -> tuple[frozenset[str], frozenset[str]]:
    found: dict[str, set[str]] = {"reason": set(), "condition": set()}
    for piece in evidence:
        if piece.source not in _SOURCES or piece.trust != "platform" or not piece.detail:
            continue
        if piece.slot is not None and verdict.slot is not None and piece.slot != verdict.slot:
            continue
        for word in piece.detail.split():
            name, _, value = word.partition("=")
            if name in found and value:
                found[name].add(value)
    return frozenset(found["reason"]), frozenset(found["condition"])
