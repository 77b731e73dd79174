"""Unattended jobs: what the rules, budgets and success of a spec become, and what is refused because it would become something else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kubernetes.made import BACKENDS, child, compiled, spec, started, template, workload
from rankfall.backends.kubernetes.manifests.native_policies import SURE, code_of, slugs_of
from rankfall.model import Refused, catalogue
from rankfall.model.exit_codes import CAUSE_CODES, exit_class
from rankfall_inside import exit_codes

REPLICA = {"restart_scope": "replica", "launcher": "exec"}


def alone(backend: str = "job", **fields: Any) -> Any:
    base = {"policies": {"max_restarts": 0}} if backend == "job" else {}
    return spec(backend=backend, unattended=True, **{**base, **fields})


def rules(made: Any) -> list[dict[str, Any]]:
    return child(made).get("podFailurePolicy", {}).get("rules", [])


def refused(job: Any, **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        compiled(job, **options)
    return caught.value.message


def test_without_restarts_the_first_failure_is_the_jobs():
    body = child(compiled(alone()))
    assert body["backoffLimit"] == 0
    assert "podFailurePolicy" not in body


def test_rules_force_kubernetes_to_wait_for_a_lost_pod_and_the_note_says_so():
    # Without rules a pod that a dead node holds counts as failed at once.
    assert "podReplacementPolicy" not in child(compiled(alone()))
    made = compiled(alone(rules=[{"exit_codes": [3], "action": "fail"}]))
    assert child(made)["podReplacementPolicy"] == "Failed"
    assert any("a lost node" in note for note in made.notes)


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_jobapi_s20_each_native_restart_has_a_rendezvous_of_its_own(backend):
    made = compiled(alone(backend, nnodes=2))
    _, variables = started(made)
    assert variables["RANKFALL_RESTART"] == "<metadata.labels['jobset.sigs.k8s.io/restart-attempt']>"
    own = f"job-0a1b2c-a1-r{variables['RANKFALL_RESTART']}"
    torchrun = json.loads(variables["RANKFALL_TORCHRUN"])
    assert torchrun[torchrun.index("--rdzv-id") + 1] == variables["TORCHELASTIC_RUN_ID"] == own
    assert "RANKFALL_RESTART" not in started(compiled(spec(backend=backend)))[1]


def test_unattended_the_wrapper_tells_causes_as_codes():
    command, _ = started(compiled(alone()))
    assert command[command.index("--exit-code") + 1] == "cause"
    assert "--exit-code" not in started(compiled(spec()))[0]


def test_rules_by_code_name_the_container_and_stay_in_order():
    job = alone(
        rules=[{"exit_codes": [3, 4], "action": "fail"}, {"conditions": ["DisruptionTarget"], "action": "restart"}],
        kubernetes={"container": "train"},
    )
    assert rules(compiled(job)) == [
        {"action": "FailJob", "onExitCodes": {"containerName": "train", "operator": "In", "values": [3, 4]}},
        {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_on_the_other_backends_the_named_container_is_theirs(backend):
    (rule, *_) = rules(compiled(alone(backend, rules=[{"exit_codes": [3], "action": "fail"}])))
    assert rule["onExitCodes"]["containerName"] == ("node" if backend == "trainjob" else "main")


def test_signals_are_matched_as_codes_and_as_what_the_wrapper_makes_of_them():
    job = alone(rules=[{"signals": [9], "action": "fail"}])
    assert rules(compiled(job))[0]["onExitCodes"]["values"] == [137, 217]
    crashes = alone(rules=[{"signals": [4, 7, 8, 11], "action": "fail"}])
    assert rules(compiled(crashes))[0]["onExitCodes"]["values"] == [132, 135, 136, 139, 216]
    bare = alone(rules=[{"exit_codes": [139], "action": "fail"}], inside="off", launcher="exec")
    assert rules(compiled(bare))[0]["onExitCodes"]["values"] == [139]
    assert "one code, 216" in refused(alone(rules=[{"signals": [11], "action": "fail"}]))


def test_causes_are_matched_by_their_codes():
    job = alone(rules=[{"causes": ["memory"], "action": "fail"}, {"causes": ["import_error"], "action": "fail"}])
    assert [rule["onExitCodes"]["values"] for rule in rules(compiled(job))] == [[204, 205], [201]]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"causes": ["host_oom"], "action": "fail"}, r"rules\[0\]\.causes: Kubernetes sees the same code"),
        ({"causes": ["network"], "action": "fail"}, r"no code inside a pod can prove network"),
        ({"reasons": ["OOMKilled"], "action": "fail"}, r"rules\[0\]\.reasons: Kubernetes cannot match"),
        (
            {"exit_codes": [3], "action": "restart_elsewhere"},
            r"rules\[0\]: only a supervisor can restart the job on another node",
        ),
        (
            {"exit_codes": [3], "action": "restart", "exclude_node": True},
            r"rules\[0\]: only a supervisor can restart the job on another node",
        ),
        ({"exit_codes": [3], "conditions": ["X"], "action": "fail"}, r"either exit codes or conditions"),
        ({"exit_codes": [3], "causes": ["user"], "action": "fail"}, r"sees one code"),
        ({"exit_codes": [3], "signals": [9], "action": "fail"}, r"no code is in both"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rule_that_would_mean_something_else_is_refused(backend, rule, why):
    message = refused(alone(backend, rules=[rule]))
    assert re.search(why, message)
    assert f"backend {backend}" in message


def test_one_replica_is_restarted_within_the_one_number_that_kubernetes_counts():
    made = compiled(alone(policies={"max_restarts": 4}, **REPLICA))
    assert child(made)["backoffLimit"] == 4
    (default,) = rules(made)
    assert default["action"] == "FailJob"
    values = default["onExitCodes"]["values"]
    assert values == [code for code in range(1, 256) if exit_class(code) == "permanent"]
    assert {1, 2, 126, 127, 128, 139} <= set(values)
    assert not {130, 137, 143, 138, 0} & set(values)


def test_a_rule_beats_the_default_table():
    made = compiled(alone(policies={"max_restarts": 4}, rules=[{"exit_codes": [128], "action": "restart"}], **REPLICA))
    assert [(rule["action"], 128 in rule["onExitCodes"]["values"]) for rule in rules(made)] == [
        ("Count", True),
        ("FailJob", True),
    ]


def test_budgets_of_zero_and_of_all_restarts_can_be_kept_and_others_not():
    def job(**budgets):
        return alone(policies={"max_restarts": 3, "budgets": budgets}, **REPLICA)

    assert rules(compiled(job(memory=0)))[0]["onExitCodes"]["values"] == [204, 205]
    assert len(rules(compiled(job(network=3)))) == 1
    assert "$.policies.budgets.memory: budget 'memory' would be a second count" in refused(job(memory=1))


def test_a_budget_of_a_rule_is_kept_when_it_says_no_more_than_the_one_number():
    def job(count):
        rule = {"exit_codes": [7], "action": "restart", "budget": "flaky"}
        return alone(policies={"max_restarts": 3, "budgets": {"flaky": count}}, rules=[rule], **REPLICA)

    assert rules(compiled(job(3)))[0]["action"] == "Count"
    assert rules(compiled(job(0)))[0]["action"] == "FailJob"
    assert "$.rules[0].budget" in refused(job(2))


@pytest.mark.parametrize(("backend", "action"), [("job", "Ignore"), ("jobset", "FailJob"), ("trainjob", "FailJob")])
def test_a_disruption_may_be_ignored_natively_and_the_note_says_what_that_costs(backend, action):
    rule = {"conditions": ["DisruptionTarget"], "action": "ignore", "budget": "evicted"}
    job = alone(backend, rules=[rule], policies={"max_restarts": 0, "budgets": {"evicted": 9}})
    made = compiled(job)
    assert rules(made)[0]["action"] == action
    assert any("budget 'evicted' has no effect" in note for note in made.notes)
    if backend == "jobset":
        (first,) = workload(made)["spec"]["failurePolicy"]["rules"]
        assert first["action"] == "RestartJobSetAndIgnoreMaxRestarts"


@pytest.mark.parametrize(
    "match", [{"exit_codes": [137]}, {"signals": [9]}, {"causes": ["user"]}, {"roles": ["worker"]}]
)
def test_ignoring_by_code_would_loop_for_ever_and_is_refused(match):
    rule = {**match, "action": "ignore", "budget": "b"}
    job = alone(rules=[rule], policies={"max_restarts": 0, "budgets": {"b": 2}})
    assert "restarted without end" in refused(job)


@pytest.mark.parametrize("backend", BACKENDS)
def test_success_of_rank_0_and_of_a_fraction(backend):
    fraction = alone(backend, nnodes=5, success={"policy": "fraction", "fraction": 0.7})
    assert child(compiled(fraction))["successPolicy"] == {"rules": [{"succeededCount": 4}]}
    first = alone(backend, nnodes=5, success={"policy": "rank0", "drain_s": 45})
    made = compiled(first)
    assert child(made)["successPolicy"] == {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
    # Kubernetes ends the others at once; they get the drain as their grace.
    assert template(made)["spec"]["terminationGracePeriodSeconds"] == 50
    assert started(made)[0][started(made)[0].index("--grace") + 1] == "45"
    assert "successPolicy" not in child(compiled(alone(backend)))
    assert "rank 0 may be in any slot" in refused(alone(backend, rdzv="c10d", success={"policy": "rank0"}))


def test_the_attempts_deadline_is_native_only_without_a_supervisor():
    assert child(compiled(alone(deadlines={"attempt_s": 60})))["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in child(compiled(spec(deadlines={"attempt_s": 60})))


@given(st.sampled_from(sorted(catalogue())))
def test_every_cause_has_one_code_of_the_published_table(slug):
    assert code_of(slug) in CAUSE_CODES.values()
    assert slugs_of(slug) == {slug} or slug == catalogue()[slug].family


def test_what_the_wrapper_is_sure_of_is_what_rules_may_name():
    said = {
        exit_codes.of_error({"types": ["ValueError"]}),
        exit_codes.of_error({"types": ["ImportError"]}),
        exit_codes.of_error({"mark": "retryable"}),
        exit_codes.of_error({"types": ["MemoryError"]}),
        exit_codes.of_error({"types": ["torch.OutOfMemoryError"]}),
        exit_codes.of_error({"types": ["OSError"], "message": "[Errno 28] No space left on device"}),
    }
    assert {CAUSE_CODES[group] for group in said if group} <= SURE
    assert len(said) == 6
