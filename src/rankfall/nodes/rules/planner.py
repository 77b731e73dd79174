"""One step of node health: records and observations in, patches and Events out.

Repeated observations change nothing. Only evidence that a job cannot forge adds the taint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from rankfall.model.node_health.records import (
    MANUAL_CODE,
    MAX_ANSWERED,
    MAX_EVENT_TEXT,
    MAX_UNSENT_EVENTS,
    Answered,
    HealthCondition,
    Held,
    NodeFault,
    NodeHealth,
    Untold,
    printable,
)
from rankfall.nodes.rules import node_state
from rankfall.nodes.rules.fault_rules import ORDER, Rules
from rankfall.nodes.rules.node_state import CheckRound, Clear, NodeView, Remedy
from rankfall.nodes.rules.observations import SECOND, Outcome, fold, wanted
from rankfall.nodes.rules.policy import Policy, Safety, Trip


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a node for the limits: its pool, Ready status and Rankfall's taint."""

    pool: str
    ready: bool
    tainted: bool


class Limits:
    """The capacity left in one step; each grant uses part of it."""

    def __init__(self, members: Mapping[str, Member], *, policy: Policy, safety: Safety, now: int) -> None:
        self._members = members
        self._policy = policy
        self._now = now
        since = now - policy.rate_s * SECOND
        self.safety = msgspec.structs.replace(safety, acts=tuple(act for act in safety.acts if act[0] > since))
        self._tainted = {name for name, member in members.items() if member.tainted}

    def trip(self, records: Mapping[str, NodeHealth], rules: Rules) -> Trip | None:
        """Opens the breaker if one code affects too many nodes; returns the reason, else None."""
        if self.safety.trip is not None:
            return None
        since = max(self._now - self._policy.breaker_s * SECOND, self.safety.reset_at)
        struck: dict[str, set[str]] = {}
        for name, health in records.items():
            for cause in health.causes:
                # Manual taints indicate no common fault.
                if cause.code != MANUAL_CODE and wanted(cause, rules) == "quarantine" and (cause.due_at or 0) > since:
                    struck.setdefault("/".join(cause.code.split("/")[:2]), set()).add(name)
        for code, nodes in sorted(struck.items()):
            if len(nodes) > self._policy.breaker_nodes:
                trip = Trip(code=code, nodes=tuple(sorted(nodes)[:100]), at=self._now)
                self.safety = msgspec.structs.replace(self.safety, trip=trip)
                return trip
        return None

    def grant(self, node: str) -> Held | None:
        """Reserves capacity for quarantining this node; returns None, or the reason of a refusal."""
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
        """Returns the number of nodes of a pool that may have the taint."""
        budget = self._policy.pools.get(pool, self._policy.budget)
        ready = sum(each.ready for each in self._pool(pool))
        return max(1, min(budget.nodes, math.ceil(ready * budget.percent / 100)))

    def used(self, pool: str) -> int:
        """Returns the number of nodes of a pool that have the taint or get it in this step."""
        return sum(self._members[name].pool == pool for name in self._tainted)

    def _pool(self, pool: str) -> Iterable[Member]:
        return (each for each in self._members.values() if each.pool == pool)


Input = NodeFault | CheckRound | Remedy | Clear
#: Age of a useless Event; a server refuses a second of its name.
EVENT_MAX_AGE_NS: Final = 1_800 * 1_000_000_000


class NodePatch(msgspec.Struct, frozen=True, kw_only=True):
    """A write to one Node: record and taint in one request at ``version``, the condition in another."""

    node: str
    version: str
    taint: Literal["add", "remove", "keep"]
    record: NodeHealth
    condition: HealthCondition


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A report about a node; ``reason`` is one CamelCase word.

    ``kept``: its Event is in the node's record, whose writer sends it.
    """

    node: str
    reason: str
    message: str
    warning: bool = False
    kept: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions of one step.

    Attributes:
        patches: Sent after ``safety`` was stored; none in dry runs.
        records: Changed records, even unwritten; return as ``NodeView.record``.
        outcomes: Outcome by observation, in order.
        deferred: Observations to repeat.
        safety: Safety to store if it changed.
    """

    patches: tuple[NodePatch, ...] = ()
    happenings: tuple[NodeEvent, ...] = ()
    records: Mapping[str, NodeHealth]
    outcomes: tuple[tuple[str, Outcome | Literal["no_node"]], ...] = ()
    deferred: tuple[NodeFault, ...] = ()
    safety: Safety


def step(
    views: Mapping[str, NodeView], inputs: Iterable[Input], *, rules: Rules, policy: Policy, safety: Safety, now: int
) -> Plan:
    """Makes one step; ``now`` never goes back between steps. Earlier inputs may repeat."""
    return _Step(views, rules=rules, policy=policy, safety=safety, now=now).run(inputs)


class _Step:
    def __init__(
        self, views: Mapping[str, NodeView], *, rules: Rules, policy: Policy, safety: Safety, now: int
    ) -> None:
        self._views = views
        self._rules = rules
        self._policy = policy
        self._now = now
        self._before = safety
        self._records: dict[str, NodeHealth] = {}
        self._changed: set[str] = set()
        self._events: list[NodeEvent] = []
        self._outcomes: list[tuple[str, Outcome | Literal["no_node"]]] = []
        self._deferred: list[NodeFault] = []
        members = {
            name: Member(pool=view.pool, ready=view.ready, tainted=view.marked(policy)) for name, view in views.items()
        }
        self._limits = Limits(members, policy=policy, safety=safety, now=now)

    def run(self, inputs: Iterable[Input]) -> Plan:
        for name, view in self._views.items():
            self._records[name], removed = node_state.begin(view, policy=self._policy, now=self._now)
            if removed:
                self._tell(
                    name,
                    "TaintRemovedByOthers",
                    "Rankfall's taint was removed by another client; only newer evidence places it again",
                    kept=True,
                )
        for each in inputs:
            self._take(each)
        for name, health in self._records.items():
            self._records[name] = node_state.forgotten(health, rules=self._rules, policy=self._policy, now=self._now)
            idle_at = self._views[name].idle_at
            if self._policy.after_job and idle_at is not None:
                self._records[name] = node_state.idle(self._records[name], rules=self._rules, at=idle_at)
        self._return()
        self._quarantine()
        self._store_events()
        return self._plan()

    def _take(self, each: Input) -> None:
        health = self._records.get(each.node)
        if health is None:
            if isinstance(each, NodeFault):
                self._outcomes.append((each.id, "no_node"))
            return
        if isinstance(each, NodeFault):
            self._fault(health, each)
        elif isinstance(each, CheckRound):
            self._records[each.node] = node_state.checked(health, each)
        elif isinstance(each, Remedy):
            self._records[each.node] = node_state.remedied(health, each)
        elif each.at > (
            health.cleared_at or 0
        ):  # even without open causes, because earlier observations no longer count
            self._records[each.node] = node_state.cleared(health, now=max(each.at, self._now))
            self._tell(each.node, "Cleared", f"declared good by {printable(each.by, 64)}", kept=True)

    def _fault(self, health: NodeHealth, fault: NodeFault) -> None:
        boot = self._views[fault.node].boot
        outcome: Outcome = "seen"
        if all(each.id != fault.id for each in health.answered):
            health, outcome = fold(health, fault, rules=self._rules, policy=self._policy, boot=boot, now=self._now)
            if fault.source == "verdict" and outcome != "deferred":
                answered = (*health.answered, Answered(fault.id, outcome))[-MAX_ANSWERED:]
                health = msgspec.structs.replace(health, answered=answered)
        self._records[fault.node] = health
        self._outcomes.append((fault.id, outcome))
        if outcome == "deferred":
            self._deferred.append(fault)
        elif outcome == "counted" and ORDER[self._rules.action(fault.code)] >= ORDER["suspect"]:
            self._changed.add(fault.node)
        if outcome not in {"seen", "deferred", "harmless"}:
            self._tell(fault.node, f"Fault{outcome.capitalize()}", f"{fault.code} {fault.device or ''}: {fault.text}")

    def _return(self) -> None:
        for name, health in self._records.items():
            if not health.tainted:
                continue
            after = node_state.returned(
                health, rules=self._rules, policy=self._policy, is_new=name in self._changed, now=self._now
            )
            if node_state.may_return(after, rules=self._rules, policy=self._policy) and self._hands_off(name) is None:
                until = self._now + self._policy.probation_s * 1_000_000_000
                after = node_state.cleared(after, now=self._now, probation_until=until)
                self._tell(
                    name,
                    "Returned",
                    "Rankfall's taint is removed; one warning during probation quarantines the node again",
                    kept=True,
                )
            self._records[name] = after

    def _quarantine(self) -> None:
        trip = self._limits.trip(self._records, self._rules)
        if trip is not None:
            names = ", ".join(trip.nodes[:10])
            self._tell(
                trip.nodes[0],
                "BreakerOpen",
                f"{trip.code} on {len(trip.nodes)} nodes at once ({names}): nothing more is quarantined",
                warning=True,
                kept=True,
            )
        due: dict[str, int] = {}
        for name, health in self._records.items():
            if health.tainted:
                continue
            open_ = node_state.grave(health, self._rules)
            if open_:
                due[name] = min(cause.due_at or 0 for cause in open_)
            else:
                self._records[name] = node_state.waiting(health, rules=self._rules, held=None, now=self._now)
        for name in sorted(due, key=lambda each: (due[each], each)):
            health = self._records[name]
            held = self._hands_off(name) or self._limits.grant(name)
            if held is None:
                after = node_state.quarantined(health, policy=self._policy, now=self._now)
                self._tell(
                    name, "Quarantined", node_state.condition(after, self._rules).message, warning=True, kept=True
                )
            else:
                after = node_state.waiting(health, rules=self._rules, held=held, now=self._now)
                if health.held != held:
                    first = health.held is None
                    self._tell(
                        name,
                        "QuarantineHeld",
                        node_state.condition(after, self._rules).message,
                        warning=True,
                        kept=first,
                    )
            self._records[name] = after

    def _hands_off(self, name: str) -> Held | None:
        if self._policy.dry_run:
            return "dry_run"
        if self._policy.kill_switch:
            return "kill_switch"
        view = self._views[name]
        if view.opted_out:
            return "opt_out"
        # Its drain keeps its own pace, and a taint of Rankfall could evict (policy.effect).
        return "other_holder" if view.holder is not None else None

    def _plan(self) -> Plan:
        changed = {
            name: health
            for name, health in self._records.items()
            if health != (self._views[name].record or NodeHealth()) or self._taint(name) != "keep"
        }
        patches = [self._patch(name) for name in changed if self._worth_writing(name)]
        return Plan(
            patches=() if self._policy.dry_run else tuple(patches),
            happenings=tuple(self._events),
            records=changed,
            outcomes=tuple(self._outcomes),
            deferred=tuple(self._deferred),
            safety=self._before if self._policy.dry_run else self._limits.safety,
        )

    def _worth_writing(self, name: str) -> bool:
        """True if anything was noted about the node; a changed boot alone is not written."""
        return any(_said(each) for each in (self._records[name], self._views[name].record or NodeHealth()))

    def _taint(self, name: str) -> Literal["add", "remove", "keep"]:
        stands = self._views[name].marked(self._policy)
        if self._records[name].tainted:
            return "keep" if stands else "add"
        before = self._views[name].record
        ours = before is not None and before.tainted
        return "remove" if stands and ours else "keep"

    def _patch(self, name: str) -> NodePatch:
        return NodePatch(
            node=name,
            version=self._views[name].version,
            taint=self._taint(name),
            record=self._records[name],
            condition=node_state.condition(self._records[name], self._rules),
        )

    def _tell(self, node: str, reason: str, message: str, *, warning: bool = False, kept: bool = False) -> None:
        event = NodeEvent(node=node, reason=reason, message=printable(message, 1_024), warning=warning, kept=kept)
        self._events.append(event)

    def _store_events(self) -> None:
        """Writes the step's Events into the records; drops old ones."""
        for each in self._events:
            if each.kept:
                health = self._records[each.node]
                fresh = [before for before in health.untold if self._now - before.at <= EVENT_MAX_AGE_NS]
                event = Untold(each.reason, self._now, printable(each.message, MAX_EVENT_TEXT), each.warning)
                self._records[each.node] = msgspec.structs.replace(health, untold=(*fresh, event)[-MAX_UNSENT_EVENTS:])


def _said(health: NodeHealth) -> bool:
    quiet = msgspec.structs.replace(health, boot=None, boot_at=None, past_boots=(), since=None)
    return quiet != NodeHealth()
