"""What is said of slots and ranks that did not end with 0 in a run that succeeded all the same, by its success policy."""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.model import JobSpec, RankFacts, SlotFacts

STOPPED = "stopped after success"
ENDED = "ended after success"
TOLERATED = "fell, not needed for success"
# Of a gang of MIN:MAX nodes, also before the run's end.
LEFT = {"resize": "left by a resize", "lost": "lost, the others went on", "surplus": "came when the job was done"}


def note_of(facts: SlotFacts | RankFacts, *, spec: JobSpec, slots: Sequence[SlotFacts]) -> str | None:
    """The note of one slot or rank of a run that succeeded; None where its exit says all.

    Args:
        facts: of the slot or rank.
        spec: of the run.
        slots: all slots of the attempt.
    """
    role = spec.success.role
    if (spec.success.policy == "all" and role is None) or not (
        facts.signal or facts.exit_code or facts.state == "lost"
    ):
        return None
    if facts.killed_by in {"wrapper", "agent"}:
        return STOPPED
    if spec.success.policy == "rank0":
        # A bad end before rank 0's good one would have been a failure of the run.
        return ENDED
    counted = [s for s in slots if role is None or s.role == role]
    good = sorted(s.ended_at or 0 for s in counted if s.state == "ended" and s.exit_code == 0 and s.signal is None)
    wanted = spec.success.wanted(len(counted))
    reached = good[wanted - 1] if len(good) >= wanted else None
    late = reached is not None and facts.ended_at is not None and facts.ended_at > reached
    return ENDED if late else TOLERATED
