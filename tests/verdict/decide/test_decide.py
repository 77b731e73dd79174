from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Policies, catalogue
from rankfall.verdict.decide import PastAttempt, decide
from rankfall.verdict.diagnose import diagnose
from support.cases import case, died, left, piece

pytestmark = pytest.mark.steady


def spec(**policies) -> JobSpec:
    return JobSpec(command=("train.py",), policies=Policies(**policies))


def diagnosis(slug="user_code_exception", **fields):
    return diagnose(case([left(0, 1), left(1, 1)], [piece(slug, 0, **fields)]))


def past(diagnosed, *, attempt=1, action="retry", progressed=False):
    cause = diagnosed.verdict.cause
    return PastAttempt(
        attempt=attempt,
        fingerprint=diagnosed.fingerprint,
        slug=cause.slug,
        family=cause.family,
        action=action,
        progressed=progressed,
    )


def test_a_proven_user_error_stops_at_once():
    decision = decide(diagnosis(), spec=spec(), history=())
    assert (decision.action, decision.rule) == ("stop", "cause_no")


def test_a_transient_cause_is_retried_until_the_restarts_are_used():
    found = diagnosis("address_in_use")
    first = decide(found, spec=spec(max_restarts=2), history=())
    assert (first.action, first.left) == ("retry", 1)
    second = decide(found, spec=spec(max_restarts=2), history=(past(found, progressed=True),))
    assert (second.action, second.left) == ("retry", 0)
    third = decide(found, spec=spec(max_restarts=2), history=(past(found), past(found, attempt=2)))
    assert (third.action, third.rule, third.budget) == ("stop", "restarts_spent", "total")


def test_an_unknown_kill_is_retried_once_and_not_twice():
    found = diagnose(case([died(0, 9), left(1, 1)], [piece("peer_lost", 1, role="secondary")]))
    assert decide(found, spec=spec(), history=()).rule == "cause_once"
    assert decide(found, spec=spec(), history=(past(found),)).rule == "repeated"
    assert decide(found, spec=spec(), history=(past(found, progressed=True),)).action == "retry"


def test_errors_s4_a_retryable_root_beats_victims_that_are_not_and_the_reverse():
    retryable = diagnose(
        case(
            [left(0, 1), left(1, 1)],
            [
                piece("retryable_exception", 0, mark="retryable", seconds=1),
                piece("user_code_exception", 1, seconds=2, line="victim"),
            ],
        )
    )
    assert decide(retryable, spec=spec(), history=()).rule == "user_retryable"
    final = diagnose(
        case(
            [left(0, 1), left(1, 1)],
            [
                piece("user_code_exception", 0, mark="final", seconds=1),
                piece("peer_lost", 1, role="secondary", mark="retryable", seconds=2),
            ],
        )
    )
    assert decide(final, spec=spec(), history=()).rule == "user_final"


def test_a_named_budget_of_the_cause_or_its_family_counts():
    found = diagnosis("address_in_use")
    assert decide(found, spec=spec(budgets={"address_in_use": 0}), history=()).rule == "cause_budget"
    assert (
        decide(found, spec=spec(budgets={"network": 1}), history=(past(found, progressed=True),)).rule == "cause_budget"
    )
    assert decide(found, spec=spec(budgets={"memory": 0}), history=()).action == "retry"


def test_errors_s40_a_cancelled_run_is_not_retried():
    cancelled = diagnose(case([died(0, 15)], [], cancelled="by the user"))
    assert decide(cancelled, spec=spec(), history=()).action == "stop"


def test_i24_p10_what_the_platform_ends_is_stopped_and_worth_another_start():
    ended = diagnose(case([died(0, 15)], [], cancelled="at its limit", cancel_slug="walltime_or_requeue"))
    assert (ended.verdict.state, ended.verdict.cause.slug, ended.verdict.retry) == (
        "cancelled",
        "walltime_or_requeue",
        "yes",
    )
    found = decide(ended, spec=spec(), history=())
    assert (found.action, found.because) == ("stop", "the platform ends the job")


def test_elsewhere_means_one_more_try_where_there_is_no_other_node():
    found = diagnosis("gpu_ecc", trust="kernel", source="kernel")
    here = decide(found, spec=spec(), history=())
    assert (here.action, here.rule) == ("retry", "cause_elsewhere")
    assert decide(found, spec=spec(), history=(past(found),)).rule == "repeated"
    there = decide(found, spec=spec(), history=(past(found),), other_nodes=True)
    assert there.action == "retry_elsewhere"


def test_the_delay_doubles_up_to_its_limit():
    found = diagnosis("address_in_use")
    delays = [
        decide(
            found,
            spec=spec(max_restarts=50, backoff_s=1, backoff_max_s=10),
            history=tuple(past(found, attempt=i, progressed=True) for i in range(n)),
        ).delay_s
        for n in range(6)
    ]
    assert delays == [1, 2, 4, 8, 10, 10]


@given(
    st.sampled_from(sorted(catalogue())),
    st.lists(st.sampled_from(["retry", "stop"]), max_size=6),
    st.integers(0, 4),
)
def test_a_run_is_never_restarted_more_often_than_allowed(slug, actions, limit):
    found = diagnosis(slug)
    history = tuple(past(found, attempt=n + 1, action=a, progressed=True) for n, a in enumerate(actions))
    decision = decide(found, spec=spec(max_restarts=limit), history=history)
    if actions.count("retry") >= limit:
        assert decision.action in {"stop", "none"}


@pytest.mark.parametrize("slug", sorted(s for s, i in catalogue().items() if i.retry == "no" and i.role == "primary"))
def test_a_cause_that_would_fall_again_is_not_retried(slug):
    assert decide(diagnosis(slug), spec=spec(), history=()).action == "stop"


def test_a_slot_that_falls_alone_counts_in_all_budgets_and_repeats_only_itself():
    job, fell = spec(max_restarts=3, backoff_s=1.0), diagnosis("killed_unknown")
    of_another = msgspec.structs.replace(past(fell), slot=4)
    decision = decide(fell, spec=job, history=(of_another, of_another), slot=1)
    assert (decision.action, decision.rule, decision.left, decision.delay_s) == ("retry", "cause_once", 0, 1.0)
    own = msgspec.structs.replace(past(fell), slot=1)
    assert decide(fell, spec=job, history=(own,), slot=1).rule == "repeated"
    assert decide(fell, spec=job, history=(own, of_another, of_another), slot=1).rule == "restarts_spent"
    assert decide(fell, spec=job, history=(own,)).rule == "cause_once"


def test_elsewhere_for_one_slot_is_wherever_the_platform_puts_it():
    job = msgspec.structs.replace(spec(), backend="job")
    decision = decide(diagnosis("gpu_ecc", trust="kernel", source="kernel"), spec=job, history=(), slot=1)
    assert (decision.action, "the same nodes" in decision.because) == ("retry", True)
