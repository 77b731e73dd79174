"""What a spec alone can tell: each refusal names the field and what is allowed or to be used instead."""

from __future__ import annotations

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, SpecError, Success, spec_from

JOB = {"command": ["t"]}
RULE = {"exit_codes": [3], "action": "restart"}


def refusal(data: dict[str, object]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        spec_from(JOB | data)
    return caught.value


@pytest.mark.parametrize("folder", ["", "a\0b"])
def test_a_log_dir_that_is_no_path_is_refused(folder: str) -> None:
    assert "$.log_dir: is empty or holds NUL" in str(refusal({"command": ["a"], "log_dir": folder}))


@pytest.mark.parametrize(
    ("data", "path", "word"),
    [
        ({"success": {"policy": "some"}}, "$.success.policy", "rank0"),
        ({"success": {"policy": "fraction"}}, "$.success.fraction", "0.8"),
        ({"success": {"policy": "all", "fraction": 0.5}}, "$.success.fraction", "policy: fraction"),
        ({"success": {"policy": "fraction", "fraction": 1.5}}, "$.success.fraction", "<= 1"),
        ({"success": {"drain": 3}}, "$.success.drain", "drain_s"),
        ({"deadlines": {"total_s": 0}}, "$.deadlines.total_s", "> 0"),
        ({"deadlines": {"total": 1}}, "$.deadlines.total", "total_s"),
        ({"suspend": "yes"}, "$.suspend", "bool"),
        ({"notify": {"targets": [{}]}}, "$.notify.targets[0]", "exactly one of: webhook, email, command"),
        (
            {"notify": {"targets": [{"webhook": "https://h/", "email": "a"}]}},
            "$.notify.targets[0]",
            "has webhook and email",
        ),
        ({"notify": {"targets": [{"webhook": "https://h/\r\nX: y"}]}}, "$.notify.targets[0].webhook", "visible ASCII"),
        ({"notify": {"targets": [{"webhook": "file:///etc/passwd"}]}}, "$.notify.targets[0].webhook", "https://HOST"),
        ({"notify": {"targets": [{"webhook": "https://h/***"}]}}, "$.notify.targets.0.webhook", "masked"),
        ({"notify": {"targets": [{"email": "-Xa@example.org"}]}}, "$.notify.targets[0].email", "team@example.org"),
        ({"notify": {"targets": [{"email": "a@example.org\nBcc: b"}]}}, "$.notify.targets[0].email", "not an address"),
        ({"notify": {"targets": [{"command": ["a\0"]}]}}, "$.notify.targets[0].command", "NUL"),
        ({"notify": {"targets": [{"email": "a", "shape": "irc"}]}}, "$.notify.targets[0].shape", "json, slack, teams"),
        ({"notify": {"targets": [{"email": "a"}], "events": []}}, "$.notify.events", "[failure, end]"),
        ({"notify": {"targets": [{"email": "a"}], "events": ["fail"]}}, "$.notify.events[0]", "did you mean failure?"),
        ({"notify": {"targets": [{"email": "a"}], "link": "https://h/{pod}"}}, "$.notify.link", "{attempt}"),
        ({"notify": {"targets": [{"email": "a"}], "link": "h/{run}"}}, "$.notify.link", "https://HOST"),
        ({"notify": {"targets": [{"email": "a"}] * 9}}, "$.notify.targets", "more than 8"),
        ({"notify": {"targets": [{"email": "a"}]}, "unattended": True, "backend": "job"}, "$.notify", "no supervisor"),
        ({"ttl_s": -1}, "$.ttl_s", ">= 0"),
        ({"restart_scope": "slot"}, "$.restart_scope", "replica"),
        ({"restart_scope": "replica", "nnodes": 2}, "$.restart_scope", "launcher: exec"),
        ({"restart_scope": "replica", "nnodes": 2, "launcher": "torchrun"}, "$.restart_scope", "one world"),
        ({"restart_scope": "replica", "nnodes": 1, "nnodes_max": 4}, "$.restart_scope", "cannot join it again"),
        (
            {"roles": [{"name": "w"}, {"name": "e", "restart_scope": "replica", "launcher": "plain"}]},
            "$.roles[1].restart_scope",
            "restart_scope: gang",
        ),
        ({"rules": [RULE, {"action": "restart"}]}, "$.rules[1]", "exit_codes"),
        ({"rules": [{"exit_codes": [3]}]}, "$.rules[0]", "action"),
        ({"rules": [RULE | {"action": "shrink"}]}, "$.rules[0].action", "restart_elsewhere"),
        ({"rules": [RULE | {"exit_code": 3}]}, "$.rules[0].exit_code", "exit_codes"),
        ({"rules": [RULE | {"causes": ["oom"]}]}, "$.rules[0].causes", "memory"),
        ({"rules": [RULE | {"roles": ["ps"]}]}, "$.rules[0].roles", "worker"),
        ({"rules": [RULE | {"signals": [65]}]}, "$.rules[0].signals", "1-64"),
        ({"rules": [RULE | {"reasons": ["OOM Killed"]}]}, "$.rules[0].reasons", "OOMKilled"),
        ({"rules": [RULE | {"budget": "app"}]}, "$.rules[0].budget", "budgets"),
        ({"rules": [RULE | {"action": "fail", "budget": "user"}]}, "$.rules[0].budget", "fail"),
        ({"rules": [RULE | {"action": "fail", "exclude_node": True}]}, "$.rules[0].exclude_node", "restart_elsewhere"),
        ({"policies": {"budgets": {"memoru": 1}}}, "$.policies.budgets.memoru", "memory"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_its_path(data: dict[str, object], path: str, word: str) -> None:
    error = refusal(data)
    assert error.path == path
    assert word in str(error)


# -- job-api.md section 7.4


@pytest.mark.parametrize("codes", [[0], [256], [-1], [3, 3], [7, 3]])
def test_jobapi_refusal_11_codes_outside_their_range_unsorted_or_twice(codes: list[int]) -> None:
    error = refusal({"rules": [{"exit_codes": codes, "action": "restart"}]})
    assert error.path == "$.rules[0].exit_codes"
    assert "1-255" in str(error) or "write: [3" in str(error)


def test_jobapi_refusal_11_more_than_20_rules() -> None:
    rules = [{"exit_codes": [code], "action": "restart"} for code in range(1, 22)]
    assert refusal({"rules": rules}).path == "$.rules"
    assert len(spec_from(JOB | {"rules": rules[:20]}).rules) == 20


def test_jobapi_refusal_12_a_pod_template_that_works_against_the_rules() -> None:
    pod: dict[str, object]
    for pod, path, word in (
        ({"spec": {"restartPolicy": "OnFailure"}}, "$.kubernetes.pod.spec.restartPolicy", "rules"),
        ({"ttlSecondsAfterFinished": 5}, "$.kubernetes.pod.ttlSecondsAfterFinished", "ttl_s"),
        ({"spec": {"activeDeadlineSeconds": 5}}, "$.kubernetes.pod.spec.activeDeadlineSeconds", "deadlines.attempt_s"),
        ({"spec": {"containers": [{"image": "x"}]}}, "$.kubernetes.pod.spec.containers[0].name", "it names the object"),
    ):
        error = refusal({"rules": [RULE], "kubernetes": {"pod": pod}})
        assert error.path == path
        assert word in str(error)


def test_jobapi_refusal_12_the_trainers_own_variables() -> None:
    pod = {"spec": {"containers": [{"name": "node", "env": [{"name": "PET_NNODES", "value": "2"}]}]}}
    for data, path in (
        ({"env": {"PET_NNODES": "2"}}, "$.env.PET_NNODES"),
        (
            {"kubernetes": {"env_from": {"PET_NNODES": {"secret": "s", "key": "k"}}}},
            "$.kubernetes.env_from.PET_NNODES",
        ),
        ({"kubernetes": {"pod": pod}}, "$.kubernetes.pod.spec.containers[0].env[0]"),
    ):
        error = refusal({"backend": "trainjob"} | data)
        assert error.path == path
        assert "backend: job" in str(error)
        assert spec_from(JOB | data | {"backend": "job"})


def test_jobapi_refusal_13_ignore_without_a_budget_would_never_end() -> None:
    error = refusal({"rules": [RULE | {"action": "ignore"}]})
    assert error.path == "$.rules[0].budget"
    assert "policies.budgets" in str(error)


def test_jobapi_refusal_10_rank_0_of_an_elastic_job_may_leave() -> None:
    error = refusal({"nnodes": 2, "nnodes_max": 4, "success": {"policy": "rank0"}})
    assert error.path == "$.success.policy"
    assert "all" in str(error)


def test_jobapi_refusal_8_a_fraction_whose_count_changes_with_the_size() -> None:
    size = {"nnodes": 2, "nnodes_max": 4}
    assert refusal(size | {"success": {"policy": "fraction", "fraction": 0.5}}).path == "$.success.fraction"
    assert spec_from(JOB | size | {"success": {"policy": "fraction", "fraction": 0.25}})


# -- the section kubernetes


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"namespace": "Team_A"}, "namespace"),
        ({"container": ""}, "container"),
        ({"queue": "a/b"}, "queue"),
        ({"image": "a b"}, "image"),
        ({"image_pull_policy": "Sometimes"}, "image_pull_policy"),
        ({"image_pull_secrets": ["x_y"]}, "image_pull_secrets[0]"),
        ({"exclude_nodes": ["N1"]}, "exclude_nodes[0]"),
        ({"env_from": {"A": {"key": "k"}}}, "env_from.A"),
        ({"env_from": {"A": {"secret": "s", "config_map": "c", "key": "k"}}}, "env_from.A"),
        ({"env_from": {"A": {"secret": "s", "key": ""}}}, "env_from.A.key"),
        ({"env_from": {"RANKFALL_RUN": {"secret": "s", "key": "k"}}}, "env_from.RANKFALL_RUN"),
        ({"env_from": {"1": {"secret": "s", "key": "k"}}}, "env_from.1"),
        ({"env_from": {"B": {"secret": "s", "key": "k"}}}, "env_from.B"),
        ({"resources": {"gpus": -1}}, "resources.gpus"),
        ({"resources": {"requests": {"cpu": "many"}}}, "resources.requests.cpu"),
        ({"resources": {"limits": {"a b": "1"}}}, "resources.limits.a b"),
        ({"resources": {"gpus": 2, "limits": {"nvidia.com/gpu": "1"}}}, "resources.limits.nvidia.com/gpu"),
        ({"resources": {"gpu_resource": "a b"}}, "resources.gpu_resource"),
        ({"labels": {"rankfall.dev/run": "x"}}, "labels.rankfall.dev/run"),
        ({"labels": {"a": "b c"}}, "labels.a"),
        ({"annotations": {"a b": "c"}}, "annotations.a b"),
        ({"volumes": [{"emptyDir": {}}]}, "volumes[0].name"),
        ({"volumes": [{"name": "a"}, {"name": "a"}]}, "volumes[1].name"),
        ({"volume_mounts": [{"name": "a"}]}, "volume_mounts[0]"),
        ({"volume_mounts": [{"name": "a", "mountPath": "/rankfall-run/x"}]}, "volume_mounts[0].mountPath"),
        ({"pod": {"kind": "Pod"}}, "pod.kind"),
        ({"pod": {"spec": []}}, "pod.spec"),
        ({"pod": {"metadata": {"labels": {"rankfall.dev/role": "x"}}}}, "pod.metadata.labels.rankfall.dev/role"),
        ({"master_port": 70000}, "master_port"),
        ({"imege": "x"}, "imege"),
    ],
)
def test_the_section_kubernetes_is_checked_field_by_field(section: dict[str, object], path: str) -> None:
    assert refusal({"env": {"B": "1"}, "kubernetes": section}).path == f"$.kubernetes.{path}"


def test_a_whole_job_file_is_read_and_survives_its_own_json() -> None:
    text = """
command: [train.py]
backend: job
nnodes: 4
success: {policy: fraction, fraction: 0.75, drain_s: 5}
deadlines: {total_s: 3600, startup_s: 600}
policies: {budgets: {app: 1, network: 5}}
rules:
  - {exit_codes: [3, 4], action: restart, budget: app}
  - {conditions: [DisruptionTarget], reasons: [Evicted], action: restart_elsewhere}
suspend: true
ttl_s: 86400
kubernetes:
  image: trainer:1
  namespace: team-a
  env_from: {TOKEN: {secret: hub, key: token}}
  resources: {gpus: 8, requests: {cpu: "16"}, limits: {memory: 64Gi}}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  volume_mounts: [{name: data, mountPath: /data}]
  labels: {team.example/name: a}
  pod: {spec: {hostIPC: true, containers: [{name: main, securityContext: {privileged: false}}]}}
"""
    spec = spec_from(yaml.safe_load(text))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    assert spec.kubernetes.resources.gpus == 8
    assert spec.rules[1].action == "restart_elsewhere"


@given(st.integers(1, 1000), st.integers(1, 100))
def test_a_fraction_is_counted_exactly(slots: int, percent: int) -> None:
    wanted = Success(policy="fraction", fraction=percent / 100).wanted(slots)
    assert wanted == -(-slots * percent // 100)


def test_policies_all_and_rank0_want_all_and_one() -> None:
    assert (Success().wanted(5), Success(policy="rank0").wanted(5)) == (5, 1)
