"""Which of the user's failure rules matches a verdict. The first one does; a proven cause beats a bare code."""

from __future__ import annotations

from typing import Final

from rankfall.decide.facts import RootFacts
from rankfall.model import Cause, FailureRule, JobSpec, numbers
from rankfall.model.patterns import anchored

# Causes that say no more than how the process ended: a rule about codes or signals is about just that.
BARE: Final = frozenset({"user_exit", "killed_unknown", "external_signal", "retryable_exception", "unknown"})
_NAME: Final = anchored(r"rules\[(\d{1,3})\]", limit=64)


def first_match(spec: JobSpec, *, cause: Cause, facts: RootFacts) -> tuple[str, FailureRule] | None:
    """The first rule that matches, with its name as decisions give it (``rules[0]``); None when none does."""
    for number, rule in enumerate(spec.rules):
        if matches(rule, cause=cause, facts=facts):
            return f"rules[{number}]", rule
    return None


def rule_named(name: str, spec: JobSpec) -> FailureRule | None:
    """The rule of the spec that a decision names; None when that decision was none of a rule's."""
    found = _NAME.fullmatch(name)
    number = numbers.matched(found[1]) if found else len(spec.rules)
    return spec.rules[number] if number < len(spec.rules) else None


def matches(rule: FailureRule, *, cause: Cause, facts: RootFacts) -> bool:
    """Whether each of the rule's non-empty lists has one of its values in this failure."""
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
    """Whether the rule says nothing but how the process ended (of which role does not tell why either)."""
    return not (rule.causes or rule.reasons or rule.conditions) and bool(rule.exit_codes or rule.signals)
