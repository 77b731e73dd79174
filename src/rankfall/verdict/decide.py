"""Derives a decision from a verdict: retry, retry elsewhere, or stop. Pure; a consequence never decides.

Rules, first match wins (the decision contains the name):

- ``no_failure``: nothing failed, or the user cancelled: none, or stop.
- ``user_final``: the root's exception is marked final: stop.
- ``rules[N]``: the user's rule number N, from 0: its action, within its budget.
- ``work_done``: the job failed after its work: stop.
- ``exit_code``: a bare permanent exit code: stop.
- ``cause_no``: the verdict advises no retry (by the catalogue, for a cause at least likely): stop.
- ``cause_budget``: the spec's budget for this cause is spent: stop.
- ``taken_away``: the platform removed the pod: retry outside ``total``, unless max_restarts is 0.
- ``restarts_spent``: max_restarts restarts are used: stop.
- ``user_retryable``: marked retryable, or exit code 138: retry, budget user.
- ``repeated``: the same fingerprint failed before without progress: stop.
- ``exit_code``: a bare retryable exit code: retry.
- ``cause_elsewhere``: retry on another node, or once more on a single machine.
- ``cause_once``, ``cause_yes``: retry.

A retry after the run's total deadline becomes a stop, ``total_deadline``. A budget is a number of new attempts;
``total`` is ``policies.max_restarts``, others are named after a slug, family or rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rankfall.model import Action, Cause, Decision, Diagnosis, FailureRule, JobSpec, numbers
from rankfall.model.exit_codes import USER_RETRYABLE, code_row
from rankfall.model.patterns import anchored

__all__ = ["MAX_REPEATS", "PastAttempt", "RootFacts", "decide"]


class RootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """End of the root's process and its platform's statements; empty = unknown.

    Attributes:
        code: Exit code as in a shell, 128+N for signal N.
        signal: Signal by the wait status; a program that exits with 128+N had none.
        reasons, conditions: Those of its pod, for example ``OOMKilled``, ``DisruptionTarget``; never from job text.
    """

    code: int | None = None
    signal: int | None = None
    role: str | None = None
    reasons: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an earlier attempt of the same run, or of a slot that failed alone.

    Attributes:
        slot: Slot that failed alone; None = the whole attempt.
        action: Action of the decision about it.
        rule, budget: Fields of that decision.
        progressed: True if its ranks passed a step that no earlier attempt had reached.
    """

    attempt: int
    slot: int | None = None
    fingerprint: str
    slug: str
    family: str
    action: str
    rule: str = ""
    budget: str | None = None
    node: str | None = None
    progressed: bool = False

    @property
    def restarted(self) -> bool:
        """True if a restart followed by decision. A suspension or a resize is no restart."""
        return self.action in {"retry", "retry_elsewhere"}


# Causes that only describe how the process ended: a rule about codes or signals matches exactly these.
BARE: Final = frozenset({"user_exit", "killed_unknown", "external_signal", "retryable_exception", "unknown"})
_NAME: Final = anchored(r"rules\[(\d{1,3})\]", limit=64)


def first_match(spec: JobSpec, *, cause: Cause, facts: RootFacts) -> tuple[str, FailureRule] | None:
    """Returns the first rule that matches, with its name in decisions (``rules[0]``); None if none matches."""
    for number, rule in enumerate(spec.rules):
        if matches(rule, cause=cause, facts=facts):
            return f"rules[{number}]", rule
    return None


def rule_named(name: str, spec: JobSpec) -> FailureRule | None:
    """Returns the rule of the spec that a decision names; None if no rule made the decision."""
    found = _NAME.fullmatch(name)
    number = numbers.matched(found[1]) if found else len(spec.rules)
    return spec.rules[number] if number < len(spec.rules) else None


def matches(rule: FailureRule, *, cause: Cause, facts: RootFacts) -> bool:
    """True if each of the rule's non-empty lists contains a value of this failure."""
    if _only_codes(rule) and cause.confidence == "proven" and cause.slug not in BARE:
        return False
    return (
        (not rule.exit_codes or facts.code in rule.exit_codes)
        and (not rule.signals or facts.signal in rule.signals)
        and (not rule.causes or bool({cause.slug, cause.family} & set(rule.causes)))
        and (not rule.roles or facts.role in rule.roles)
        and (not rule.reasons or bool(facts.reasons & set(rule.reasons)))
        and (not rule.conditions or bool(facts.conditions & set(rule.conditions)))
    )


def _only_codes(rule: FailureRule) -> bool:
    """True if the rule only checks how the process ended (a role gives no reason either)."""
    return not (rule.causes or rule.reasons or rule.conditions) and bool(rule.exit_codes or rule.signals)


TOTAL: Final = "total"
USER: Final = "user"
# Name of the rule for a failure that the user declared retryable.
DECLARED: Final = "user_retryable"


# Name of the rule for a removed pod, its causes and sources. Kubernetes counts slots that restart alone.
TAKEN: Final = "taken_away"
_TAKEN_CAUSES: Final = frozenset({"preempted", "pod_evicted"})
_PLATFORM: Final = frozenset({"pod", "event", "node"})


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget: number of new attempts that it allows, and number already used."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """Number of new attempts that it still allows."""
        return max(0, self.limit - self.used)

    @property
    def text(self) -> str:
        """Its count, for example ``app 1/1``."""
        return f"{self.name} {self.used}/{self.limit}"


class Budgets:
    """All budgets of a run after its history.

    Args:
        spec: Limits and rules.
        history: Earlier attempts, oldest first.
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
        """The limit over all causes."""
        return self._of(TOTAL, self._spec.policies.max_restarts)

    def named(self, names: Iterable[str]) -> list[Budget]:
        """Returns the budgets of these names that have a limit, the one with the fewest restarts left first."""
        limits = self._spec.policies.budgets
        found = [
            self._of(name, limits.get(name, self._spec.policies.max_restarts))
            for name in dict.fromkeys(names)
            if name in limits or name == USER
        ]
        return sorted(found, key=lambda budget: budget.left)

    def exhausted(self, spent: Budget) -> str:
        """Returns the message for a spent budget, with the counts of the other used ones."""
        words = f"budget {spent.name} exhausted ({spent.used}/{spent.limit})"
        names = sorted(name for name in self._drawn if name in self._spec.policies.budgets)
        counts = [budget.text for name in names for budget in self.named([name])]
        return f"{words}; used: {', '.join(counts)}" if len(counts) > 1 else words

    def _of(self, name: str, limit: int) -> Budget:
        return Budget(name=name, limit=limit, used=self._drawn.get(name, 0))


def _drawn(past: PastAttempt, spec: JobSpec) -> set[str]:
    """Names of the budgets that a past restart used."""
    rule: FailureRule | None = rule_named(past.rule, spec)
    if rule is not None and rule.budget is not None:
        return {rule.budget} if rule.action == "ignore" else {rule.budget, TOTAL}
    names = {past.slug, past.family} | (set() if past.rule == TAKEN else {TOTAL})
    # A restart declared by the user also counts under that name, for a cause of any family.
    return names | {USER} if past.rule == DECLARED else names


# Repetitions of the same fault without progress: more tries give no information (errors.md section 3.1, NVRx: 3).
MAX_REPEATS: Final = 3
DEADLINE: Final = "deadline_exceeded"
# Phase of a verdict about a job whose work was complete.
WORK_DONE: Final = "teardown"


def decide(
    diagnosis: Diagnosis,
    *,
    spec: JobSpec,
    history: tuple[PastAttempt, ...],
    facts: RootFacts | None = None,
    other_nodes: bool = False,
    time_left: float | None = None,
    slot: int | None = None,
) -> Decision:
    """Decides what to do about this diagnosis.

    Args:
        diagnosis: Diagnosis of the attempt that just ended.
        spec: Policies, rules and budgets.
        history: Earlier failures of the run, of attempts and of single slots, oldest first.
        facts: The root's end; default: from the diagnosis.
        other_nodes: The backend can avoid a node; a single machine cannot.
        time_left: Seconds until the run's total deadline; None without one.
        slot: Slot that failed and restarts alone; None = the whole gang. Its back-off and repetitions are separate, the
            budgets shared.

    Returns:
        A decision in state ``intent`` without a time, which the caller sets.
    """
    known = facts or RootFacts(code=diagnosis.exit_code, role=diagnosis.verdict.role)
    return _Case(
        diagnosis,
        spec=spec,
        history=history,
        facts=known,
        other_nodes=other_nodes,
        time_left=time_left,
        slot=slot,
    ).decision()


class _Case:
    def __init__(
        self,
        diagnosis: Diagnosis,
        *,
        spec: JobSpec,
        history: tuple[PastAttempt, ...],
        facts: RootFacts,
        other_nodes: bool,
        time_left: float | None,
        slot: int | None,
    ) -> None:
        self._verdict = diagnosis.verdict
        self._diagnosis = diagnosis
        self._spec = spec
        self._slot = slot
        self._own = [past for past in history if past.slot == slot]
        self._facts = facts
        self._other_nodes = other_nodes
        self._time_left = time_left
        self._budgets = Budgets(spec, history)
        self._delay = _delay(spec, len(self._own))

    def decision(self) -> Decision:
        verdict, cause = self._verdict, self._verdict.cause
        if verdict.state == "succeeded":
            return Decision(
                action="none", rule="no_failure", because="the job succeeded", left=self._budgets.total.left
            )
        if verdict.state == "cancelled":
            taken = cause.slug != "cancelled"
            return self._stop("no_failure", "the platform ends the job" if taken else "the user cancelled the run")
        if self._diagnosis.mark == "final":
            return self._stop("user_final", "the exception is marked final")
        found = first_match(self._spec, cause=cause, facts=self._facts)
        if found:
            return self._by_rule(*found)
        if verdict.phase == WORK_DONE:
            return self._stop("work_done", "the training was complete when it failed; a restart would only repeat it")
        return self._by_cause()

    def _by_rule(self, name: str, rule: FailureRule) -> Decision:
        if rule.action == "fail":
            return self._stop(name, f"{name} has action fail")
        names = [rule.budget] if rule.budget else [self._verdict.cause.slug, self._verdict.cause.family]
        drawn = self._budgets.named(names)
        if rule.action != "ignore":
            drawn.append(self._budgets.total)
        spent = _spent(drawn)
        if spent is not None:
            return self._stop(name, self._budgets.exhausted(spent), budget=spent.name)
        elsewhere = rule.action == "restart_elsewhere" or rule.exclude_node
        uncounted = ", which does not count in max_restarts" if rule.action == "ignore" else ""
        return self._retry(name, f"{name} has action {rule.action}{uncounted}", drawn=drawn, elsewhere=elsewhere)

    def _by_cause(self) -> Decision:
        verdict, cause = self._verdict, self._verdict.cause
        code = self._facts.code
        row = code_row(code) if cause.slug == "user_exit" and code is not None else None
        declared = self._diagnosis.mark == "retryable" or cause.slug == "retryable_exception"
        declared = declared or (row is not None and row.kind == "user_retryable")
        # The same declaration as a signal: an unhandled SIGUSR1.
        declared = declared or (code == USER_RETRYABLE and cause.slug in BARE)
        again = row is not None and row.action == "restart"
        if row is not None and not again and not declared and verdict.retry == "no":
            return self._stop("exit_code", f"exit code {code} is permanent: {row.meaning}")
        if verdict.retry == "no" and not declared and not again:
            words = verdict.decisive.line if cause.slug == DEADLINE and verdict.decisive else None
            return self._stop("cause_no", words or f"a restart would fail the same way ({cause.slug})")
        names = [cause.slug, cause.family]
        drawn = self._budgets.named([*names, USER] if declared else [n for n in names if self._has_number(n)])
        spent = _spent(drawn)
        if spent is not None:
            return self._stop("cause_budget", self._budgets.exhausted(spent), budget=spent.name)
        # Zero means no restart at all.
        if self._spec.policies.max_restarts and self._taken(declared=declared):
            # Node pressure may be the job's fault.
            stop = self._repeated() if cause.slug == "pod_evicted" else None
            why = f"the platform removed the pod ({cause.slug}), which does not count in max_restarts"
            return stop or self._retry(TAKEN, why, drawn=drawn, elsewhere=verdict.retry == "elsewhere")
        total = self._budgets.total
        if not total.left:
            return self._stop("restarts_spent", self._budgets.exhausted(total), budget=TOTAL)
        drawn.append(total)
        if declared:
            return self._retry(DECLARED, "the code declares this error retryable", drawn=drawn)
        stop = self._repeated()
        if stop is not None:
            return stop
        if again:
            return self._retry("exit_code", f"the cause may be temporary (exit code {code})", drawn=drawn)
        if verdict.retry == "elsewhere":
            here = "this machine" if self._spec.backend == "local" else "the same nodes"
            where = "another node" if self._other_nodes else here
            return self._retry("cause_elsewhere", f"one restart on {where} ({cause.slug})", drawn=drawn, elsewhere=True)
        if verdict.retry == "once":
            return self._retry("cause_once", f"one restart to confirm the cause ({cause.slug})", drawn=drawn)
        return self._retry("cause_yes", f"the cause may be temporary ({cause.slug})", drawn=drawn)

    def _taken(self, *, declared: bool) -> bool:
        verdict = self._verdict
        platform = verdict.decisive is not None and verdict.decisive.source in _PLATFORM
        taken = platform and verdict.cause.slug in _TAKEN_CAUSES and verdict.retry in {"yes", "elsewhere"}
        return taken and self._slot is None and not declared

    def _repeated(self) -> Decision | None:
        """Returns a stop if the same fault occurred before without progress in between, else None."""
        barren = [p for p in self._own if p.fingerprint == self._diagnosis.fingerprint and not p.progressed]
        retry = self._verdict.retry
        if retry in {"once", "elsewhere"} and barren and not (retry == "elsewhere" and self._other_nodes):
            why = "the same failure happened before, without progress in between"
            return self._stop("repeated", why, budget="repeat")
        if len(barren) >= MAX_REPEATS:
            why = f"the same failure happened {len(barren)} times without progress"
            return self._stop("repeated", why, budget="repeat")
        return None

    def _has_number(self, name: str) -> bool:
        return name in self._spec.policies.budgets

    def _stop(self, rule: str, because: str, *, budget: str | None = None) -> Decision:
        return Decision(action="stop", rule=rule, because=because, budget=budget, left=self._budgets.total.left)

    def _retry(self, rule: str, because: str, *, drawn: list[Budget], elsewhere: bool = False) -> Decision:
        if self._time_left is not None and self._time_left <= self._delay:
            total = self._spec.deadlines.total_s or 0.0
            return self._stop("total_deadline", f"the total deadline of {total:g} s leaves no time for another attempt")
        action: Action = "retry_elsewhere" if elsewhere and self._other_nodes else "retry"
        named = [budget for budget in drawn if budget.name != TOTAL]
        return Decision(
            action=action,
            rule=rule,
            because=because,
            budget=named[0].name if named else TOTAL if drawn else None,
            left=min(budget.left for budget in drawn) - 1 if drawn else self._budgets.total.left,
            delay_s=self._delay,
        )


def _spent(budgets: list[Budget]) -> Budget | None:
    return next((budget for budget in budgets if not budget.left), None)


def _delay(spec: JobSpec, attempts: int) -> float:
    """Exponential back-off in seconds, without jitter, because a pure function has no random source.

    The supervisor adds the jitter.
    """
    policies = spec.policies
    return float(min(policies.backoff_max_s, policies.backoff_s * 2.0 ** min(attempts, 30)))
