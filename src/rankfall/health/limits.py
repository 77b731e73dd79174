"""Who of those that should be quarantined may be: budget of the pool, rate, and the breaker for faults that strike many nodes alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from rankfall.health.folding import SECOND, wanted
from rankfall.health.policy import Policy, Safety, Trip
from rankfall.health.rules import Rules
from rankfall.model.health import BY_HAND, Held, NodeHealth


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What limits ask of a node: its pool, whether it is Ready, and whether our taint is on it."""

    pool: str
    ready: bool
    tainted: bool


class Limits:
    """The room that is left in one step. Each grant takes its part of it.

    Args:
        members: all nodes by name.
        policy: in force.
        safety: as it was stored.
        now: nanoseconds since the epoch.
    """

    def __init__(self, members: Mapping[str, Member], *, policy: Policy, safety: Safety, now: int) -> None:
        self._members = members
        self._policy = policy
        self._now = now
        since = now - policy.rate_s * SECOND
        self.safety = msgspec.structs.replace(safety, acts=tuple(act for act in safety.acts if act[0] > since))
        self._tainted = {name for name, member in members.items() if member.tainted}

    def trip(self, records: Mapping[str, NodeHealth], rules: Rules) -> Trip | None:
        """Open the breaker where one code strikes too many nodes at once; the reason when it opened just now."""
        if self.safety.trip is not None:
            return None
        since = max(self._now - self._policy.breaker_s * SECOND, self.safety.reset_at)
        struck: dict[str, set[str]] = {}
        for name, health in records.items():
            for cause in health.causes:
                # What a person ordered is no sign of a fault that strikes many nodes.
                if cause.code != BY_HAND and wanted(cause, rules) == "quarantine" and (cause.due_at or 0) > since:
                    struck.setdefault("/".join(cause.code.split("/")[:2]), set()).add(name)
        for code, nodes in sorted(struck.items()):
            if len(nodes) > self._policy.breaker_nodes:
                trip = Trip(code=code, nodes=tuple(sorted(nodes)[:100]), at=self._now)
                self.safety = msgspec.structs.replace(self.safety, trip=trip)
                return trip
        return None

    def grant(self, node: str) -> Held | None:
        """Take room for this node; why there is none, or None when it was granted."""
        if self.safety.trip is not None:
            return "breaker"
        pool = self._members[node].pool
        if node not in self._tainted and self.used(pool) >= self.limit(pool):
            return "budget"
        if all(name != node for _, name in self.safety.acts):
            if len(self.safety.acts) >= self._policy.rate_nodes:
                return "rate"
            self.safety = msgspec.structs.replace(self.safety, acts=(*self.safety.acts, (self._now, node)))
        self._tainted.add(node)
        return None

    def limit(self, pool: str) -> int:
        """How many nodes of a pool may carry our taint."""
        budget = self._policy.pools.get(pool, self._policy.budget)
        ready = sum(each.ready for each in self._pool(pool))
        return max(1, min(budget.nodes, math.ceil(ready * budget.percent / 100)))

    def used(self, pool: str) -> int:
        """How many carry it, or are granted it in this step."""
        return sum(self._members[name].pool == pool for name in self._tainted)

    def _pool(self, pool: str) -> Iterable[Member]:
        return (each for each in self._members.values() if each.pool == pool)
