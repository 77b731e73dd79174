"""What others in a cluster do to a run that trains: a queue suspends it, an administrator evicts a pod."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.run_world import World
from cluster.waiting_job import go, pod, runs, waiting
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home")


def suspend(world: World, kind: str, name: str, *, on: bool) -> None:
    """As a queue does it."""
    patch = json.dumps({"spec": {"suspend": on}})
    world.kubectl("patch", kind, name, "--namespace", world.namespace, "--type", "merge", "--patch", patch)


def reaches(world: World, run: str, state: str, *, attempts: int) -> None:
    def there() -> bool:
        found = world.document("status", run)
        return (found["state"], found["attempts"]) == (state, attempts)

    wait_until(there, timeout=90, what=state)


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_launch_s10_a_job_that_somebody_suspends_is_no_failure_and_goes_on_when_it_is_released(world, backend):
    assert world.run(waiting(world, backend=backend), "--detach").returncode == 0
    run = runs(world)
    suspend(world, backend, f"{run}-a1", on=True)
    reaches(world, run, "suspended", attempts=1)
    assert "by a queue or a user in the cluster" in world.document("status", run)["reason"]
    suspend(world, backend, f"{run}-a1", on=False)
    runs(world, attempt=2)
    go(world, attempt=2)
    done = world.cli("wait", run)
    assert done.returncode == 0, done.stderr
    status = world.document("status", run)
    assert (status["state"], status["attempts"], status["restarts"]["count"]) == ("succeeded", 2, 0)


def test_launch_s10_what_a_queue_preempts_waits_for_the_queue_to_admit_it_again(world):
    spec = waiting(world)
    spec["kubernetes"]["queue"] = "team"
    assert world.run(spec, "--detach").returncode == 0
    run = world.only_run().name
    reaches(world, run, "queued", attempts=1)
    suspend(world, "job", f"{run}-a1", on=False)
    runs(world)
    suspend(world, "job", f"{run}-a1", on=True)
    reaches(world, run, "queued", attempts=2)
    assert world.document("status", run)["reason"] == "waits for queue team to admit it"
    (job,) = world.kubectl.get("jobs", "--namespace", world.namespace)["items"]
    assert (job["metadata"]["name"], job["spec"]["suspend"]) == (f"{run}-a2", True)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    suspend(world, "job", f"{run}-a2", on=False)
    runs(world, attempt=2)
    go(world, attempt=2)
    assert world.cli("wait", run).returncode == 0
    assert world.document("status", run)["restarts"]["count"] == 0


def test_jobapi_s18_an_evicted_pod_restarts_the_gang_and_uses_no_budget_of_the_job(world, tmp_path):
    spec = waiting(world)
    spec["rules"] = [{"exit_codes": [9], "action": "restart", "budget": "app"}]
    spec["policies"]["budgets"] = {"app": 0, "user": 0}
    assert world.run(spec, "--detach").returncode == 0
    run = runs(world)
    name = pod(world, attempt=1)
    eviction = tmp_path / "eviction.json"
    eviction.write_text(
        json.dumps(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": world.namespace},
            }
        )
    )
    world.kubectl("create", "--raw", f"/api/v1/namespaces/{world.namespace}/pods/{name}/eviction", "-f", str(eviction))
    runs(world, attempt=2)
    verdict = world.document("why", run, "--attempt", "1")
    assert (verdict["cause"]["slug"], verdict["cause"]["confidence"]) == ("preempted", "proven")
    assert verdict["pod"] == name
    assert (verdict["decision"]["rule"], verdict["decision"]["budget"]) == ("taken_away", None)
    go(world, attempt=2)
    assert world.cli("wait", run).returncode == 0
