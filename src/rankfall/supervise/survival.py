"""Whether a gang of MIN:MAX nodes goes on after a fall, or after slots came or went: then what its ranks said at that is no failure of the job.

A gang goes on without a slot that is gone, never with a rank that fell by its own fault: that is for budgets and rules to decide, so a
restart that torchrun makes by itself is stopped. Slot 0 holds the rendezvous: without it nobody goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Literal

from rankfall.model import Case, RankFacts, SlotFacts, cause_info
from rankfall.observe.strategies import diagnose_by
from rankfall.supervise.news import BadEnd
from rankfall.supervise.settle import went_on

Answer = Literal["fell", "waits", "goes_on"]

# Until a new round: torch drops a silent node after 15 s, waits 30 s for others that may come, and starts the ranks.
PATIENCE_S: Final = 120.0
_BARE: Final = frozenset({"user_exit", "killed_unknown", "unknown"})


class Survival:
    """One fall after the other of one attempt.

    Args:
        least: nodes without which the gang does not run.
        strategy: of diagnosis.
    """

    def __init__(self, *, least: int, strategy: str) -> None:
        self._least = least
        self._strategy = strategy
        self._weighed: frozenset[BadEnd] = frozenset()
        self._own_fault = False
        self._since: float | None = None

    def weigh(
        self,
        case: Callable[[], Case],
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        *,
        bad: frozenset[BadEnd],
        changing: bool,
        clock: float,
    ) -> Answer:
        """Whether the gang goes on after these bad ends.

        Args:
            case: makes the case of what is known; asked once for each new bad end.
            slots: that belong to the gang.
            ranks: of those slots.
            bad: ends that the gang has not outlived yet.
            changing: whether slots are coming or leaving, or did since the ranks last started.
            clock: monotonic seconds.
        """
        gone = {number for kind, number, _ in bad if kind == "slot"}
        running = {facts.slot for facts in slots if facts.state == "running"}
        if len(running) < self._least or 0 not in running or not (gone or changing):
            return self._settled("fell")
        if bad != self._weighed:
            self._weighed = bad
            self._own_fault = self._is_own_fault(case(), gone)
        if self._own_fault:
            return self._settled("fell")
        if went_on(ranks, slots, least=self._least):
            return self._settled("goes_on")
        self._since = clock if self._since is None else self._since
        return self._settled("fell") if clock - self._since > PATIENCE_S else "waits"

    def _is_own_fault(self, case: Case, gone: Collection[int]) -> bool:
        """Whether a rank of a slot that is still there fell by itself, or the slot that is gone of what would come again."""
        verdict = diagnose_by(self._strategy, case).verdict
        if verdict.slot in gone:
            return verdict.retry == "no"
        # A bare code, or nothing, is what a rank leaves with whose peer went away and who says nothing of it.
        return cause_info(verdict.cause.slug).role == "primary" and verdict.cause.slug not in _BARE

    def _settled(self, answer: Answer) -> Answer:
        self._since = None
        return answer
