"""From a verdict to a decision: pure. The verdict that people read is the one that decides; a victim's word never does.

Rules, first match wins (the name is kept in the decision):

    no_failure         nothing fell, or the user cancelled                        -> none, stop
    user_final         the root's exception is marked final                       -> stop
    cause_no           the catalogue says no retry and the cause is at least likely -> stop
    restarts_spent     max_restarts attempts were started again already           -> stop
    cause_budget       the spec's budget for this slug or family is spent         -> stop
    user_retryable     marked retryable, or exit code 138                         -> retry, own budget
    repeated           the same fingerprint fell before without progress          -> stop
    cause_elsewhere    on another node; here on this machine as one more try      -> retry_elsewhere or retry
    cause_once / cause_yes                                                        -> retry
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import Action, Decision, Diagnosis, JobSpec

# The same fault again and again without progress in between: more tries teach nothing (errors.md section 3.1, NVRx: 3).
MAX_REPEATS: Final = 3


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an earlier attempt of the same run.

    Attributes:
        action: what was decided then.
        progressed: its ranks passed a step that no attempt before it had reached.
    """

    attempt: int
    fingerprint: str
    slug: str
    family: str
    action: str
    node: str | None = None
    progressed: bool = False


def decide(
    diagnosis: Diagnosis, *, spec: JobSpec, history: tuple[PastAttempt, ...], other_nodes: bool = False
) -> Decision:
    """What to do about this diagnosis.

    Args:
        diagnosis: of the attempt that just ended.
        spec: policies and budgets.
        history: earlier attempts of the run, oldest first, without the present one.
        other_nodes: whether the backend can avoid a node; this machine alone cannot.

    Returns:
        A decision in state ``intent`` without a time; the caller stamps it.
    """
    verdict = diagnosis.verdict
    cause = verdict.cause
    policies = spec.policies
    restarts = sum(1 for past in history if past.action in {"retry", "retry_elsewhere"})
    total_left = max(0, policies.max_restarts - restarts)

    def stop(rule: str, because: str, *, budget: str | None = None) -> Decision:
        return Decision(action="stop", rule=rule, because=because, budget=budget, left=total_left)

    if verdict.state == "succeeded":
        return Decision(action="none", rule="no_failure", because="the job succeeded", left=total_left)
    if verdict.state == "cancelled":
        return stop("no_failure", "the user cancelled the run")
    if diagnosis.mark == "final":
        return stop("user_final", "the exception is marked final")
    declared = diagnosis.mark == "retryable" or cause.slug == "retryable_exception"
    if verdict.retry == "no" and not declared:
        return stop("cause_no", f"{cause.slug} would fall again")
    if total_left == 0:
        return stop("restarts_spent", f"all {policies.max_restarts} restarts are used", budget="total")
    name, left = _budget(diagnosis, spec, history)
    if left is not None and left <= 0:
        return stop("cause_budget", f"the budget for {name} is used", budget=name)
    tightest = total_left if left is None else min(total_left, left)
    delay = _delay(spec, len(history))

    def retry(rule: str, because: str, *, elsewhere: bool = False) -> Decision:
        action: Action = "retry_elsewhere" if elsewhere else "retry"
        return Decision(
            action=action, rule=rule, because=because, budget=name or "total", left=tightest - 1, delay_s=delay
        )

    if declared:
        return retry("user_retryable", "the user declares this error retryable")
    same = [past for past in history if past.fingerprint == diagnosis.fingerprint]
    barren = [past for past in same if not past.progressed]
    if verdict.retry in {"once", "elsewhere"} and barren and not (verdict.retry == "elsewhere" and other_nodes):
        return stop("repeated", "the same fault fell before and nothing was gained in between", budget="repeat")
    if len(barren) >= MAX_REPEATS:
        return stop("repeated", f"the same fault fell {len(barren)} times without progress", budget="repeat")
    if verdict.retry == "elsewhere":
        where = "another node" if other_nodes else "this machine, the only one there is"
        return retry("cause_elsewhere", f"{cause.slug}: one more try on {where}", elsewhere=other_nodes)
    if verdict.retry == "once":
        return retry("cause_once", f"{cause.slug}: one confirming retry")
    return retry("cause_yes", f"{cause.slug} may pass")


def _budget(diagnosis: Diagnosis, spec: JobSpec, history: tuple[PastAttempt, ...]) -> tuple[str | None, int | None]:
    """The tightest budget that the spec names for this cause, and what is left in it; (None, None) when it names none."""
    cause = diagnosis.verdict.cause
    found: list[tuple[int, str]] = []
    for name, used in (
        (cause.slug, sum(1 for past in history if past.slug == cause.slug)),
        (cause.family, sum(1 for past in history if past.family == cause.family)),
    ):
        if name in spec.policies.budgets:
            found.append((spec.policies.budgets[name] - used, name))
    if not found:
        return None, None
    left, name = min(found)
    return name, left


def _delay(spec: JobSpec, attempts: int) -> float:
    """Exponential back-off in seconds; without jitter here, because a pure function has no dice: the supervisor adds it."""
    policies = spec.policies
    return float(min(policies.backoff_max_s, policies.backoff_s * 2.0 ** min(attempts, 30)))
