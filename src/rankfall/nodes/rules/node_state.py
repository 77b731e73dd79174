"""State of one node, from open causes, checks and manual changes."""

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

#: Steps that only another boot id proves.
REBOOTS: Final = frozenset({"reboot", "power_cycle"})
_MAX_PAST: Final = 8
_BEFORE_REMEDIATION: Final = frozenset({"healthy", "suspect", "quarantined"})
replace = msgspec.structs.replace


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A Node as the API server shows it, with the responses of earlier writes.

    Attributes:
        version: Its resourceVersion.
        pool: Pool whose budget includes it.
        taints: All taints, in order.
        boot: Boot id, or None.
        opted_out: True if a label excludes it.
        holder: Another controller that keeps pods off it, with its state, or None.
        idle_at: Last check that found no job on it, nanoseconds since the epoch, or None.
        record: The record in its annotation or of an unwritten decision, or None.
    """

    name: str
    version: str
    pool: str = "default"
    ready: bool = True
    taints: tuple[Taint, ...] = ()
    boot: str | None = None
    opted_out: bool = False
    holder: str | None = None
    idle_at: int | None = None
    record: NodeHealth | None = None

    @property
    def hands_off(self) -> bool:
        """True if Rankfall starts nothing on the node: a label excludes it, or another controller holds it."""
        return self.opted_out or self.holder is not None

    def tainted(self, policy: Policy) -> bool:
        """True if the node has Rankfall's taint, from any writer."""
        return any((each.key, each.effect) == (policy.key, policy.effect) for each in self.taints)

    def marked(self, policy: Policy) -> bool:
        """True if Rankfall tainted the node and the taint remains, even with an earlier key or effect."""
        ours = self.record is not None and self.record.tainted
        return self.tainted(policy) or (ours and any(each.key in policy.keys for each in self.taints))


class CheckRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round of checks; ``unable`` (no room, no pod) is no pass."""

    node: str
    at: int
    outcome: Literal["passed", "failed", "unable"]
    check: str = ""
    boot: str | None = None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A remediation step that began or ended; ``ok``: its hook reported success, which proves no reboot."""

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
    """Returns the record at the begin of a step; True if another party removed the taint."""
    health = view.record or NodeHealth()
    if view.boot is not None and view.boot != health.boot and view.boot not in health.past_boots:
        past = (*health.past_boots, health.boot) if health.boot is not None else health.past_boots
        health = replace(health, boot=view.boot, boot_at=now, past_boots=past[-_MAX_PAST:], seq=None)
    if health.tainted and not view.marked(policy):
        return cleared(health, now=now), True
    return health, False


def cleared(health: NodeHealth, *, now: int, probation_until: int | None = None) -> NodeHealth:
    """Returns the record of a good node: no open causes."""
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
    """Returns the record after a round of checks; each round counts once."""
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
    """Returns the record after a remediation step began or ended. Only another boot id proves a reboot."""
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
    """Returns the record without expired suspicions."""
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
    """True if a fault on this node waits for the end of the job there."""
    return health.state in _BEFORE_REMEDIATION and any(_waits(cause, rules) for cause in health.causes)


def idle(health: NodeHealth, *, rules: Rules, at: int) -> NodeHealth:
    """Returns the record of an idle node: earlier waiting faults become grave."""
    if not awaits_idle(health, rules):
        return health
    causes = (
        replace(cause, idle_at=at) if _waits(cause, rules) and (cause.last_at or 0) < at else cause
        for cause in health.causes
    )
    return replace(health, causes=tuple(causes))


def grave(health: NodeHealth, rules: Rules) -> list[OpenCause]:
    """Returns the causes that require isolation from the scheduler."""
    return [cause for cause in health.causes if wanted(cause, rules) == "quarantine"]


def needs_manual_return(health: NodeHealth) -> bool:
    """True if only a person may return the node: a person tainted it, or it is a repeat offender."""
    return health.repeat_offender or any(cause.code == MANUAL_CODE and not cause.cured for cause in health.causes)


def returned(health: NodeHealth, *, rules: Rules, policy: Policy, is_new: bool, now: int) -> NodeHealth:
    """Returns the record of a tainted node in its next state. ``is_new``: a new observation makes it suspect."""
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
    """True if the node's taint may be removed: enough clean rounds over enough time, or all causes revoked for good."""
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
    """Returns the record of a newly tainted node; too many quarantines make it a repeat offender."""
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
    """Returns the record of an untainted node in state healthy or suspect; ``held``: obstacle to a due quarantine."""
    suspect = held is not None or any(ORDER[wanted(cause, rules)] >= ORDER["suspect"] for cause in health.causes)
    state: Literal["healthy", "suspect"] = "suspect" if suspect else "healthy"
    since = health.since if health.state == state else now
    return replace(health, state=state, since=since, held=held)


def condition(health: NodeHealth, rules: Rules) -> HealthCondition:
    """Returns the ``RankfallHealthy`` condition of this record."""
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
        "failed again too often: only a person can clear it" if health.repeat_offender else "",
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
