"""The job's own failure rules, budgets with their counts, and the table of exit codes: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import (
    Cause,
    Deadlines,
    Decision,
    Diagnosis,
    FailureRule,
    JobSpec,
    Policies,
    RankFacts,
    catalogue,
    spec_from,
)
from rankfall.model.exit_codes import code_row
from rankfall.verdict.decide import BARE, Budgets, PastAttempt, RootFacts, decide, matches
from rankfall.verdict.diagnose import diagnose
from support.cases import case, died, left, piece

pytestmark = pytest.mark.steady

MANY = Policies(max_restarts=100)


def spec(*rules: dict[str, Any], **policies: Any) -> JobSpec:
    data = {"command": ["train.py"], "rules": list(rules), "policies": {"max_restarts": 100} | policies}
    return spec_from(data)


def fall(code: int, *, rank: int = 3) -> Diagnosis:
    """Rank 3 of 4 ends with a code and no word; Rankfall stops the others."""
    others: list[RankFacts] = [died(n, 15, seconds=2, by="wrapper") for n in range(4) if n != rank]
    return diagnose(case([*others, left(rank, code)], [], world_size=4))


def follow(spec: JobSpec, falls: list[Diagnosis], *, progressed: bool = True) -> list[Decision]:
    """What is decided about one fall after the other, until a stop."""
    history: tuple[PastAttempt, ...] = ()
    decisions: list[Decision] = []
    for number, found in enumerate(falls, start=1):
        made = decide(found, spec=spec, history=history)
        decisions.append(made)
        if made.action == "stop":
            break
        cause = found.verdict.cause
        history = (
            *history,
            PastAttempt(
                attempt=number,
                fingerprint=found.fingerprint,
                slug=cause.slug,
                family=cause.family,
                action=made.action,
                rule=made.rule,
                budget=made.budget,
                progressed=progressed,
            ),
        )
    return decisions


@pytest.mark.parametrize("code", range(1, 256))
def test_jobapi_s01_every_code_does_by_default_what_the_published_table_says(code: int) -> None:
    found = fall(code)
    made = decide(found, spec=spec(), history=())
    row = code_row(code)
    assert (found.verdict.rank, found.exit_code) == (3, code)
    assert made.action == {"fail": "stop", "restart": "retry"}[row.action]
    assert row.budget is None or made.budget == row.budget


def test_jobapi_s01_code_0_never_restarts() -> None:
    found = diagnose(case([left(n, 0) for n in range(4)], [], succeeded=True))
    assert decide(found, spec=spec(), history=()).action == "none"


@pytest.mark.parametrize("code", [128, 139])
def test_jobapi_s02_139_and_128_fail_and_one_rule_makes_them_a_retry(code: int) -> None:
    assert decide(fall(code), spec=spec(), history=()).rule == "exit_code"
    made = decide(fall(code), spec=spec({"exit_codes": [128, 139], "action": "restart"}), history=())
    assert (made.action, made.rule) == ("retry", "rules[0]")


def test_jobapi_s03_138_restarts_under_budget_user_and_stops_at_the_fourth() -> None:
    told = follow(spec(max_restarts=3), [fall(138)] * 6, progressed=False)
    assert [made.action for made in told] == ["retry"] * 3 + ["stop"]
    assert [made.budget for made in told] == ["user"] * 4
    assert [made.left for made in told] == [2, 1, 0, 0]
    assert told[-1].because == "budget user exhausted (3/3)"


def test_138_as_the_signal_itself_is_the_same_word() -> None:
    found = diagnose(case([died(n, 15, seconds=2, by="wrapper") for n in range(3)] + [died(3, 10)], [], world_size=4))
    assert found.exit_code == 138
    assert decide(found, spec=spec(), history=()).budget == "user"


def test_jobapi_s13_a_code_that_is_retryable_for_ever_ends_after_budget_plus_one_attempts() -> None:
    assert len(follow(spec(max_restarts=2), [fall(143)] * 9)) == 3


def test_jobapi_s14_a_permanent_code_fails_whatever_rules_say_of_others() -> None:
    rule = {"exit_codes": [3, 7], "action": "restart"}
    assert decide(fall(9), spec=spec(rule), history=()).action == "stop"


@pytest.mark.parametrize(("budget", "attempts"), [(0, 1), (1, 2), (2, 3)])
def test_jobapi_s19_a_budget_is_a_number_of_restarts(budget: int, attempts: int) -> None:
    rule = {"exit_codes": [9], "action": "restart", "budget": "app"}
    assert len(follow(spec(rule, budgets={"app": budget}), [fall(9)] * 9)) == attempts
    assert len(follow(spec(max_restarts=budget), [fall(143)] * 9)) == attempts


def test_jobapi_s25_budgets_of_their_own_stop_at_the_second_a_and_name_both_counts() -> None:
    rules = [
        {"exit_codes": [3], "action": "restart", "budget": "app"},
        {"exit_codes": [4], "action": "restart", "budget": "infra"},
    ]
    told = follow(spec(*rules, budgets={"app": 1, "infra": 5}), [fall(code) for code in (3, 4, 4, 3)])
    assert [made.action for made in told] == ["retry", "retry", "retry", "stop"]
    assert told[-1].because == "budget app exhausted (1/1); used: app 1/1, infra 2/5"


def test_a_proven_cause_beats_a_bare_code_and_a_rule_on_causes_beats_both() -> None:
    oom = diagnose(case([died(0, 9), left(1, 1)], [piece("host_oom", 0, trust="kernel", source="kernel")]))
    assert (oom.verdict.cause.confidence, oom.exit_code) == ("proven", 137)
    by_code = {"exit_codes": [137], "action": "restart"}
    assert decide(oom, spec=spec(by_code), history=()).rule == "cause_no"
    by_cause = {"causes": ["memory"], "exit_codes": [137], "action": "restart"}
    assert decide(oom, spec=spec(by_code, by_cause), history=()).rule == "rules[1]"


def test_a_signal_is_told_from_a_code_that_looks_like_it() -> None:
    rule = FailureRule(signals=(11,), action="restart")
    crash = Cause.of("segfault", confidence="likely")
    assert matches(rule, cause=crash, facts=RootFacts(code=139, signal=11))
    assert not matches(rule, cause=crash, facts=RootFacts(code=139))


def test_reasons_conditions_and_roles_are_the_pods_and_the_roots() -> None:
    rule = FailureRule(reasons=("Evicted", "OOMKilled"), conditions=("DisruptionTarget",), roles=("ps",), action="fail")
    cause = Cause.of("preempted", confidence="proven")
    whole = RootFacts(role="ps", reasons=frozenset({"Evicted"}), conditions=frozenset({"DisruptionTarget", "Ready"}))
    assert matches(rule, cause=cause, facts=whole)
    for part in ({"role": "worker"}, {"reasons": frozenset[str]()}, {"conditions": frozenset({"Ready"})}):
        known = {"role": whole.role, "reasons": whole.reasons, "conditions": whole.conditions} | part
        assert not matches(rule, cause=cause, facts=RootFacts(**known))


def test_ignore_counts_in_its_own_budget_only() -> None:
    rule = {"exit_codes": [9], "action": "ignore", "budget": "noise"}
    job = spec(rule, max_restarts=1, budgets={"noise": 2})
    told = follow(job, [fall(code) for code in (9, 143, 9, 9)])
    assert [made.action for made in told] == ["retry", "retry", "retry", "stop"]
    assert told[-1].because == "budget noise exhausted (2/2)"


def test_restart_elsewhere_and_exclude_node_need_another_node() -> None:
    for rule in (
        {"exit_codes": [9], "action": "restart_elsewhere"},
        {"exit_codes": [9], "action": "restart", "exclude_node": True},
    ):
        assert decide(fall(9), spec=spec(rule), history=(), other_nodes=True).action == "retry_elsewhere"
        assert decide(fall(9), spec=spec(rule), history=()).action == "retry"


def test_a_rule_that_says_fail_stops_what_would_pass() -> None:
    made = decide(fall(143), spec=spec({"exit_codes": [143], "action": "fail"}), history=())
    assert (made.action, made.rule, made.because) == ("stop", "rules[0]", "rules[0] has action fail")


def test_no_attempt_begins_after_the_total_deadline() -> None:
    job = JobSpec(command=("t",), policies=Policies(backoff_s=2), deadlines=Deadlines(total_s=60))
    assert decide(fall(143), spec=job, history=(), time_left=2.5).action == "retry"
    late = decide(fall(143), spec=job, history=(), time_left=1.5)
    assert (late.action, late.rule) == ("stop", "total_deadline")
    assert "60 s" in late.because


# -- properties

CODES = st.integers(1, 255)
RULES = st.lists(
    st.builds(
        lambda codes, action, budget: (
            {"exit_codes": sorted(codes), "action": action} | ({"budget": budget} if action != "fail" else {})
        ),
        st.sets(CODES, min_size=1, max_size=40),
        st.sampled_from(["fail", "restart", "restart_elsewhere", "ignore"]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=4,
)


def given_numbers(rules: list[dict[str, Any]], **numbers: int) -> dict[str, int]:
    return {name: numbers[name] for rule in rules if (name := rule.get("budget"))}


@given(RULES, st.lists(CODES, max_size=12), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_no_budget_is_ever_overdrawn_and_every_run_ends(rules, codes, total, a, b) -> None:
    job = spec(*rules, max_restarts=total, budgets=given_numbers(rules, a=a, b=b))
    told = follow(job, [fall(code) for code in codes], progressed=True)
    again = [made for made in told if made.action != "stop"]
    drawn = {name: sum(1 for made in again if made.budget == name) for name in ("a", "b")}
    assert drawn["a"] <= a
    assert drawn["b"] <= b
    free = {f"rules[{n}]" for n, rule in enumerate(rules) if rule["action"] == "ignore"}
    assert sum(1 for made in again if made.rule not in free) <= total
    assert all(made.left is not None and made.left >= 0 for made in told)


@given(RULES, CODES)
def test_the_first_rule_that_names_a_code_decides(rules, code) -> None:
    job = spec(*rules, budgets=given_numbers(rules, a=9, b=9))
    first = next((n for n, rule in enumerate(rules) if code in rule["exit_codes"]), None)
    made = decide(fall(code), spec=job, history=())
    found = fall(code).verdict.cause
    if found.slug in BARE or found.confidence != "proven":
        assert made.rule.startswith("rules[") == (first is not None)
        assert first is None or made.rule == f"rules[{first}]"


@given(st.sampled_from(sorted(catalogue())), st.sampled_from(["proven", "likely", "suspected", "unknown"]), CODES)
def test_a_rule_without_causes_never_beats_a_proven_one(slug, confidence, code) -> None:
    rule = FailureRule(exit_codes=(code,), action="restart")
    held = matches(rule, cause=Cause.of(slug, confidence=confidence), facts=RootFacts(code=code))
    assert held == (confidence != "proven" or slug in BARE)


@given(st.lists(st.sampled_from(["host_oom", "peer_lost", "disk_full"]), max_size=8))
def test_a_family_counts_what_its_causes_draw(slugs) -> None:
    history = [
        PastAttempt(attempt=n, fingerprint="", slug=slug, family=catalogue()[slug].family, action="retry")
        for n, slug in enumerate(slugs)
    ]
    budgets = Budgets(spec(budgets={"memory": 3, "host_oom": 9}), history)
    assert [b.used for b in budgets.named(["memory"])] == [slugs.count("host_oom")]
    assert budgets.total.used == len(slugs)
