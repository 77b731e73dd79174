"""The JobSet as a manifest: complete without webhooks, and safe against its own controller."""

from __future__ import annotations

import pytest

from backends.kubernetes.made import child, compiled, spec, template, workload


def test_jobapi_s24_nothing_is_left_to_webhooks():
    made = compiled(spec(backend="jobset", nnodes=2, role="trainer"))
    body = workload(made)["spec"]
    # The controller looks into these two without asking whether they are there.
    assert body["network"] == {
        "enableDNSHostnames": True,
        "publishNotReadyAddresses": True,
        "subdomain": "job-0a1b2c-a1",
    }
    assert body["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    assert body["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    (role,) = body["replicatedJobs"]
    assert (role["name"], role["replicas"]) == ("trainer", 1)
    assert child(made)["completionMode"] == "Indexed"
    assert template(made)["spec"]["restartPolicy"] == "Never"
    assert template(made)["spec"]["subdomain"] == "job-0a1b2c-a1"


def test_supervised_the_set_never_restarts_by_itself():
    made = compiled(spec(backend="jobset", policies={"max_restarts": 7}))
    assert workload(made)["spec"]["failurePolicy"] == {"maxRestarts": 0, "restartStrategy": "BlockingRecreate"}


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
@pytest.mark.parametrize("unattended", [False, True])
def test_jobapi_s21_a_gang_restart_waits_until_the_old_gang_is_gone(backend, unattended):
    made = compiled(spec(backend=backend, unattended=unattended, policies={"max_restarts": 2}))
    first = made.objects[0]["spec"]
    policy = (first["template"]["spec"] if backend == "trainjob" else first)["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"
    assert policy["maxRestarts"] == (2 if unattended else 0)
    assert child(made).get("backoffLimit", 0) == 0


@pytest.mark.parametrize("unattended", [False, True])
def test_a_ttl_is_the_sets_and_never_its_childs(unattended):
    made = compiled(spec(backend="jobset", ttl_s=60, unattended=unattended))
    assert workload(made)["spec"]["ttlSecondsAfterFinished"] == 60
    assert "ttlSecondsAfterFinished" not in child(made)
    assert "suspend" not in child(made)


def test_each_rule_of_the_set_has_a_name_of_its_own():
    job = spec(
        backend="jobset",
        unattended=True,
        deadlines={"attempt_s": 90.5},
        rules=[{"exit_codes": [3], "action": "fail"}],
    )
    made = compiled(job)
    policy = workload(made)["spec"]["failurePolicy"]
    assert policy["rules"] == [
        {"name": "byPod", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
        {"name": "byDeadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
    ]
    assert child(made)["activeDeadlineSeconds"] == 91
    assert child(made)["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [3]
