"""Checks failure rules and restart budgets, independent of the backend."""

from __future__ import annotations

import re

from rankfall.model.causes import catalogue
from rankfall.model.errors import SpecError
from rankfall.model.exit_codes import MAX_CODE
from rankfall.model.jobspec.job import JobSpec
from rankfall.model.jobspec.policies import FailureRule

# Limit of a Kubernetes pod failure policy, for all backends.
MAX_RULES = 20
MAX_SIGNAL = 64
# Budget with a default, for code 138 and retryable exceptions.
USER_BUDGET = "user"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,99}")
_BUDGET = re.compile(r"[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?")


def check_rules(spec: JobSpec) -> None:
    """Refuses impossible rules and budgets.

    Raises:
        SpecError: Names the field and allowed values.
    """
    if len(spec.rules) > MAX_RULES:
        raise SpecError(
            "$.rules", f"{len(spec.rules)} rules are more than {MAX_RULES}", hint="put values into one rule"
        )
    drawn = {rule.budget for rule in spec.rules if rule.budget}
    known = {*catalogue(), *families(), USER_BUDGET, *drawn}
    for name in spec.policies.budgets:
        if name not in known:
            raise SpecError(
                f"$.policies.budgets.{name}",
                "is neither a cause nor a family, and no rule uses it",
                hint=f"use a family: {', '.join(sorted(families()))}; or name it in a rule, as: budget: {name}",
            )
    for number, rule in enumerate(spec.rules):
        _check_match(rule, f"$.rules[{number}]", roles=[part.name for part in spec.parts])
        _check_action(rule, f"$.rules[{number}]", spec)


def families() -> frozenset[str]:
    """Returns all families of causes."""
    return frozenset(info.family for info in catalogue().values())


def _check_match(rule: FailureRule, path: str, *, roles: list[str]) -> None:
    if not any((rule.exit_codes, rule.signals, rule.causes, rule.roles, rule.reasons, rule.conditions)):
        raise SpecError(
            path,
            "has no condition",
            hint="give at least one of: exit_codes, signals, causes, roles, reasons, conditions",
        )
    for code in rule.exit_codes:
        if not 1 <= code <= MAX_CODE:
            raise SpecError(
                f"{path}.exit_codes", f"{code} is not the code of a failure; allowed: 1-{MAX_CODE} (0 is success)"
            )
    for signal in rule.signals:
        if not 1 <= signal <= MAX_SIGNAL:
            raise SpecError(f"{path}.signals", f"{signal} is not the number of a signal; allowed: 1-{MAX_SIGNAL}")
    for field, numbers in (("exit_codes", rule.exit_codes), ("signals", rule.signals)):
        ordered = sorted(set(numbers))
        if list(numbers) != ordered:
            # Kubernetes requires ascending lists without repeats.
            raise SpecError(f"{path}.{field}", "is not ascending or repeats a value", hint=f"write: {ordered}")
    for cause in rule.causes:
        if cause not in catalogue() and cause not in families():
            raise SpecError(
                f"{path}.causes",
                f"{cause!r} is neither a cause nor a family",
                hint=f"use a family: {', '.join(sorted(families()))}; or a slug that `rankfall why` names",
            )
    for one in rule.roles:
        if one not in roles:
            raise SpecError(f"{path}.roles", f"there is no role {one!r}; allowed: {', '.join(roles)}")
    for field, words in (("reasons", rule.reasons), ("conditions", rule.conditions)):
        for word in words:
            if not _WORD.fullmatch(word):
                raise SpecError(
                    f"{path}.{field}",
                    f"{word!r} is not the name of a reason or condition, as OOMKilled or DisruptionTarget",
                )


def _check_action(rule: FailureRule, path: str, spec: JobSpec) -> None:
    if rule.action == "fail":
        if rule.budget is not None:
            raise SpecError(f"{path}.budget", "is not used by action fail", hint="leave it out, or use action: restart")
        if rule.exclude_node:
            raise SpecError(
                f"{path}.exclude_node",
                "has no meaning with action fail: nothing is restarted",
                hint="use action: restart_elsewhere",
            )
        return
    if rule.budget is None:
        if rule.action == "ignore":
            raise SpecError(
                f"{path}.budget",
                "is missing: action ignore does not count in max_restarts, so the run might never end",
                hint="name a budget and give it a number in policies.budgets",
            )
        return
    if not _BUDGET.fullmatch(rule.budget):
        raise SpecError(f"{path}.budget", f"{rule.budget!r} is not a name: 1-40 lower-case letters, digits, _ and -")
    if rule.budget not in spec.policies.budgets and (rule.budget != USER_BUDGET or rule.action == "ignore"):
        raise SpecError(
            f"{path}.budget",
            f"{rule.budget!r} has no number",
            hint=f"add it, as: policies: {{budgets: {{{rule.budget}: 3}}}}",
        )
