"""Scenarios of job-api.md section 8 on this machine, with real processes: success, rules, budgets, deadlines."""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec
import pytest

from rankfall.model import Case, Deadlines, Diagnosis, Evidence, FailureRule, StatusDocument, Success
from rankfall.rundir import RunDir
from rankfall.strategy_registry import diagnose_by
from rankfall.supervisor.attended.decisions import root_facts
from rankfall.supervisor.best_effort_store import BestEffortStore
from support.helpers import waits_for
from support.patience import scaled

from .conftest import Bench

FAST = {"settle_quiet_s": 0.15, "settle_max_s": 3.0, "grace_s": 1.0, "backoff_s": 0.02}
# Sleeps as long as its test may take, and ends at SIGTERM.
STAY = "time.sleep(600)"
attempt = 'attempt = int(os.environ["RANKFALL_ATTEMPT"])\n'


def exits(codes: dict[int, int]) -> str:
    """Attempt N of the one rank leaves with ``codes[N]``."""
    return f"{attempt}sys.exit({codes}[attempt])"


def status_of(run: RunDir) -> StatusDocument:
    with run.reader() as reader:
        return reader.status(time.time_ns())


def because(outcome: Any) -> str:
    assert outcome.verdict is not None
    assert outcome.verdict.decision is not None
    return outcome.verdict.decision.because


@pytest.mark.parametrize("code", [5, 126, 138, 143])
def test_jobapi_s01_a_real_rank_is_treated_as_the_table_says(bench: Bench, code: int) -> None:
    again = code in {138, 143}
    fall = f"if attempt == 1 and rank == 3: sys.exit({code})\nif attempt == 1: {STAY}"
    run, outcome = bench.run(attempt + fall, nproc_per_node=2, policies=FAST)
    assert (outcome.state, outcome.attempts) == (("succeeded", 2) if again else ("failed", 1))
    with run.reader() as reader:
        found = reader.diagnosis(1)
    assert found is not None
    assert (found.verdict.rank, found.exit_code) == (3, code)


@pytest.mark.parametrize("code", [128, 139])
def test_jobapi_s02_128_and_139_fail_and_one_rule_makes_them_a_retry(bench: Bench, code: int) -> None:
    story = exits({1: code, 2: 0})
    _, outcome = bench.run(story, nnodes=1, policies=FAST)
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 1, code)
    rule = FailureRule(exit_codes=(128, 139), action="restart")
    _, outcome = bench.run(story, nnodes=1, policies=FAST, rules=(rule,))
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)


def test_jobapi_s03_138_restarts_under_user_and_stops_at_the_fourth(bench: Bench) -> None:
    run, outcome = bench.run("sys.exit(138)", nnodes=1, policies=FAST)
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 4, 138)
    assert because(outcome) == "budget user exhausted (3/3)"
    assert status_of(run).reason == "budget user exhausted (3/3)"


def test_jobapi_s04_rank_0_is_enough_and_the_others_get_time_to_finish(bench: Bench) -> None:
    code = f"""
if rank == 0: sys.exit(0)
if rank == 1:
    {bench.waits_for_event("success")}; open("written", "w").close(); sys.exit(7)
time.sleep(600)
"""
    drain_s = scaled(2.0)
    success = Success(policy="rank0", drain_s=drain_s)
    begun = time.monotonic()
    run, outcome = bench.run(code, nnodes=3, success=success, policies=FAST)
    assert time.monotonic() - begun > drain_s
    assert (outcome.state, outcome.code, outcome.attempts, outcome.verdict) == ("succeeded", 0, 1, None)
    assert (bench.folder / "written").exists()
    assert bench.texts("failure") == []
    notes = [slot.note for slot in status_of(run).slots]
    assert notes == [None, "ended after success", "stopped after success"]


def test_a_failure_before_rank_0_is_done_is_a_failure(bench: Bench) -> None:
    code = f"sys.exit(9) if rank == 1 else {bench.waits_for_event('failure')}"
    _, outcome = bench.run(code, success=Success(policy="rank0"), policies=FAST | {"settle_quiet_s": scaled(1.0)})
    assert (outcome.state, outcome.code) == ("failed", 9), bench.events


def test_an_exception_before_rank_0_is_done_is_a_failure_also_if_its_process_ends_later(bench: Bench) -> None:
    """Rank 1 cleans up until rank 0 has left."""
    code = f"""
import atexit
def gone():
    try: os.kill(int(open("pid0").read()), 0)
    except ProcessLookupError: return True
    return time.sleep(0.02)
if rank == 0:
    with open("new", "w") as file: file.write(str(os.getpid()))
    os.replace("new", "pid0")
    {bench.waits_for_event("failure")}; sys.exit(0)
{waits_for(bench.folder / "pid0")}
atexit.register(lambda: any(gone() for _ in range(30000)))
raise ValueError("too wide")
"""
    _, outcome = bench.run(code, success=Success(policy="rank0"), policies=FAST)
    assert (outcome.state, outcome.attempts) == ("failed", 1), bench.events
    assert outcome.verdict is not None
    assert outcome.verdict.rank == 1


def test_jobapi_s05_four_of_five_are_enough_and_the_fifth_is_stopped(bench: Bench) -> None:
    code = f"if rank == 2: {STAY}"
    success = Success(policy="fraction", fraction=0.8, drain_s=0.2)
    run, outcome = bench.run(code, nnodes=5, success=success, policies=FAST)
    assert (outcome.state, outcome.verdict) == ("succeeded", None)
    assert bench.texts("success") == [
        "done: 4 of 5 slots ended with 0, 4 are required; the other slots have 0.2 s to finish"
    ]
    assert {rank.rank: rank.note for rank in status_of(run).ranks if rank.note} == {2: "stopped after success"}


def test_jobapi_s05_a_slot_that_fell_before_is_tolerated(bench: Bench) -> None:
    code = "if rank == 1: sys.exit(4)\ntime.sleep(0.6)"
    success = Success(policy="fraction", fraction=0.5, drain_s=0.2)
    run, outcome = bench.run(code, success=success, policies=FAST)
    assert outcome.state == "succeeded"
    assert [slot.note for slot in status_of(run).slots] == [None, "failed, not needed for success"]


def test_jobapi_s06_a_fraction_that_became_impossible_fails_at_that_moment(bench: Bench) -> None:
    code = f"if rank in (1, 3): sys.exit(6)\n{STAY}"
    success = Success(policy="fraction", fraction=0.8)
    # Longer than the test may take.
    _, outcome = bench.run(code, nnodes=5, success=success, policies=FAST, deadlines=Deadlines(total_s=3600))
    assert (outcome.state, outcome.code, outcome.attempts) == ("failed", 6, 1)
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "user_exit"


def test_jobapi_s13_a_retryable_code_for_ever_ends_after_three_attempts(bench: Bench) -> None:
    _, outcome = bench.run("sys.exit(143)", nnodes=1, policies=FAST | {"max_restarts": 2})
    assert (outcome.state, outcome.attempts) == ("failed", 3)
    assert because(outcome) == "budget total exhausted (2/2)"


def test_jobapi_s14_a_permanent_code_is_final_and_never_shown_as_restarting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    real = BestEffortStore.set_run

    def seen(self: BestEffortStore, state: Any, *, reason: str | None, at: int) -> None:
        states.append(state)
        real(self, state, reason=reason, at=at)

    monkeypatch.setattr(BestEffortStore, "set_run", seen)
    rule = FailureRule(exit_codes=(3, 7), action="restart")
    # A restart would wait longer than the test may take.
    policies = FAST | {"backoff_s": 3600.0}
    _, outcome = bench.run("sys.exit(9 if rank == 1 else 0)", policies=policies, rules=(rule,))
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert [state for state, _ in itertools.groupby(states)] == ["starting", "running", "failed"]


def test_jobapi_s15_all_other_processes_are_gone_at_the_end(bench: Bench) -> None:
    deaf = "; ".join(waits_for(bench.folder / f"deaf-{rank}") for rank in (0, 1, 3))
    code = f"""
if rank == 2:
    {deaf}; sys.exit(9)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
open(f"deaf-{{rank}}", "w").close()
time.sleep(600)
"""
    _, outcome = bench.run(code, nproc_per_node=2, policies=FAST)
    assert (outcome.state, outcome.code) == ("failed", 9)
    assert bench.left() == []


@pytest.mark.parametrize("budget", [0, 1])
def test_jobapi_s19_budget_0_is_one_run_and_budget_1_at_most_two(bench: Bench, budget: int) -> None:
    rule = FailureRule(exit_codes=(9,), action="restart", budget="app")
    policies = FAST | {"budgets": {"app": budget}}
    _, outcome = bench.run("sys.exit(9)", nnodes=1, policies=policies, rules=(rule,))
    assert (outcome.state, outcome.attempts) == ("failed", budget + 1)


def test_a_rule_of_codes_that_yields_to_a_proven_cause_is_named(bench: Bench) -> None:
    rule = FailureRule(exit_codes=(1,), action="restart")
    _, outcome = bench.run("raise ValueError('x')", nnodes=1, policies=FAST, rules=(rule,))
    assert (outcome.attempts, outcome.code) == (1, 1)
    assert because(outcome) == (
        "a restart would fail the same way (user_code_exception); rules[0] has only codes or signals and yields to a "
        "proven cause, unless it has causes: [user_code_exception]"
    )
    # A rule that changes nothing, or does not match, has no message.
    for other in (FailureRule(exit_codes=(1,), action="fail"), FailureRule(exit_codes=(5,), action="restart")):
        _, outcome = bench.run("raise ValueError('x')", nnodes=1, policies=FAST, rules=(other,))
        assert because(outcome) == "a restart would fail the same way (user_code_exception)"
    whole = FailureRule(exit_codes=(1,), causes=("user_code_exception",), action="restart")
    _, outcome = bench.run("raise ValueError('x')", nnodes=1, policies=FAST | {"max_restarts": 1}, rules=(whole,))
    assert outcome.attempts == 2


def test_jobapi_s25_two_budgets_stop_at_the_second_a_and_name_both(bench: Bench) -> None:
    rules = (
        FailureRule(exit_codes=(3,), action="restart", budget="app"),
        FailureRule(exit_codes=(4,), action="restart", budget="infra"),
    )
    policies = FAST | {"max_restarts": 10, "budgets": {"app": 1, "infra": 5}}
    _, outcome = bench.run(exits({1: 3, 2: 4, 3: 4, 4: 3}), nnodes=1, policies=policies, rules=rules)
    assert (outcome.state, outcome.attempts) == ("failed", 4)
    assert because(outcome) == "budget app exhausted (1/1); used: app 1/1, infra 2/5"


def test_jobapi_s29_the_total_deadline_holds_over_all_attempts(bench: Bench) -> None:
    # Each attempt falls after a while by a code that is always worth another one.
    rule = FailureRule(exit_codes=(4,), action="restart", budget="infra")
    policies = FAST | {"max_restarts": 100, "budgets": {"infra": 100}}
    each_s, total_s = 0.5, scaled(5.0)
    _, outcome = bench.run(
        f"time.sleep({each_s}); sys.exit(4)",
        nnodes=1,
        policies=policies,
        rules=(rule,),
        deadlines=Deadlines(total_s=total_s),
    )
    assert outcome.state == "failed"
    # Counted by attempts, each of which took its time.
    assert 1 < outcome.attempts <= total_s / each_s + 1


def test_a_total_deadline_inside_an_attempt_blames_no_rank(bench: Bench) -> None:
    run, outcome = bench.run(STAY, policies=FAST, deadlines=Deadlines(total_s=0.8))
    assert (outcome.state, outcome.code, outcome.exit_origin, outcome.attempts) == ("failed", 69, "rankfall", 1)
    assert outcome.verdict is not None
    verdict = outcome.verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == ("deadline_exceeded", "proven")
    assert (verdict.rank, verdict.slot, verdict.node, verdict.consequences) == (None, None, None, ())
    assert because(outcome) == "the total deadline of 0.8 s has passed"
    assert status_of(run).rank is None


def test_an_attempts_deadline_may_be_worth_another_attempt_by_rule(bench: Bench) -> None:
    rule = FailureRule(causes=("deadline_exceeded",), action="restart")
    code = f"{attempt}if attempt == 1: {STAY}"
    _, outcome = bench.run(code, nnodes=1, policies=FAST, rules=(rule,), deadlines=Deadlines(attempt_s=scaled(4.0)))
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)


def test_a_failure_that_was_being_looked_at_stands_when_the_time_is_over(bench: Bench) -> None:
    code = f"if rank == 0: sys.exit(8)\n{STAY}"
    policies = FAST | {"settle_quiet_s": 600.0, "settle_max_s": 900.0}
    _, outcome = bench.run(code, policies=policies, deadlines=Deadlines(attempt_s=scaled(2.5)))
    assert (outcome.state, outcome.code) == ("failed", 8)
    assert outcome.verdict is not None
    assert outcome.verdict.rank == 0


def test_jobapi_s30_what_is_proven_to_keep_the_ranks_away_is_the_cause_and_not_the_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's word is put in as the cluster's feed would; no pod is needed to see who wins."""
    said = Evidence(
        id="pod:0",
        source="pod",
        slug="image_pull",
        role="primary",
        trust="platform",
        slot=0,
        at=time.time_ns(),
        line="ImagePullBackOff: no such image",
        specificity=90,
        detail="reason=ImagePullBackOff",
    )

    def diagnosed(strategy: str | None, case: Case) -> Diagnosis:
        return diagnose_by(strategy, msgspec.structs.replace(case, evidence=(*case.evidence, said)))

    monkeypatch.setattr("rankfall.supervisor.attempt.timeouts.diagnose_by", diagnosed)
    _, outcome = bench.run(
        STAY, nnodes=1, launcher="exec", inside="off", policies=FAST, deadlines=Deadlines(startup_s=0.8)
    )
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.cause.confidence) == ("image_pull", "proven")
    assert outcome.verdict.decisive is not None
    assert "ImagePullBackOff" in outcome.verdict.decisive.line


def test_reasons_and_conditions_are_taken_from_what_a_job_cannot_forge(bench: Bench) -> None:
    run, _ = bench.run("sys.exit(9)", nnodes=1, policies=FAST | {"max_restarts": 0})
    with run.reader() as reader:
        found = reader.diagnosis(1)
    assert found is not None
    words = "reason=Evicted condition=DisruptionTarget other=x reason="
    true = Evidence(id="a", source="pod", slug="pod_evicted", role="primary", trust="platform", slot=0, detail=words)
    forged = msgspec.structs.replace(true, id="b", trust="job", detail="reason=Forged")
    elsewhere = msgspec.structs.replace(true, id="c", slot=1, detail="reason=Elsewhere")
    with run.lease() as writer:
        writer.add_evidence(1, [true, forged, elsewhere])
        facts = root_facts(writer, attempt=1, diagnosis=found)
    assert (facts.code, facts.signal, facts.role) == (9, None, "worker")
    assert facts.reasons == {"Evicted"}
    assert facts.conditions == {"DisruptionTarget"}
