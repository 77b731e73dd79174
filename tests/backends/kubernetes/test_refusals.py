"""What must be refused before anything is created: each number of the list, with field, backend, version needed and the alternative."""

from __future__ import annotations

import re
from typing import Any

import pytest

from backends.kubernetes.made import BACKENDS, KINDS, SERVED, compiled, container, spec
from rankfall.backends.kubernetes.manifests.request import ServedFacts
from rankfall.model import Refused, SpecError

ALONE: dict[str, Any] = {"unattended": True, "policies": {"max_restarts": 0}}


def refusal(job: Any, *, served: ServedFacts = SERVED, **options: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        compiled(job, served=served, **options)
    assert caught.value.hint
    return caught.value.message, caught.value.hint


def test_jobapi_s27_refusal_01_more_than_one_role():
    message, hint = refusal(spec(roles=[{"name": "ps"}, {"name": "worker"}], launcher="plain", **ALONE))
    assert message.startswith("$.roles: several roles are several Jobs")
    assert "backend: jobset" in hint
    with pytest.raises(SpecError, match=r"\$\.rules\[0\]\.roles: there is no role 'ps'"):
        spec(rules=[{"roles": ["ps"], "action": "fail"}])


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_jobapi_s27_refusal_02_more_than_two_classes_of_failure(backend):
    rules = [
        {"exit_codes": [3], "action": "fail"},
        {"conditions": ["DisruptionTarget"], "action": "ignore", "budget": "evicted"},
    ]
    job = spec(backend=backend, unattended=True, rules=rules, policies={"budgets": {"evicted": 9}})
    message, hint = refusal(job)
    assert re.search(rf"\$\.rules: .*two classes.*backend {backend}; needs JobSet 0\.10", message)
    assert "leave unattended out" in hint


@pytest.mark.parametrize(("backend", "needs"), [("jobset", "needs JobSet 0.12"), ("trainjob", "backend trainjob)")])
@pytest.mark.parametrize("unattended", [False, True])
def test_jobapi_s27_refusal_03_one_replica_alone(backend, needs, unattended):
    message, hint = refusal(spec(backend=backend, restart_scope="replica", launcher="exec", unattended=unattended))
    assert message.startswith("$.restart_scope: ")
    assert needs in message
    assert "backend: job" in hint


@pytest.mark.parametrize(("backend", "needs"), [("jobset", "needs JobSet 0.12"), ("trainjob", "backend trainjob)")])
def test_jobapi_s27_refusal_04_elastic(backend, needs):
    message, hint = refusal(spec(backend=backend, nnodes=2, nnodes_max=4))
    assert message.startswith("$.nnodes_max: ")
    assert needs in message
    assert "fixed number" in hint


def test_jobapi_s27_refusal_04_elastic_without_a_supervisor():
    message, hint = refusal(spec(nnodes=2, nnodes_max=4, **ALONE))
    assert "$.nnodes_max: MIN:MAX nodes need a supervisor (backend job)" in message
    assert "leave unattended out" in hint


@pytest.mark.parametrize("minor", [32, 30])
@pytest.mark.parametrize("policy", [{"policy": "rank0"}, {"policy": "fraction", "fraction": 0.5}])
@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s27_refusal_05_a_success_policy_on_an_older_server(backend, policy, minor):
    message, _ = refusal(spec(backend=backend, success=policy, **ALONE), served=old(minor))
    assert re.search(rf"\$\.success\.policy: .*backend {backend}; needs Kubernetes 1\.33", message)
    compiled(spec(backend=backend, success=policy), served=old(minor))


@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s27_refusal_05_a_pod_failure_policy_on_an_older_server(backend):
    job = spec(backend=backend, rules=[{"exit_codes": [3], "action": "fail"}], **ALONE)
    message, _ = refusal(job, served=old(30))
    assert re.search(rf"\$\.rules: .*backend {backend}; needs Kubernetes 1\.31", message)
    compiled(job, served=old(31))


def old(minor: int) -> ServedFacts:
    return ServedFacts(version=(1, minor), kinds=KINDS, pod_overrides="podSpecOverrides")


@pytest.mark.parametrize("by", ["affinity", "exclude_nodes", "argument"])
def test_jobapi_s27_refusal_06_affinity_on_a_shared_runtime_of_trainer_2_0(by):
    section = {"affinity": {"affinity": {"podAffinity": {}}}, "exclude_nodes": {"exclude_nodes": ["n1"]}}.get(by, {})
    options = {"excluded_nodes": ["n1"]} if by == "argument" else {}
    job = spec(backend="trainjob", kubernetes={"runtime": "torch-distributed", **section})
    message, hint = refusal(job, **options)
    assert message.startswith("$.kubernetes.affinity: " if by == "affinity" else "$.kubernetes.exclude_nodes: ")
    assert "backend trainjob" in message
    assert "leave kubernetes.runtime out" in hint
    newer = ServedFacts(version=(1, 34), kinds=KINDS, pod_overrides="podTemplateOverrides")
    compiled(job, served=newer, **options)
    compiled(spec(backend="trainjob", kubernetes=section), **options)


@pytest.mark.parametrize("runtime", [{}, {"runtime": "torch-distributed"}])
def test_jobapi_s27_refusal_07_a_deadline_on_an_unattended_trainjob(runtime):
    fields = {"deadlines": {"attempt_s": 60}}
    message, hint = refusal(spec(backend="trainjob", kubernetes=runtime, **fields, **ALONE))
    assert "$.deadlines.attempt_s: needs a supervisor (backend trainjob" in message
    assert "leave unattended out" in hint
    compiled(spec(backend="trainjob", kubernetes=runtime, **fields))


@pytest.mark.parametrize("runtime", [{}, {"runtime": "torch-distributed"}])
def test_jobapi_s27_refusal_07_a_ttl_on_an_unattended_trainjob(runtime):
    message, hint = refusal(spec(backend="trainjob", kubernetes=runtime, ttl_s=60, **ALONE))
    assert "$.ttl_s: no version of a TrainJob has a time to live" in message
    assert "use backend jobset" in hint
    compiled(spec(backend="trainjob", kubernetes=runtime, ttl_s=60))


def test_jobapi_s27_refusal_08_a_fraction_whose_count_changes_with_the_size():
    with pytest.raises(SpecError, match=r"\$\.success\.fraction: .*would change with the size"):
        spec(nnodes=2, nnodes_max=4, success={"policy": "fraction", "fraction": 0.5})


def test_jobapi_s27_refusal_10_rank_0_where_its_slot_may_leave():
    with pytest.raises(SpecError, match=r"\$\.success\.policy: rank0 does not work with MIN:MAX") as caught:
        spec(nnodes=2, nnodes_max=4, success={"policy": "rank0"})
    assert "fixed number" in (caught.value.hint or "")


@pytest.mark.parametrize("codes", [[0], [256], [-1], [4, 3], [3, 3]])
def test_jobapi_s27_refusal_11_codes_that_no_rule_can_hold(codes):
    with pytest.raises(SpecError, match=r"\$\.rules\[0\]\.exit_codes"):
        spec(rules=[{"exit_codes": codes, "action": "fail"}], **ALONE)


def test_jobapi_s27_refusal_11_more_than_20_compiled_rules():
    rules = [{"exit_codes": [code], "action": "fail"} for code in range(3, 23)]
    policies = {"max_restarts": 1, "budgets": {"memory": 0}}
    message, hint = refusal(
        spec(unattended=True, restart_scope="replica", launcher="exec", rules=rules, policies=policies)
    )
    assert "$.rules: 22 native rules are more than 20 (backend job)" in message
    assert "one rule" in hint
    with pytest.raises(SpecError, match="21 rules are more than 20"):
        spec(rules=[*rules, {"exit_codes": [30], "action": "fail"}])
    many = [f"example.com/c{number}" for number in range(21)]
    message, _ = refusal(spec(rules=[{"conditions": many, "action": "fail"}], **ALONE))
    assert "$.rules[0].conditions: a native rule has at most 20 conditions" in message


def test_jobapi_s27_refusal_11_every_compiled_list_is_sorted_without_repeats():
    made = compiled(spec(rules=[{"causes": ["memory", "gpu_oom", "memory"], "action": "fail"}], **ALONE))
    values = made.objects[0]["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert values == sorted(set(values))
    assert 0 not in values


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"pod": {"spec": {"restartPolicy": "OnFailure"}}}, "$.kubernetes.pod.spec.restartPolicy"),
        ({"pod": {"ttlSecondsAfterFinished": 5}}, "$.kubernetes.pod.ttlSecondsAfterFinished"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s27_refusal_12_templates_that_undo_the_rules(backend, fields, path):
    with pytest.raises(SpecError) as caught:
        compiled(spec(backend=backend, kubernetes=fields))
    assert caught.value.path == path


@pytest.mark.parametrize("where", ["env", "env_from"])
def test_jobapi_s27_refusal_12_reserved_variables(where):
    source = {"env_from": {"PET_NNODES": {"secret": "s", "key": "k"}}}
    fields = {"env": {"PET_NNODES": "4"}} if where == "env" else {"kubernetes": source}
    with pytest.raises(SpecError, match="PET_NNODES is reserved by Kubeflow Trainer on backend trainjob"):
        spec(backend="trainjob", **fields)
    spec(backend="job", **fields)


def test_jobapi_s27_refusal_12_a_container_that_cannot_be_found():
    pod = {"spec": {"containers": [{"name": "trainer", "securityContext": {}}]}}
    with pytest.raises(SpecError, match=r"containers\[0\]\.name: there is no container 'trainer'") as caught:
        compiled(spec(kubernetes={"pod": pod}))
    assert "'main'" in (caught.value.hint or "")
    message, _ = refusal(spec(backend="trainjob", kubernetes={"container": "trainer"}))
    assert "$.kubernetes.container: there is no container 'trainer'" in message


def test_jobapi_s27_refusal_13_ignoring_without_a_budget():
    with pytest.raises(SpecError, match=r"\$\.rules\[0\]\.budget: is missing: action ignore") as caught:
        spec(rules=[{"exit_codes": [3], "action": "ignore"}])
    assert "name a budget" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("backend", "kinds", "named"),
    [
        (
            "jobset",
            {"Job"},
            "does not serve JobSet (backend jobset; needs JobSet (jobset.x-k8s.io/v1alpha2), installed in the cluster)",
        ),
        ("trainjob", {"Job", "JobSet"}, "does not serve TrainJob"),
        ("trainjob", {"TrainJob"}, "serves no TrainingRuntime"),
    ],
)
def test_a_kind_that_is_not_served_is_refused(backend, kinds, named):
    message, _ = refusal(spec(backend=backend), served=ServedFacts(version=(1, 34), kinds=frozenset(kinds)))
    assert named in message


def test_a_server_without_indexed_jobs_is_refused():
    message, _ = refusal(spec(), served=ServedFacts(version=(1, 23), kinds=KINDS))
    assert "$.backend: the server is Kubernetes 1.23" in message
    assert "needs Kubernetes 1.24" in message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_missing_image_is_refused(backend):
    message, hint = refusal(spec(backend=backend, kubernetes={"image": None}))
    assert "$.kubernetes.image: is missing" in message
    assert "--image" in hint


def test_all_problems_are_told_at_once():
    pods = {"image": None, "runtime": "torch"}
    message, hint = refusal(spec(backend="jobset", restart_scope="replica", launcher="exec", kubernetes=pods))
    for path in ("$.kubernetes.image", "$.restart_scope", "$.kubernetes.runtime"):
        assert path in message
    assert hint.count("backend: job") == 1


def test_jobapi_s27_refusal_03_of_one_role():
    eval_ = {"name": "eval", "launcher": "exec", "restart_scope": "replica"}
    message, _ = refusal(spec(backend="jobset", roles=[{"name": "train"}, eval_]))
    assert "$.roles[1].restart_scope: one replica alone cannot be restarted" in message
    assert "JobSet 0.12" in message


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"action": "restart_elsewhere"}, "action"),
        ({"action": "restart", "exclude_node": True}, "exclude_node"),
    ],
)
def test_a_replica_of_a_job_is_not_kept_off_a_node(rule, field):
    job = {"restart_scope": "replica", "launcher": "exec", "nnodes": 2, "rules": [{"exit_codes": [7], **rule}]}
    message, hint = refusal(spec(**job))
    assert f"$.rules[0].{field}: a pod that is replaced alone may be placed on the same node again" in message
    assert "restart_scope: gang" in hint


def test_a_gang_of_a_job_is_not_restarted_by_kubernetes():
    message, hint = refusal(spec(unattended=True))
    assert "$.policies.max_restarts: a Job cannot restart its whole gang by itself (backend job)" in message
    assert "backend: jobset" in hint


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"deadlines": {"total_s": 60}}, "$.deadlines.total_s"),
        ({"deadlines": {"startup_s": 60}}, "$.deadlines.startup_s"),
        ({"policies": {"max_restarts": 0, "hang_timeout_s": 60}}, "$.policies.hang_timeout_s"),
        ({"policies": {"max_restarts": 0, "backoff_s": 60}}, "$.policies.backoff_s"),
        ({"policies": {"max_restarts": 0, "settle_quiet_s": 5}}, "$.policies.settle_quiet_s"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_only_a_supervisor_can_keep_is_refused_without_one(backend, fields, path):
    message, _ = refusal(spec(backend=backend, **{**ALONE, **fields}))
    assert f"{path}: needs a supervisor (backend {backend}" in message


def test_a_relative_folder_is_refused():
    message, _ = refusal(spec(cwd="code"))
    assert "$.cwd: 'code' is not an absolute path" in message


@pytest.mark.parametrize("launcher", ["auto", "plain"])
def test_with_inside_off_nobody_could_start_several_ranks(launcher):
    message, hint = refusal(spec(inside="off", launcher=launcher, nproc_per_node=2))
    assert "$.nproc_per_node: 2 ranks" in message
    assert "launcher torchrun" in hint
    compiled(spec(inside="off", launcher="torchrun", nproc_per_node=2))


@pytest.mark.parametrize(("field", "value"), [("runtime", "torch"), ("runtime_kind", "TrainingRuntime")])
def test_a_runtime_where_nothing_has_one_is_refused(field, value):
    message, _ = refusal(spec(backend="job", kubernetes={field: value}))
    assert f"$.kubernetes.{field}: only a TrainJob has a runtime (backend job)" in message
    message, _ = refusal(spec(backend="trainjob", kubernetes={"runtime_kind": "TrainingRuntime"}))
    assert "$.kubernetes.runtime_kind: no runtime is named" in message


def test_a_bundle_that_no_config_map_holds_is_refused():
    message, _ = refusal(spec(), inside_zip=b"x" * 1_000_001)
    assert "$.inside: " in message
    compiled(spec(inside="off"), inside_zip=b"x" * 1_000_001)


@pytest.mark.parametrize(
    "key", ["kueue.x-k8s.io/queue-name", "batch.kubernetes.io/job-name", "job-name", "app.kubernetes.io/managed-by"]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_that_somebody_else_writes_are_refused(backend, key):
    message, _ = refusal(spec(backend=backend, kubernetes={"labels": {key: "x"}}))
    assert message.startswith(f"$.kubernetes.labels.{key}: ")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_log_store_that_nobody_in_the_pod_would_write_to(backend):
    section = {"workspace": {"claim": "team"}, "log_store": "volume:/workspace/logs"}
    message, hint = refusal(spec(backend=backend, kubernetes=section, inside="off", launcher="exec"))
    assert message.startswith(
        "$.kubernetes.log_store: with inside: off, no code of Rankfall in the pod could write there"
    )
    assert "inside: auto" in hint


def test_a_log_store_is_the_wrappers():
    section = {"workspace": {"claim": "team"}, "log_store": "volume:/workspace/lo$gs"}
    command = container(compiled(spec(kubernetes=section)))["command"]
    assert command[command.index("--log-store") + 1] == "/workspace/lo$$gs"
