"""What a decision needs to know of earlier falls, of whole attempts and of slots alone, read from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rankfall.decide import PastAttempt
from rankfall.model import Decision, Diagnosis
from rankfall.store import DecisionRow, FallRow, Writer


def past_falls(
    writer: Writer,
    *,
    before: int,
    decisions: Mapping[int, DecisionRow],
    verdicts: Mapping[int, Diagnosis],
    falls: Iterable[FallRow],
) -> tuple[PastAttempt, ...]:
    """Attempts older than ``before`` that fell, oldest first, each after the slots that fell alone in it; and those of ``before`` itself.

    Args:
        writer: reads facts, and verdicts that are not in ``verdicts``.
        before: the attempt that is being decided about, or in which a slot fell.
        decisions: the newest decision about each attempt.
        verdicts: what this process knows even where nothing could be written.
        falls: of slots alone, oldest first, likewise.
    """
    found: list[PastAttempt] = []
    furthest: dict[int | None, int] = {}

    def past(
        attempt: int, diagnosis: Diagnosis, decision: Decision, *, slot: int | None = None, progressed: bool
    ) -> None:
        verdict = diagnosis.verdict
        found.append(
            PastAttempt(
                attempt=attempt,
                slot=slot,
                fingerprint=diagnosis.fingerprint,
                slug=verdict.cause.slug,
                family=verdict.cause.family,
                action=decision.action,
                rule=decision.rule,
                budget=decision.budget,
                node=verdict.node,
                progressed=progressed,
            )
        )

    def gained(slot: int | None, step: int) -> bool:
        reached = furthest.get(slot, -1)
        furthest[slot] = max(step, reached)
        return step > reached

    alone = tuple(falls)
    for number in range(1, before + 1):
        for fall in (row.fall for row in alone if row.attempt == number):
            step = -1 if fall.step is None else fall.step
            past(number, fall.diagnosis, fall, slot=fall.slot, progressed=gained(fall.slot, step))
        if number == before:
            break
        steps = [facts.step for facts in writer.ranks(number) if facts.step is not None]
        progressed = gained(None, max(steps, default=-1))
        diagnosis = verdicts.get(number) or writer.diagnosis(number)
        decided = decisions.get(number)
        if diagnosis is not None and decided is not None:
            past(number, diagnosis, decided.decision, progressed=progressed)
    return tuple(found)
