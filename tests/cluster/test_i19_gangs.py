"""Workloads that somebody deletes, that their time to live removes, and gangs that their controller makes anew: issue 19, points 6, 7, 10 and 13."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import World, job
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import SCRIPT_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TRAIN = """
import os, time

rank, attempt = int(os.environ["RANK"]), os.environ["RANKFALL_ATTEMPT"]
for step in range(int(os.environ.get("STEPS", "5"))):
    print(f"step {step}", flush=True)
    time.sleep(0.2)
    how, who, when = (os.environ.get("FALL") or "::").split(":")
    if step == 12 and (who, when) == (str(rank), attempt):
        if how == "raise":
            raise ValueError("bad sample 17")
        os.kill(os.getpid(), 9)
print("done", flush=True)
"""


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home", program=TRAIN)


def spec_of(world: World, backend: str, *, steps: int = 300, fall: str = "", **fields: Any) -> dict[str, Any]:
    """A job of 2 nodes x 2 ranks without torch."""
    spec = job(backend=backend, namespace=world.namespace, fall=fall, **fields)
    spec |= {"command": [f"{SCRIPT_FOLDER}/train.py"], "launcher": "plain"}
    spec["env"]["STEPS"] = str(steps)
    return spec


def runs(world: World, spec: dict[str, Any]) -> str:
    done = world.run(spec, "--detach")
    assert done.returncode == 0, done.stderr
    run = world.only_run().name
    wait_until(lambda: len(world.document("status", run)["ranks"]) == 4, timeout=120, what="four ranks")
    return run


def unattended(world: World, backend: str, **fields: Any) -> dict[str, Any]:
    return spec_of(world, backend, unattended=True, **fields) | {"policies": {"max_restarts": 0, "grace_s": 3}}


def delete(world: World, kind: str, run: str) -> None:
    world.kubectl("delete", kind, f"{run}-a1", "--namespace", world.namespace, "--wait=false")


def ended(world: World, run: str) -> tuple[str, int, str]:
    """State and attempts of a run, and the cause of its newest attempt."""
    status = world.document("status", run)
    return status["state"], status["attempts"], world.document("why", run)["cause"]["slug"]


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_i19_p6_no_attempt_follows_a_deletion_of_what_has_a_time_to_live(world, backend):
    run = runs(world, spec_of(world, backend, ttl_s=600))
    delete(world, backend, run)
    assert world.cli("wait", run).returncode == 130
    assert ended(world, run) == ("deleted", 1, "cancelled")


def test_i19_p6_no_attempt_follows_a_deletion_of_the_jobset_of_a_trainjob(world):
    run = runs(world, spec_of(world, "trainjob"))
    delete(world, "jobsets.jobset.x-k8s.io", run)
    assert world.cli("wait", run).returncode == 130
    assert ended(world, run) == ("deleted", 1, "cancelled")
    assert "jobset" in world.document("status", run)["reason"]


def test_i19_p6_a_deletion_during_the_back_off_lets_no_attempt_follow_and_the_verdict_stands(world):
    spec = spec_of(world, "job", steps=20, fall="kill:3:1")
    spec["policies"] |= {"max_restarts": 3, "backoff_s": 20}
    run = runs(world, spec)
    wait_until(lambda: world.document("status", run)["state"] == "restarting", timeout=60, what="a back-off")
    delete(world, "job", run)
    assert world.cli("wait", run).returncode not in {0, 130}
    state, attempts, _ = ended(world, run)
    assert (state, attempts) == ("failed", 1)
    assert "was deleted in the cluster" in world.document("status", run)["reason"]
    assert world.document("why", run)["decision"]["action"] == "stop"


def test_i19_p6_a_time_to_live_that_is_over_keeps_no_attempt_from_following(world):
    spec = spec_of(world, "job", steps=20, fall="kill:3:1", ttl_s=0)
    done = world.run(spec)
    assert done.returncode == 0, done.stderr
    assert ended(world, world.only_run().name)[:2] == ("succeeded", 2)


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_i19_p7_a_success_is_one_although_its_time_to_live_removes_it_at_once(world, backend):
    done = world.run(unattended(world, backend, steps=15, ttl_s=0))
    status = world.document("status", world.only_run().name)
    assert (done.returncode, status["state"], status["attempts"]) == (0, "succeeded", 1), done.stderr


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_i19_p7_a_failure_keeps_its_verdict_and_its_exit_code(world, backend):
    done = world.run(unattended(world, backend, steps=15, ttl_s=0, fall="raise:3:1"))
    run = world.only_run().name
    assert (done.returncode, *ended(world, run)) == (1, "failed", 1, "user_code_exception"), done.stderr
    assert world.document("why", run)["rank"] == 3


def test_i19_p10_a_trainjob_whose_jobset_is_deleted_has_two_attempts_and_nothing_of_them_is_joined(world):
    done = world.run(unattended(world, "trainjob", steps=200), "--detach")
    assert done.returncode == 0, done.stderr
    run = world.only_run().name
    watcher = subprocess.Popen(
        [sys.executable, "-m", "rankfall", "wait", run],
        env=world.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until((world.only_run() / "kube" / "followed.json").exists, timeout=60, what="open logs")
        pods = set(world.objects("pods"))
        assert len(pods) == 2, pods
        delete(world, "jobsets.jobset.x-k8s.io", run)
        wait_until(lambda: world.document("status", run)["attempts"] == 2, timeout=60, what="another attempt")
        wait_until(lambda: len(world.document("status", run)["ranks"]) == 4, timeout=60, what="ranks of the new gang")
        slots = world.document("status", run)["slots"]
        assert {slot["state"] for slot in slots} == {"running"}, slots
        assert watcher.wait(120) == 0
    finally:
        watcher.kill()
        watcher.wait()
        assert watcher.stderr is not None
        watcher.stderr.close()
    assert ended(world, run)[:2] == ("succeeded", 2)
    verdict = json.loads(world.cli("why", run, "--attempt", "1", "-o", "json").stdout)
    assert (verdict["cause"]["slug"], verdict["node"]) == ("cancelled", None)
    seen = [set(_pods(world, number)) for number in (1, 2)]
    assert {f"pod/{name}" for name in seen[0]} == pods
    assert not seen[0] & seen[1]
    for rank in range(4):
        lines = world.cli("logs", run, "--rank", str(rank), "--attempt", "2", "--no-prefix").stdout.splitlines()
        assert lines == [*(f"step {step}" for step in range(200)), "done"]


def _pods(world: World, attempt: int) -> dict[str, str]:
    """Names of the pods in the journal of an attempt, each with its UID."""
    path = world.only_run() / "kube" / f"attempt-{attempt}" / "pods.jsonl"
    return {one["name"]: one["uid"] for one in map(json.loads, path.read_text().splitlines())}


@pytest.mark.parametrize("backend", ["job", "trainjob"])
def test_i19_p9_a_namespace_in_which_nothing_is_allowed_is_named_with_the_next_step(world, backend):
    spec = spec_of(world, backend)
    spec["kubernetes"]["namespace"] = "nowhere"
    done = world.run(spec)
    assert done.returncode == 69, done.stderr
    assert "rankfall-exit: rankfall 69" in done.stderr
    run = world.only_run().name
    said = " ".join(done.stderr.split())
    why = " ".join(world.cli("why", run).stdout.split())
    status = world.cli("status", run).stdout
    for shown in (said, why, " ".join(status.split())):
        assert "forbidden" in shown, shown
        assert "nowhere" in shown, shown
        assert "administrator" in shown, shown
    verdict = world.document("why", run)
    assert (verdict["state"], verdict["attempt"]) == ("failed", None)


def test_i19_p13_of_an_unattended_run_the_container_that_failed_beside_the_ranks_is_named(world):
    spec = unattended(world, "job", steps=5)
    beside = "import os, sys, time; time.sleep(3); sys.exit(3 if os.environ['JOB_COMPLETION_INDEX'] == '1' else 0)"
    section = spec["kubernetes"]
    other = {"name": "metrics", "image": section["image"], "imagePullPolicy": "Never"}
    section["pod"]["spec"]["containers"] = [other | {"command": ["python3", "-c", beside]}]
    done = world.run(spec)
    assert done.returncode not in {0, 130}, done.stderr
    found = world.document("why", world.only_run().name)
    assert (found["cause"]["slug"], found["slot"], found["rank"]) == ("user_exit", 1, None), found
    named = "container metrics: Error: exit code 3; the ranks of this pod ended with 0"
    assert named in found["decisive"]["line"], found["decisive"]
