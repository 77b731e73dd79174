"""Several roles in manifests: one object or one Job a role, one service, one world of ranks, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from backends.kubernetes.made import BACKENDS, compiled, spec
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.model import Refused, SpecError

PS = {"name": "ps", "nnodes": 2, "launcher": "exec", "command": ["serve"]}
WORKER = {"name": "worker", "nnodes": 3, "nproc_per_node": 2}
ALONE: dict[str, Any] = {"unattended": True, "policies": {"max_restarts": 0}}


def roles(*given: dict[str, Any], **fields: Any) -> Any:
    return spec(**{"launcher": "plain", "roles": [*given], **fields})


def children(made: Any) -> dict[str, dict[str, Any]]:
    """The spec of each Job that makes pods, by the role that its pods bear."""
    found = []
    for item in made.objects:
        if item["kind"] == "Job":
            found.append(item["spec"])
        held = item["spec"]["template"]["spec"] if item["kind"] == "TrainingRuntime" else item.get("spec", {})
        found += [job["template"]["spec"] for job in held.get("replicatedJobs", ())]
    return {one["template"]["metadata"]["labels"]["rankfall.dev/role"]: one for one in found}


def variables(child: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in child["template"]["spec"]["containers"][0]["env"]}


def words(child: dict[str, Any]) -> list[str]:
    command: list[str] = child["template"]["spec"]["containers"][0]["command"]
    return command


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_role_has_its_own_pods_and_all_share_names_and_world(backend: str) -> None:
    made = compiled(roles(PS, WORKER, backend=backend))
    found = children(made)
    assert {role: (one["completions"], one["parallelism"]) for role, one in found.items()} == {
        "ps": (2, 2),
        "worker": (3, 3),
    }
    assert made.slots == 5
    assert len({one["template"]["spec"]["subdomain"] for one in found.values()}) == 1
    worker, ps = variables(found["worker"]), variables(found["ps"])
    assert (worker["RANKFALL_SLOT_BASE"], worker["RANKFALL_FIRST_NODE"], worker["RANKFALL_WORLD_SIZE"]) == (
        "2",
        "0",
        "6",
    )
    assert (worker["RANKFALL_PLAIN_NNODES"], worker["RANKFALL_PLAIN_NODE_RANK"]) == ("3", "$(RANKFALL_INDEX)")
    assert ("RANKFALL_OUTSIDE" in ps, "RANKFALL_FIRST_RANK" in ps, "RANKFALL_SLOT" in ps) == (True, False, False)
    # The rendezvous is in the first slot that has ranks, and everybody waits for everybody.
    assert worker["MASTER_ADDR"] == ps["MASTER_ADDR"]
    assert "worker" in worker["MASTER_ADDR"] or backend == "trainjob"
    assert words(found["ps"]).count("--wait-for") == words(found["worker"]).count("--wait-for") == 5
    assert ps["RANKFALL_HOST_PS"] in words(found["worker"])


def test_an_indexed_job_a_role_the_first_owns_the_others() -> None:
    made = compiled(roles(PS, WORKER))
    assert [item["kind"] for item in made.objects] == ["Job", "Service", "ConfigMap", "Job"]
    assert [item["metadata"]["name"] for item in made.workloads] == ["job-0a1b2c-a1-ps", "job-0a1b2c-a1-worker"]
    assert all(item["spec"]["suspend"] for item in made.workloads)
    assert made.objects[1]["metadata"]["name"] == "job-0a1b2c-a1"
    assert "rankfall.dev/role" not in made.objects[1]["metadata"]["labels"]
    assert made.selector == "rankfall.dev/run=job-0a1b2c,rankfall.dev/attempt=1"
    assert variables(children(made)["worker"])["MASTER_ADDR"] == "job-0a1b2c-a1-worker-0.job-0a1b2c-a1.default.svc"


def test_a_set_has_a_replicated_job_a_role_and_ends_when_all_have() -> None:
    (body,) = (
        item["spec"] for item in compiled(roles(PS, WORKER, backend="jobset")).objects if item["kind"] == "JobSet"
    )
    assert [job["name"] for job in body["replicatedJobs"]] == ["ps", "worker"]
    assert body["successPolicy"]["targetReplicatedJobs"] == ["ps", "worker"]


@pytest.mark.parametrize(
    ("success", "targets", "child"),
    [
        ({"role": "worker"}, ["worker"], None),
        ({"role": "worker", "policy": "fraction", "fraction": 0.5}, ["worker"], {"rules": [{"succeededCount": 2}]}),
        ({"policy": "rank0"}, ["worker"], {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}),
        ({}, ["ps", "worker"], None),
    ],
)
def test_an_unattended_set_succeeds_by_the_role_that_is_counted(success: Any, targets: list[str], child: Any) -> None:
    made = compiled(roles(PS, WORKER, backend="jobset", success=success, **ALONE))
    (body,) = (item["spec"] for item in made.objects if item["kind"] == "JobSet")
    assert body["successPolicy"]["targetReplicatedJobs"] == targets
    found = children(made)
    assert (found["worker"].get("successPolicy"), found["ps"].get("successPolicy")) == (child, None)


def test_an_unattended_rule_stands_in_the_roles_that_it_names() -> None:
    rules = [{"exit_codes": [9], "roles": ["ps"], "action": "fail"}]
    found = children(compiled(roles(PS, WORKER, backend="jobset", rules=rules, **ALONE)))
    assert ("podFailurePolicy" in found["ps"], "podFailurePolicy" in found["worker"]) == (True, False)


def test_the_role_of_the_rendezvous_is_the_one_that_trains() -> None:
    made = compiled(roles(PS, WORKER, backend="trainjob"))
    runtime, job = made.objects[0]["spec"], made.objects[1]["spec"]
    jobs = {
        one["name"]: one["template"].get("metadata", {}).get("labels")
        for one in runtime["template"]["spec"]["replicatedJobs"]
    }
    assert jobs == {"ps": None, "node": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    assert (runtime["mlPolicy"]["numNodes"], job["trainer"]["numNodes"]) == (3, 3)


def test_the_second_role_with_ranks_gets_its_node_from_the_wrapper() -> None:
    made = compiled(roles({"name": "a"}, {"name": "b", "nnodes": 2}, launcher="torchrun"))
    a, b = (words(one) for one in children(made).values())
    for command, node, role in ((a, "$(RANKFALL_INDEX)", "a"), (b, "$(RANKFALL_PLAIN_NODE_RANK)", "b")):
        assert command[command.index("--node-rank") + 1] == node
        assert command[command.index("--role") + 1] == role
        assert command[command.index("--nnodes") + 1] == "3"


def test_a_role_has_an_image_variables_and_a_pod_of_its_own() -> None:
    own = {"image": "ps:2", "pod": {"spec": {"hostIPC": True}}}
    job = roles(
        {**PS, "env": {"A": "2"}, "kubernetes": own},
        WORKER,
        env={"A": "1"},
        kubernetes={"pod": {"spec": {"hostPID": True}}},
    )
    found = children(compiled(job))
    ps, worker = found["ps"]["template"]["spec"], found["worker"]["template"]["spec"]
    assert (ps["containers"][0]["image"], worker["containers"][0]["image"]) == ("ps:2", "registry/train:1")
    assert (ps["hostIPC"], ps["hostPID"], worker.get("hostIPC"), worker["hostPID"]) == (True, True, None, True)
    assert (variables(found["ps"])["A"], variables(found["worker"])["A"]) == ("2", "1")


@pytest.mark.parametrize(
    ("given", "fields", "said"),
    [
        ((PS, WORKER), ALONE, r"\$\.roles: several roles are several Jobs.*backend job"),
        ((PS, WORKER), {"ttl_s": 60}, r"\$\.ttl_s: .*backend job"),
        ((PS, WORKER), {"kubernetes": {"queue": "gold"}}, r"\$\.kubernetes\.queue: .*backend job"),
        ((PS, WORKER), {"backend": "trainjob", "kubernetes": {"runtime": "torch"}}, r"\$\.roles: runtime 'torch'"),
        (({"name": "w"}, {"name": "node"}), {"backend": "trainjob"}, r"\$\.roles\[1\]\.name: .*'node'"),
        (({"name": "a"}, {"name": "b"}), {"inside": "off"}, r"\$\.inside: .*role b"),
        (({"name": "a"}, {"name": "b", "kubernetes": {"image": "b:1"}}), {"launcher": "auto"}, r"\$\.roles: role b would be"),
        (({"name": "a"}, {"name": "b", "command": ["./b"]}), {"launcher": "auto"}, r"\$\.roles: role b would be started by plain"),
    ],
)  # fmt: skip
def test_jobapi_s27_refusal_01_what_several_roles_cannot_have(given: Any, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        compiled(roles(*given, **fields))
    assert caught.value.hint


def test_jobapi_s27_refusal_02_two_roles_make_two_classes_of_failure_too() -> None:
    rules = [
        {"exit_codes": [3], "roles": ["ps"], "action": "fail"},
        {"conditions": ["DisruptionTarget"], "roles": ["worker"], "action": "ignore", "budget": "evicted"},
    ]
    with pytest.raises(Refused, match=r"two classes.*needs JobSet 0\.10"):
        compiled(
            roles(PS, WORKER, backend="jobset", unattended=True, rules=rules, policies={"budgets": {"evicted": 9}})
        )


def test_what_is_wrong_with_a_roles_pod_names_the_role() -> None:
    own = {"kubernetes": {"pod": {"spec": {"subdomain": "x"}}}}
    with pytest.raises(SpecError, match=r"subdomain: cannot be set.*\(role ps\)"):
        compiled(roles({**PS, **own}, WORKER))


@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s27_refusal_09_names_are_short_enough_for_the_longest_role(backend: str) -> None:
    made = compiled(roles({**PS, "name": "p" * 20}, WORKER, backend=backend), run=f"{'m' * 40}-0a1b2c")
    hosts = [address.partition(".")[0] for address in words(children(made)["worker"]) if address.startswith("m")]
    assert hosts
    assert all(len(f"{host}-x7k2p") <= 63 for host in hosts)


def test_a_role_that_has_done_its_work_has_no_job_and_is_not_waited_for() -> None:
    made = compiled(roles(WORKER, {**PS, "name": "prepare"}), left_out=["prepare"])
    assert [item["metadata"]["name"] for item in made.workloads] == ["job-0a1b2c-a1-worker"]
    assert made.slots == 3
    child = children(made)["worker"]
    assert not any("prepare" in word for word in words(child))
    assert variables(child)["RANKFALL_SLOT_BASE"] == "0"


def test_only_the_job_of_a_role_of_scope_replica_replaces_its_pods() -> None:
    evaluate = {"name": "eval", "nnodes": 2, "launcher": "exec", "restart_scope": "replica"}
    made = children(compiled(roles(WORKER, evaluate, policies={"max_restarts": 4})))
    assert {role: child["backoffLimitPerIndex"] for role, child in made.items()} == {"worker": 0, "eval": 4}


def test_nobody_waits_for_the_name_of_a_slot_of_scope_replica_which_may_have_ended() -> None:
    evaluate = {"name": "eval", "nnodes": 2, "launcher": "exec", "restart_scope": "replica"}
    made = children(compiled(roles(WORKER, evaluate)))
    assert any("a1-worker-0." in word for word in words(made["worker"]))
    assert not any("a1-eval-" in word for role in made for word in words(made[role]))


def test_a_plan_without_a_role_is_without_its_job() -> None:
    place = ClusterPlan(
        backend="job",
        object="x-a1-ps",
        jobs={"ps": "x-a1-ps", "worker": "x-a1-worker"},
        context="c",
        namespace="n",
        selector="a=b",
        container="main",
        token="",
        bases={"ps": 0, "worker": 2},
    )
    assert place.workloads == ("x-a1-ps", "x-a1-worker")
    left = Plan(attempt=2, launcher="plain", slots=(), cluster=place).without(["ps"]).cluster
    assert left is not None
    assert (left.object, left.workloads) == ("x-a1-worker", ("x-a1-worker",))
    assert (left.slot_of("worker", 1), left.slot_of("ps", 1), left.slot_of(None, 1), left.slot_of("ps", None)) == (
        3,
        1,
        None,
        None,
    )
    assert [left.role_of(slot) for slot in (0, 1, 2, 9)] == ["ps", "ps", "worker", "worker"]
