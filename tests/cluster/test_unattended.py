"""Runs that Kubernetes restarts and ends by itself: launched and left, watched in the middle, or looked at when all is over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import World, job
from cluster.served import TRAINER
from rankfall.backends.kubernetes.manifests.names import LABEL_RUN
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import SCRIPT_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
# Its ranks know which start of the gang they are of only from the set's own number.
TRAIN = """
import os, sys, time

rank, restart = int(os.environ["RANK"]), os.environ.get("RANKFALL_RESTART", "0")
print(f"start {restart} of rank {rank}", flush=True)
how, who, starts = (os.environ.get("FALL") or "::").split(":")
for step in range(int(os.environ.get("STEPS", "5"))):
    print(f"start {restart} step {step}", flush=True)
    time.sleep(0.2)
    if step == 2 and who == str(rank) and restart in starts:
        if how == "raise":
            raise ValueError("bad sample 17")
        os._exit(int(how))
print("done", flush=True)
"""


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home", program=TRAIN)


def alone(
    world: World, backend: str, *, restarts: int = 0, fall: str = "", steps: int = 5, **fields: Any
) -> dict[str, Any]:
    """An unattended job of 2 nodes x 2 ranks, without torch."""
    spec = job(backend=backend, namespace=world.namespace, fall=fall, **fields)
    spec["command"] = [f"{SCRIPT_FOLDER}/train.py"]
    spec |= {"unattended": True, "launcher": "plain", "policies": {"max_restarts": restarts, "grace_s": 3}}
    spec["env"]["STEPS"] = str(steps)
    return spec


def submitted(world: World, spec: dict[str, Any]) -> str:
    done = world.cli("submit", "--file", str(world.file(spec)))
    assert done.returncode == 0, done.stderr
    assert "unattended: Kubernetes alone restarts this run" in done.stderr
    return done.stdout.strip()


def lines(world: World, run: str, rank: int, *, attempt: int = 1) -> list[str]:
    return world.cli("logs", run, "--rank", str(rank), "--attempt", str(attempt), "--no-prefix").stdout.splitlines()


def printed(world: World, run: str, text: str) -> bool:
    """Whether the kubelets have this of any pod of the run, whoever records it."""
    got = world.kubectl.run("logs", "-n", world.namespace, "-l", f"{LABEL_RUN}={run}", "--tail=-1", "--prefix")
    return text in got.stdout


def said(rank: int, *, restart: int = 0, steps: int = 5) -> list[str]:
    return [f"start {restart} of rank {rank}", *(f"start {restart} step {step}" for step in range(steps))]


# A TrainJob is a JobSet below; the other two are watched by the tests after this one.
@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_unattended_a_run_that_is_watched_succeeds_with_every_line(world, backend):
    done = world.run(alone(world, backend))
    assert done.returncode == 0, done.stderr
    status = world.document("status", world.only_run().name)
    assert (status["state"], status["unattended"], status["supervised"]) == ("succeeded", True, False)
    for rank in range(4):
        assert lines(world, world.only_run().name, rank) == [*said(rank), "done"]


@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_unattended_nobody_is_attached_at_all_and_why_knows_all_the_same(world, backend):
    run = submitted(world, alone(world, backend, fall="raise:3:0"))
    done = world.cli("wait", run)
    verdict = world.document("why", run)
    assert (verdict["cause"]["slug"], verdict["rank"], verdict["slot"]) == ("user_code_exception", 3, 1), verdict
    assert verdict["node"] in {"n1", "n2"}
    assert done.returncode == 1, done.stderr


def test_launch_s11_a_gang_that_is_restarted_by_its_set_is_never_terminal_and_keeps_every_line(world):
    done = world.run(alone(world, "jobset", restarts=2, fall="143:1:01"))
    run = world.only_run().name
    assert done.returncode == 0, done.stderr
    status = world.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 3)
    for attempt in (1, 2):
        assert lines(world, run, 1, attempt=attempt) == said(1, restart=attempt - 1, steps=3)
        verdict = world.document("why", run, "--attempt", str(attempt))
        assert (verdict["rank"], verdict["attempt"], verdict["decision"]["rule"]) == (1, attempt, "native"), verdict
    for rank in range(4):
        assert lines(world, run, rank, attempt=3) == [*said(rank, restart=2), "done"]


def test_unattended_who_attaches_in_the_middle_and_leaves_changes_nothing_and_no_line_is_lost_or_repeated(world):
    run = submitted(world, alone(world, "job", steps=150))
    first = subprocess.Popen(
        [sys.executable, "-m", "rankfall", "attach", run],
        env=world.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert any("step 5" in line for line in first.stdout)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=30)
    assert first.returncode == 0, told
    assert "detached" in told
    status = world.document("status", run)
    assert (status["state"], status["unattended"], status["recorded"]) == ("running", True, False)
    assert (
        "unattended: Kubernetes restarts and ends it; no process records its lines" in world.cli("status", run).stdout
    )
    assert world.cli("wait", run).returncode == 0
    for rank in range(4):
        assert lines(world, run, rank) == [*said(rank, steps=150), "done"]


@pytest.mark.parametrize("how", ["fails by a rule", "is restarted by a mark"])
def test_unattended_a_cause_reaches_native_rules_through_torchrun(world, how):
    spec = alone(world, "jobset", restarts=1, fall="raise:3:0")
    spec["launcher"] = "torchrun"
    if how == "fails by a rule":
        spec["rules"] = [{"causes": ["user"], "action": "fail"}]
    else:
        spec["policies"]["retryable"] = ["ValueError"]
    done = world.run(spec)
    run = world.only_run().name
    status, verdict = world.document("status", run), world.document("why", run, "--attempt", "1")
    assert (verdict["rank"], verdict["decisive"]["line"]) == (3, "ValueError: bad sample 17"), verdict
    if how == "fails by a rule":
        assert (done.returncode, status["state"], status["attempts"]) == (1, "failed", 1), done.stderr
        assert "exit code 200" in status["reason"]
    else:
        assert (done.returncode, status["state"], status["attempts"]) == (0, "succeeded", 2), done.stderr
        assert verdict["cause"]["slug"] == "retryable_exception"


@pytest.mark.parametrize("budget", [0, 2])
def test_jobapi_s13_s19_a_budget_is_that_many_restarts_natively_too(world, budget):
    done = world.run(alone(world, "jobset", restarts=budget, fall="143:1:0123"))
    status = world.document("status", world.only_run().name)
    assert (status["state"], status["attempts"]) == ("failed", budget + 1), done.stderr


def test_jobapi_s14_a_permanent_code_ends_a_set_with_restarts_left(world):
    done = world.run(alone(world, "jobset", restarts=2, fall="1:1:0123"))
    status = world.document("status", world.only_run().name)
    assert (status["state"], status["attempts"], done.returncode) == ("failed", 1, 1), done.stderr
    assert "restarting" not in (world.only_run() / "events.jsonl").read_text()


def test_unattended_deleted_by_somebody_is_deleted(world):
    run = submitted(world, alone(world, "job", steps=150))
    world.kubectl("delete", "job", f"{run}-a1", "--namespace", world.namespace, "--wait=false")
    done = world.cli("wait", run)
    assert done.returncode == 130, done.stderr
    assert world.document("status", run)["state"] == "deleted"


def test_unattended_cancel_asks_the_cluster_itself_and_waits_until_all_is_gone(world):
    run = submitted(world, alone(world, "jobset", steps=150))
    wait_until(lambda: world.objects("pods"), timeout=60, what="pods")
    done = world.cli("cancel", run)
    assert done.returncode == 0, done.stderr
    assert world.objects("jobs,jobsets.jobset.x-k8s.io,pods,configmaps") == []
    assert world.document("status", run)["state"] == "cancelled"


# A set is suspended by the conformance suite as well, that of a TrainJob.
@pytest.mark.parametrize("backend", ["job", "jobset"])
def test_unattended_suspended_and_resumed_without_anybody_recording(world, backend):
    run = submitted(world, alone(world, backend, steps=150))
    wait_until(lambda: world.document("status", run)["state"] == "running", timeout=60, what="a run that runs")
    # Only what the kubelet has can be kept.
    wait_until(lambda: printed(world, run, "start 0 of rank 0"), timeout=60, what="the first line of rank 0")
    done = world.cli("suspend", run, "--reason", "lunch")
    assert done.returncode == 0, done.stderr
    status = world.document("status", run)
    assert (status["state"], world.objects("pods")) == ("suspended", [])
    assert "lunch" in (status["reason"] or "")
    assert world.cli("resume", run).returncode == 0
    done = world.cli("wait", run)
    assert done.returncode == 0, done.stderr
    status = world.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 2)
    for rank in range(4):
        assert lines(world, run, rank, attempt=2) == [*said(rank, steps=150), "done"]
    assert lines(world, run, 0, attempt=1)[0] == "start 0 of rank 0"


def test_jobapi_s22_a_failed_trainjob_stays_failed_when_its_set_is_removed(world):
    done = world.run(alone(world, "trainjob", fall="1:1:0"))
    run = world.only_run().name
    assert (done.returncode, world.document("status", run)["state"]) == (1, "failed"), done.stderr

    def failed(kind: str) -> str:
        condition = "jsonpath={.status.conditions[?(@.type=='Failed')].status}"
        return world.kubectl.run("get", kind, f"{run}-a1", "--namespace", world.namespace, "--output", condition).stdout

    world.kubectl("delete", "jobsets.jobset.x-k8s.io", f"{run}-a1", "--namespace", world.namespace)
    if TRAINER == (2, 0):
        assert world.objects("jobsets.jobset.x-k8s.io") == []
    else:
        # Later ones make the set again, and the job trains until it fails again; Rankfall recorded the first end.
        for kind in ("jobsets.jobset.x-k8s.io", "trainjob"):
            wait_until(lambda kind=kind: failed(kind) == "True", timeout=60, what=f"the second end of the {kind}")
    assert (failed("trainjob"), world.document("status", run)["state"]) == ("True", "failed")


def test_unattended_a_pod_that_its_job_replaces_is_the_next_start_of_its_slot(world):
    spec = alone(world, "job", restarts=1, restart_scope="replica")
    # A pod that starts within the first minute falls; its successor, if need be the one after it, does not.
    program = "import os, sys, time; s = os.environ['RANKFALL_SLOT']; print('up', s, flush=True); time.sleep(3); "
    program += f"sys.exit(143 if s == '1' and time.time() < {time.time() + 60:.0f} else 0)"
    spec |= {"command": [sys.executable, "-c", program], "launcher": "exec", "nproc_per_node": 1}
    spec["policies"]["max_restarts"] = 6
    done = world.run(spec)
    run = world.only_run().name
    status = world.document("status", run)
    assert (done.returncode, status["state"], status["attempts"]) == (0, "succeeded", 1), done.stderr
    assert {slot["slot"]: slot["exit"] for slot in status["slots"]} == {0: "0", 1: "0"}
    assert status["restarts"]["count"] >= 1
