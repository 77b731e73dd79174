"""Counting: which budgets a new attempt draws on, and what is left in them. A budget is a number of new attempts; 0 allows none.

``total`` is ``policies.max_restarts``. The others stand in ``policies.budgets`` under a slug, a family or the name that a rule gives;
``user`` has the number of ``max_restarts`` where the spec gives none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rankfall.decide.facts import PastAttempt
from rankfall.decide.rules import rule_named
from rankfall.model import FailureRule, JobSpec

TOTAL: Final = "total"
USER: Final = "user"
# Name of the decision that the user's own word made.
DECLARED: Final = "user_retryable"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget: how many new attempts it allows, and how many were drawn from it."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """New attempts that it still allows."""
        return max(0, self.limit - self.used)

    @property
    def text(self) -> str:
        """Its count, as ``app 1/1``."""
        return f"{self.name} {self.used}/{self.limit}"


class Budgets:
    """All budgets of a run, as its history left them.

    Args:
        spec: limits and rules.
        history: earlier attempts, oldest first.
    """

    def __init__(self, spec: JobSpec, history: Iterable[PastAttempt]) -> None:
        self._spec = spec
        self._drawn: dict[str, int] = {}
        for past in history:
            if past.restarted:
                for name in _drawn(past, spec):
                    self._drawn[name] = self._drawn.get(name, 0) + 1

    @property
    def total(self) -> Budget:
        """The cap over all causes."""
        return self._of(TOTAL, self._spec.policies.max_restarts)

    def named(self, names: Iterable[str]) -> list[Budget]:
        """Those of these budgets that have a number, the emptiest first."""
        limits = self._spec.policies.budgets
        found = [
            self._of(name, limits.get(name, self._spec.policies.max_restarts))
            for name in dict.fromkeys(names)
            if name in limits or name == USER
        ]
        return sorted(found, key=lambda budget: budget.left)

    def exhausted(self, spent: Budget) -> str:
        """The words for a budget that is used up, with the counts of the others that were drawn on."""
        words = f"budget {spent.name} exhausted ({spent.used}/{spent.limit})"
        names = sorted(name for name in self._drawn if name in self._spec.policies.budgets)
        counts = [budget.text for name in names for budget in self.named([name])]
        return f"{words}; used: {', '.join(counts)}" if len(counts) > 1 else words

    def _of(self, name: str, limit: int) -> Budget:
        return Budget(name=name, limit=limit, used=self._drawn.get(name, 0))


def _drawn(past: PastAttempt, spec: JobSpec) -> set[str]:
    """The names that a past restart counts under."""
    rule: FailureRule | None = rule_named(past.rule, spec)
    if rule is not None and rule.budget is not None:
        return {rule.budget} if rule.action == "ignore" else {rule.budget, TOTAL}
    names = {past.slug, past.family, TOTAL}
    # Declared by the user: counts under that word too, whatever family its cause is of.
    return names | {USER} if past.rule == DECLARED else names
