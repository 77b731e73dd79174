"""Policies of a job: restarts and budgets, success, deadlines, failure rules.

Data only; contradictions are refused by :mod:`rankfall.model.jobspec.check`.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

SuccessPolicy = Literal["all", "rank0", "fraction"]
RuleAction = Literal["fail", "restart", "restart_elsewhere", "ignore"]


class Policies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do when the job falls.

    Attributes:
        max_restarts: new starts in all, over every cause: attempts of the gang, and of slots alone.
        budgets: new attempts by cause slug, family, or a name that a failure rule draws on, as ``{"network": 5, "host_oom": 0}``; the
            tightest one counts.
        retryable, final: qualified names of exception types that the user declares retryable or final.
        hang_timeout_s: no progress (step records, output, CPU time of the ranks) for so long is a hang; null = never.
        settle_quiet_s: after the first failure: how long nothing new must come before the verdict, unless its cause is proven and final.
        settle_min_s: after the first failure: the least time of waiting for what is not there yet, however quiet it is.
        settle_max_s: after the first failure: the hard limit of waiting.
        grace_s: between SIGTERM and SIGKILL when Rankfall stops slots.
    """

    max_restarts: Count = 3
    budgets: dict[str, Count] = {}
    retryable: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    hang_timeout_s: Seconds | None = 1800.0
    settle_quiet_s: Seconds = 2.0
    settle_min_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    settle_max_s: Seconds = 30.0
    grace_s: Seconds = 10.0
    backoff_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    backoff_max_s: Seconds = 60.0


class Success(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the job counts as done.

    Attributes:
        policy: ``all``: every slot ended with 0. ``rank0``: global rank 0 ended with 0. ``fraction``: ``ceil(fraction * slots)`` slots
            ended with 0; slots are counted (pods, nodes), not ranks, because a slot ends as one.
        fraction: with policy ``fraction`` only: more than 0, at most 1.
        role: with ``all`` and ``fraction``: only the slots of this role are counted; when it is done the other roles are stopped like the
            rest. Null = all slots.
        drain_s: how long the others may go on (writing a checkpoint, say) after that, before they are stopped. They never count as failed.
    """

    policy: SuccessPolicy = "all"
    fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    role: str | None = None
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0

    def wanted(self, slots: int) -> int:
        """How many of so many slots must end with 0; with ``rank0`` it is one certain rank instead."""
        if self.policy == "rank0":
            return 1
        # Exact: 0.07 * 100 is 7.000000000000001 in floats, and one slot more would be asked for.
        return ceil(Fraction(str(self.fraction)) * slots) if self.fraction is not None else slots


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of time in seconds; null = none. A deadline is nobody's fault: no rank is blamed for it.

    Attributes:
        total_s: over all attempts and the waits between them, from the start of the first; stands still while the run is suspended.
        attempt_s: of each attempt, from its start.
        startup_s: from the start of an attempt until every rank is there.
    """

    total_s: Seconds | None = None
    attempt_s: Seconds | None = None
    startup_s: Seconds | None = None


class FailureRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do about one kind of failure. Rules are tried in order; the first that matches decides.

    A rule matches when each of its non-empty lists does; a list matches when one of its values does. A rule by exit codes or signals
    alone is about a bare code: a proven cause beats it, unless that cause is the exit itself.

    Attributes:
        exit_codes: of the root-cause rank, 1-255, ascending; a signal N counts as 128+N.
        signals: numbers of signals that ended the root-cause rank.
        causes: slugs or families of the catalogue.
        roles: roles of the root-cause rank.
        reasons, conditions: of the root cause's pod, as ``OOMKilled`` and ``DisruptionTarget``.
        action: ``fail`` ends the run; ``restart`` and ``restart_elsewhere`` begin a new attempt; ``ignore`` begins one that does not count
            in ``max_restarts`` and therefore needs a budget.
        budget: the name in ``policies.budgets`` that a new attempt draws on; null = the budgets of the cause.
        exclude_node: later attempts avoid the node of the root cause.
    """

    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    action: RuleAction
    budget: str | None = None
    exclude_node: bool = False
