"""State of one node, from its open causes, checks and manual changes. Limits: ``planner``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rankfall.model.node_health.records import (
    MANUAL_CODE,
    MAX_MESSAGE,
    MAX_TRIED,
    HealthCondition,
    Held,
    NodeHealth,
    OpenCause,
    printable,
)
from rankfall.nodes.rules.fault_rules import ORDER, Rules
from rankfall.nodes.rules.observations import SECOND, horizon_ns, wanted
from rankfall.nodes.rules.policy import Policy, Taint

#: Steps of remediation that are proven by another boot id and by nothing else.
REBOOTS: Final = frozenset({"reboot", "power_cycle"})
_MAX_PAST: Final = 8
_BEFORE_REMEDIATION: Final = frozenset({"healthy", "suspect", "quarantined"})
replace = msgspec.structs.replace


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A Node as the API server shows it, with the answers of requests that were sent before.

    Attributes:
        version: its resourceVersion; every patch asks that it is still this one.
        pool: whose budget it counts in.
        taints: all of them, in their order.
        boot: boot id of ``status.nodeInfo``; None = not told.
        opted_out: an operator's label keeps us away from it.
        idle_at: the last look found no job on it, nanoseconds since the epoch; None = one runs, or nobody looked.
        record: what its annotation holds, or what was decided before and not written; None = nothing.
    """

    name: str
    version: str
    pool: str = "default"
    ready: bool = True
    taints: tuple[Taint, ...] = ()
    boot: str | None = None
    opted_out: bool = False
    idle_at: int | None = None
    record: NodeHealth | None = None

    def tainted(self, policy: Policy) -> bool:
        """Whether the taint that is ours stands on it, whoever placed it."""
        return any((each.key, each.effect) == (policy.key, policy.effect) for each in self.taints)

    def marked(self, policy: Policy) -> bool:
        """Whether our taint stands on a node that got it from us: also as it was set before an operator gave it another key or effect."""
        ours = self.record is not None and self.record.tainted
        return self.tainted(policy) or (ours and any(each.key in policy.keys for each in self.taints))


class CheckRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round of checks on a node. ``unable`` = it could not be made (no room, no pod), which is no pass."""

    node: str
    at: int
    outcome: Literal["passed", "failed", "unable"]
    check: str = ""
    boot: str | None = None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A step of remediation began or ended on a node; ``ok`` = its hook said so, which proves no reboot."""

    node: str
    at: int
    step: Annotated[str, msgspec.Meta(max_length=128)]
    outcome: Literal["started", "ended"]
    ok: bool = False


class Clear(msgspec.Struct, frozen=True, kw_only=True):
    """A person declares a node good."""

    node: str
    at: int
    by: str


def begin(view: NodeView, *, policy: Policy, now: int) -> tuple[NodeHealth, bool]:
    """The record to begin with, and whether somebody took our taint away since it was written."""
    health = view.record or NodeHealth()
    if view.boot is not None and view.boot != health.boot and view.boot not in health.past_boots:
        past = (*health.past_boots, health.boot) if health.boot is not None else health.past_boots
        health = replace(health, boot=view.boot, boot_at=now, past_boots=past[-_MAX_PAST:], seq=None)
    if health.tainted and not view.marked(policy):
        return cleared(health, now=now), True
    return health, False


def cleared(health: NodeHealth, *, now: int, probation_until: int | None = None) -> NodeHealth:
    """The record of a node that is good again: nothing open, and all that was seen until now is settled."""
    newest = max((cause.last_at or 0 for cause in health.causes), default=0)
    return replace(
        health,
        state="healthy",
        since=now,
        held=None,
        causes=(),
        more=0,
        cleared_at=max(now, newest, health.cleared_at or 0),
        cleared_boot=health.boot,
        cleared_seq=health.seq,
        tainted=False,
        probation_until=probation_until,
        repeat_offender=False,
        clean=0,
        clean_since=None,
        failed_check=None,
        step=None,
        step_boot=None,
        tried=(),
    )


def checked(health: NodeHealth, round_: CheckRound) -> NodeHealth:
    """The record after a round of checks: only one of this boot that came after validation began counts, and each once."""
    other_boot = round_.boot is not None and round_.boot != health.boot
    if health.state != "validating" or other_boot or round_.at <= max(health.since or 0, health.checked_at or 0):
        return health
    health = replace(health, checked_at=round_.at)
    if round_.outcome == "unable":
        return replace(health, failed_check=printable(f"cannot validate: {round_.check}", 128))
    if round_.outcome == "failed":
        return replace(
            health,
            state="quarantined",
            since=round_.at,
            clean=0,
            clean_since=None,
            failed_check=printable(round_.check, 128),
        )
    since = round_.at if health.clean_since is None else health.clean_since
    return replace(health, clean=health.clean + 1, clean_since=since, failed_check=None)


def remedied(health: NodeHealth, remedy: Remedy) -> NodeHealth:
    """The record after a step of remediation began or ended. A reboot is proven by another boot id only."""
    if remedy.outcome == "started" and health.state == "quarantined" and remedy.at > (health.since or 0):
        tried = (*health.tried, remedy.step)[-MAX_TRIED:]
        return replace(
            health, state="remediating", since=remedy.at, step=remedy.step, step_boot=health.boot, tried=tried
        )
    if remedy.outcome == "ended" and health.state == "remediating" and remedy.step == health.step:
        proven = remedy.ok and (remedy.step not in REBOOTS or health.boot != health.step_boot)
        if proven:
            return _validating(health, now=remedy.at)
        return replace(health, state="quarantined", since=remedy.at, step=None, step_boot=None)
    return health


def forgotten(health: NodeHealth, *, rules: Rules, policy: Policy, now: int) -> NodeHealth:
    """The record without suspicions that were not repeated for long enough."""
    kept = tuple(
        cause
        for cause in health.causes
        if (rules.action(cause.code) == "quarantine" and (cause.due_at is not None or cause.cured_at is not None))
        or cause.on_probation
        or cause.idle_at is not None
        or (policy.after_job and _waits(cause, rules))
        or now - (cause.last_at or 0) <= horizon_ns(rules.find(cause.code), policy)
    )
    return health if len(kept) == len(health.causes) else replace(health, causes=kept)


def awaits_idle(health: NodeHealth, rules: Rules) -> bool:
    """Whether something on this node waits for the end of the job there."""
    return health.state in _BEFORE_REMEDIATION and any(_waits(cause, rules) for cause in health.causes)


def idle(health: NodeHealth, *, rules: Rules, at: int) -> NodeHealth:
    """The record of a node on which no job ran at that moment: what waited for it, and was seen before, is grave now."""
    if not awaits_idle(health, rules):
        return health
    causes = (
        replace(cause, idle_at=at) if _waits(cause, rules) and (cause.last_at or 0) < at else cause
        for cause in health.causes
    )
    return replace(health, causes=tuple(causes))


def grave(health: NodeHealth, rules: Rules) -> list[OpenCause]:
    """The causes for which the scheduler is to keep away."""
    return [cause for cause in health.causes if wanted(cause, rules) == "quarantine"]


def needs_manual_return(health: NodeHealth) -> bool:
    """Whether only a person gives it back: one tainted it, or it came back too often."""
    return health.repeat_offender or any(cause.code == MANUAL_CODE and not cause.cured for cause in health.causes)


def returned(health: NodeHealth, *, rules: Rules, policy: Policy, is_new: bool, now: int) -> NodeHealth:
    """The next state of a node that carries our taint, without giving it back yet.

    Args:
        health: its record.
        rules: in force.
        policy: in force.
        is_new: something new that makes it at least suspect came in this step.
        now: nanoseconds since the epoch.
    """
    if health.state == "validating" and is_new:
        return replace(health, state="quarantined", since=now, clean=0, clean_since=None)
    if health.state != "quarantined" or needs_manual_return(health):
        return health
    open_ = grave(health, rules)
    if not open_ and health.failed_check is None:
        return _validating(health, now=now)
    if policy.validate_after_s is None:
        return health
    last = max((cause.last_at or 0 for cause in open_), default=0)
    quiet = now - max(last, health.since or 0) >= policy.validate_after_s * SECOND
    return _validating(health, now=now) if quiet else health


def may_return(health: NodeHealth, *, rules: Rules, policy: Policy) -> bool:
    """Whether its taint may go: enough clean rounds over long enough, or all that was wrong was taken back for good."""
    if not health.tainted or needs_manual_return(health):
        return False
    counted = [
        cause
        for cause in health.causes
        if cause.on_probation or cause.idle_at is not None or rules.action(cause.code) == "quarantine"
    ]
    if counted and all(cause.cured and _released(cause, rules) for cause in counted):
        return True
    if health.state != "validating" or health.clean < policy.clean_rounds or health.clean_since is None:
        return False
    return (health.checked_at or 0) - health.clean_since >= policy.clean_s * SECOND


def quarantined(health: NodeHealth, *, policy: Policy, now: int) -> NodeHealth:
    """The record of a node that gets our taint now; one that came back too often becomes a repeat offender."""
    times = (*health.quarantines, now)[-8:]
    recent = [each for each in times if each > now - policy.repeat_s * SECOND]
    return replace(
        health,
        state="quarantined",
        since=now,
        held=None,
        tainted=True,
        quarantines=times,
        probation_until=None,
        repeat_offender=len(recent) >= policy.repeat_count,
        clean=0,
        clean_since=None,
    )


def waiting(health: NodeHealth, *, rules: Rules, held: Held | None, now: int) -> NodeHealth:
    """The state of a node without our taint: healthy, or suspect, also where it is only held back."""
    suspect = held is not None or any(ORDER[wanted(cause, rules)] >= ORDER["suspect"] for cause in health.causes)
    state: Literal["healthy", "suspect"] = "suspect" if suspect else "healthy"
    since = health.since if health.state == state else now
    return replace(health, state=state, since=since, held=held)


def condition(health: NodeHealth, rules: Rules) -> HealthCondition:
    """What ``RankfallHealthy`` says of this record."""
    named = grave(health, rules) or [cause for cause in health.causes if wanted(cause, rules) == "suspect"]
    text = "; ".join(f"{cause.code} {cause.device or ''} x{cause.count}: {cause.text}" for cause in named)
    message = printable("; ".join(part for part in (text, _summary(health)) if part) or "no open cause", MAX_MESSAGE)
    if health.state == "healthy":
        return HealthCondition(status="True", reason="Healthy", message=message)
    if health.state == "suspect" and health.held is None:
        return HealthCondition(status="Unknown", reason="Suspect", message=message)
    reason = health.state.capitalize() if health.held is None else "Held" + health.held.title().replace("_", "")
    return HealthCondition(status="False", reason=reason, message=message)


def _summary(health: NodeHealth) -> str:
    sentences = [
        f"not tainted: {health.held}" if health.held else "",
        "came back too often: only a person gives it back" if health.repeat_offender else "",
        health.failed_check or "",
        f"and {health.more} more" if health.more else "",
    ]
    return "; ".join(each for each in sentences if each)


def _waits(cause: OpenCause, rules: Rules) -> bool:
    rule = rules.find(cause.code)
    return (
        rule is not None and rule.after_job and cause.idle_at is None and cause.due_at is not None and not cause.cured
    )


def _released(cause: OpenCause, rules: Rules) -> bool:
    return any(
        rule.release
        and rule.recovers is not None
        and (cause.code == rule.recovers or cause.code.startswith(f"{rule.recovers}/"))
        for rule in rules
    )


def _validating(health: NodeHealth, *, now: int) -> NodeHealth:
    return replace(health, state="validating", since=now, clean=0, clean_since=None, step=None, step_boot=None)
