"""What a decision needs to know of earlier attempts, read from the store."""

from __future__ import annotations

from collections.abc import Mapping

from rankfall.decide import PastAttempt
from rankfall.model import Diagnosis
from rankfall.store import DecisionRow, Writer


def past_attempts(
    writer: Writer, *, before: int, decisions: Mapping[int, DecisionRow], verdicts: Mapping[int, Diagnosis]
) -> tuple[PastAttempt, ...]:
    """Attempts older than ``before`` that fell, oldest first.

    Args:
        writer: reads facts, and verdicts that are not in ``verdicts``.
        before: the attempt that is being decided about.
        decisions: the newest decision about each attempt.
        verdicts: what this process knows even where nothing could be written.
    """
    found = []
    furthest = -1
    for number in range(1, before):
        steps = [facts.step for facts in writer.ranks(number) if facts.step is not None]
        reached = max(steps, default=-1)
        progressed, furthest = reached > furthest, max(reached, furthest)
        diagnosis = verdicts.get(number) or writer.diagnosis(number)
        row = decisions.get(number)
        if diagnosis is None or row is None:
            continue
        verdict = diagnosis.verdict
        found.append(
            PastAttempt(
                attempt=number,
                fingerprint=diagnosis.fingerprint,
                slug=verdict.cause.slug,
                family=verdict.cause.family,
                action=row.decision.action,
                rule=row.decision.rule,
                budget=row.decision.budget,
                node=verdict.node,
                progressed=progressed,
            )
        )
    return tuple(found)
