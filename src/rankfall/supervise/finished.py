"""Roles that have done their work: a new attempt of the gang does not run them again.

Only roles whose slots are independent of the others (``restart_scope: replica``) can be done alone; a gang needs all of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rankfall.model import JobSpec, SlotFacts


def finished_roles(spec: JobSpec, slots: Iterable[SlotFacts], *, left_out: Collection[str]) -> tuple[str, ...]:
    """Roles that the next attempt leaves out.

    Args:
        spec: the job.
        slots: of the attempt that ended.
        left_out: roles that it had left out itself.
    """
    if spec.success.policy == "fraction" and spec.success.role is None:
        # There each slot of the job counts, also those that are done.
        return ()
    well: dict[int, bool] = {facts.slot: _ended_well(facts) for facts in slots}
    found = []
    for part in spec.parts:
        alone = spec.several_roles and all(map(spec.restarts_alone, part.slots))
        if alone and (part.name in left_out or all(well.get(slot, False) for slot in part.slots)):
            found.append(part.name)
    return tuple(found)


def _ended_well(facts: SlotFacts) -> bool:
    """Of its own accord: who was told to end may have left its work half done and said 0 all the same."""
    untouched = facts.signal is None and facts.killed_by is None and not facts.signalled
    return facts.state == "ended" and facts.exit_code == 0 and untouched
