"""The numbers of ``status``: slots by what became of them, restarts by cause. Defined once, over facts that every backend gives.

Nothing is taken from counters of a platform: those forget what was deleted, and count what Rankfall itself stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from rankfall.model import RankFacts, Restarts, SlotFacts
from rankfall.store.after_success import ENDED, LEFT, STOPPED

if TYPE_CHECKING:
    from rankfall.store.queries import Queries

Standing = Literal["active", "succeeded", "failed", "stopped", "none"]
_NO_FAILURE = frozenset({STOPPED, ENDED, LEFT["resize"], LEFT["surplus"]})
_RESTARTS = frozenset({"retry", "retry_elsewhere", "resize"})


def standing(facts: SlotFacts, *, goes_on: bool, first: bool = False, note: str | None = None) -> Standing:
    """What a slot counts as.

    Args:
        facts: of the slot.
        goes_on: the attempt is not over.
        first: one of its ranks failed first, by itself; a stop that came before its wrapper had ended does not change that.
        note: what a run that succeeded says of a bad end.
    """
    if facts.state not in {"ended", "lost"}:
        return "active" if goes_on else "none"
    if first and facts.exit_code:
        return "failed"
    if facts.killed_by == "wrapper" or note in _NO_FAILURE:
        return "stopped"
    return "succeeded" if facts.exit_code == 0 and facts.signal is None else "failed"


def started(ranks: Iterable[RankFacts]) -> Counter[int | None]:
    """How many ranks each slot has started.

    Args:
        ranks: of the newest round.
    """
    return Counter(slot for slot, _ in {(one.slot, one.rank) for one in ranks})


def is_ready(facts: SlotFacts, *, ranks: int, nproc: int | None) -> bool:
    """Whether a slot runs, its platform agrees, and its ranks have started.

    Args:
        facts: of the slot.
        ranks: how many it has started.
        nproc: how many it is to start; None = that is not known beforehand, or none of them can be seen.
    """
    if facts.state != "running" or facts.platform_ready is False:
        return False
    return nproc is None or not facts.recorder or ranks >= nproc


def restarts(tables: Queries, *, limit: int) -> Restarts:
    """New starts so far, by the cause of the fall that each one followed.

    Args:
        tables: of the run.
        limit: how many the job allows.
    """
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
