"""Adds an observation to a node's record: each once, nothing old or untrusted.

Checks run in order: trust, rule, novelty. Each omission has its own outcome.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model.node_health.records import MAX_CAUSES, NodeFault, NodeHealth, OpenCause, Seen
from rankfall.nodes.rules.fault_rules import ORDER, Action, Rule, Rules
from rankfall.nodes.rules.policy import Policy

#: ``counted`` and ``recovered`` changed the record; repeat ``deferred``.
Outcome = Literal["counted", "recovered", "seen", "stale", "untrusted", "untimed", "unknown", "harmless", "deferred"]

SECOND: Final = 1_000_000_000
_TRUSTED: Final = frozenset({"kernel", "collector", "condition", "exporter", "verdict"})
_MIN_SEEN: Final = 4
replace = msgspec.structs.replace


def fold(
    health: NodeHealth, fault: NodeFault, *, rules: Rules, policy: Policy, boot: str | None, now: int
) -> tuple[NodeHealth, Outcome]:
    """Returns the record with this observation, and the outcome; ``boot`` is the Node's current one."""
    if not trusted(fault, policy):
        return health, "untrusted"
    rule = rules.find(fault.code)
    if rule is None:
        return health, "unknown"
    if rule.action == "none" and rule.recovers is None:
        return health, "harmless"
    # A gauge does not count.
    if fault.trust == "exporter" and rule.count > 1:
        return health, "harmless"
    if fault.at is None:  # an unknown time is never newer
        return health, "untimed"
    if _other_boot(health, fault, boot):
        fresh = fault.boot not in health.past_boots and now - fault.at <= policy.defer_s * SECOND
        return health, "deferred" if fresh else "stale"
    if _settled(health, fault, fault.at):
        return health, "stale"
    if rule.recovers is not None:
        return _recover(health, fault, rule.recovers, fault.at)
    return _count(health, fault, rule, rules=rules, policy=policy, now=now, at=fault.at)


def trusted(fault: NodeFault, policy: Policy) -> bool:
    """True if an action may rely on the fault."""
    if fault.trust == "injected":
        return policy.accept_injected
    return fault.trust in _TRUSTED or (fault.trust == "pod_text" and fault.code in policy.pod_codes)


def wanted(cause: OpenCause, rules: Rules) -> Action:
    """Returns the current action of an open cause: by the active rules, once its threshold is reached."""
    if cause.cured:
        return "none"
    rule, action = rules.find(cause.code), rules.action(cause.code)
    if rule is not None and rule.after_job and cause.idle_at is not None:
        return "quarantine"
    if cause.on_probation and ORDER[action] >= ORDER["suspect"]:
        return "quarantine"
    return action if cause.due_at is not None else "watch"


def horizon_ns(rule: Rule | None, policy: Policy) -> int:
    """Returns the nanoseconds that a cause below quarantine is remembered after its last observation."""
    return max(policy.quiet_s, 0 if rule is None else rule.window_s) * SECOND


def _other_boot(health: NodeHealth, fault: NodeFault, boot: str | None) -> bool:
    return fault.boot is not None and fault.boot != (boot or health.boot or fault.boot)


def _settled(health: NodeHealth, fault: NodeFault, at: int) -> bool:
    """True if the fault precedes the node's last clearance or its current boot."""
    earliest = at - int(fault.uncertainty * SECOND)
    if fault.boot is None and health.past_boots and health.boot_at is not None and earliest <= health.boot_at:
        return True
    if health.cleared_at is None:
        return False
    same = fault.boot is not None and fault.boot == health.cleared_boot
    if same and fault.seq is not None and health.cleared_seq is not None and fault.seq <= health.cleared_seq:
        return True
    return earliest <= health.cleared_at


def _recover(health: NodeHealth, fault: NodeFault, code: str, at: int) -> tuple[NodeHealth, Outcome]:
    found = False
    causes = []
    for cause in health.causes:
        meant = cause.code == code or cause.code.startswith(f"{code}/")
        if meant and cause.device == fault.device and not cause.cured and (cause.last_at or 0) <= at:
            found = True
            causes.append(replace(cause, cured_at=at))
        else:
            causes.append(cause)
    return (replace(health, causes=tuple(causes)), "recovered") if found else (health, "seen")


def _count(
    health: NodeHealth, fault: NodeFault, rule: Rule, *, rules: Rules, policy: Policy, now: int, at: int
) -> tuple[NodeHealth, Outcome]:
    before = next((each for each in health.causes if (each.code, each.device) == (fault.code, fault.device)), None)
    # Repeats a kernel line's fault.
    if before is not None and not before.cured and fault.trust == "exporter":
        return health, "seen"
    if before is not None and (_known(before, fault, at) or (before.cured_at is not None and at <= before.cured_at)):
        return health, "seen"
    if rule.action != "quarantine" and now - at > horizon_ns(rule, policy):
        return health, "stale"
    cause = _grown(before, fault, rule, at=at)
    probation = (
        health.probation_until is not None and now < health.probation_until and ORDER[rule.action] >= ORDER["suspect"]
    )
    due = cause.due_at is not None or probation or _reached(cause.seen, rule)
    cause = replace(
        cause,
        due_at=(cause.due_at if cause.due_at is not None else now) if due else None,
        on_probation=cause.on_probation or probation,
    )
    others = [each for each in health.causes if each is not before]
    kept = sorted([*others, cause], key=lambda each: (-ORDER[wanted(each, rules)], -(each.last_at or 0)))
    highest = fault.seq if fault.boot == health.boot else None
    return (
        replace(
            health,
            causes=tuple(kept[:MAX_CAUSES]),
            more=health.more + max(0, len(kept) - MAX_CAUSES),
            seq=health.seq if highest is None else max(highest, health.seq or 0),
        ),
        "counted",
    )


def _known(cause: OpenCause, fault: NodeFault, at: int) -> bool:
    """True if the fault was counted before, or is so late in a burst that newer ones already fill the record."""
    if any(each.id == fault.id for each in cause.seen):
        return True
    return cause.count > len(cause.seen) > 0 and at <= (cause.seen[0].at or 0)


def _grown(before: OpenCause | None, fault: NodeFault, rule: Rule, *, at: int) -> OpenCause:
    new = Seen(fault.id, at, fault.job)
    if before is None or before.cured:
        return OpenCause(
            code=fault.code,
            device=fault.device,
            first_at=at,
            last_at=at,
            cured_at=None if before is None else before.cured_at,
            boot=fault.boot,
            seq=fault.seq,
            seen=(new,),
            text=fault.text,
        )
    newest = at >= (before.last_at or 0)
    seen = sorted((*before.seen, new), key=lambda each: (each.at or 0, each.id))
    return replace(
        before,
        count=before.count + 1,
        first_at=min(at, before.first_at or at),
        last_at=max(at, before.last_at or at),
        boot=fault.boot if newest else before.boot,
        seq=fault.seq if newest else before.seq,
        seen=tuple(seen[-max(rule.count, _MIN_SEEN) :]),
        text=fault.text if newest else before.text,
    )


def _reached(seen: tuple[Seen, ...], rule: Rule) -> bool:
    if rule.count == 1:
        return True
    for last in seen:
        first = (last.at or 0) - rule.window_s * SECOND
        inside = [each for each in seen if first <= (each.at or 0) <= (last.at or 0)]
        different = len({each.job for each in inside}) if rule.distinct == "job" else len(inside)
        if different >= rule.count:
            return True
    return False
