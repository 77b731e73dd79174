"""When a JobSet of several roles has begun to end by itself what is left of it.

A role whose slots have all ended, one of them badly, is a failed Job, and a failed Job ends the set: the pods of all other roles get a
SIGTERM before Rankfall has asked for anything. What they die of from then on is that stop, and no cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankfall.backends.plan import Plan
from rankfall.model import SlotFacts
from rankfall.observe.cluster.stops import Stop, mark_stop, read_stop

REASON = "a JobSet ends its other roles when one has failed"


def mark_set_stop(folder: Path, plan: Plan, slots: Iterable[SlotFacts]) -> None:
    """Write the set's own stop down, where there was one and no stop is written down yet.

    Args:
        folder: of the run.
        plan: of the attempt.
        slots: all of it, as they are now.
    """
    stop = stop_by_set(plan, slots)
    if stop is not None and read_stop(folder, plan.attempt) is None:
        mark_stop(folder, plan.attempt, stop)


def stop_by_set(plan: Plan, slots: Iterable[SlotFacts]) -> Stop | None:
    """The set's own stop, from the last end of the role that failed on; None where there was none.

    Args:
        plan: of the attempt.
        slots: all of it, as they are now.
    """
    roles: dict[str, list[SlotFacts]] = {}
    for facts in slots:
        roles.setdefault(facts.role or "", []).append(facts)
    if plan.cluster is None or plan.cluster.backend == "job" or len(roles) == 1:
        return None
    found = [at for own in roles.values() if (at := _failed_at(own)) is not None]
    return Stop(at_ns=min(found), reason=REASON) if found else None


def _failed_at(slots: list[SlotFacts]) -> int | None:
    """When the last slot of a role ended, if all have and one badly; nanoseconds since the epoch by its own clock."""
    ends = [facts.ended_at for facts in slots if facts.ended_at is not None]
    over = all(facts.state in {"ended", "lost"} for facts in slots)
    fell = any(
        facts.state == "lost" or facts.exit_code or (facts.signal is not None and facts.killed_by != "wrapper")
        for facts in slots
    )
    return max(ends) if over and fell and ends else None
