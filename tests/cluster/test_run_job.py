"""Runs on Kubernetes as their user sees them: real pods over two real nodes, the product's own restricted account."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from cluster.run_world import World, job
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
BACKENDS = ("job", "jobset", "trainjob")


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_trains_over_two_nodes_and_keeps_every_line(world, backend):
    word = "two  words, 'quotes', $HOME $(RANKFALL_SLOT) $$x\nand a second line"
    spec = job(backend=backend, namespace=world.namespace)
    spec["env"]["WORD"] = word
    done = world.run(spec)
    assert done.returncode == 0, done.stderr
    status = world.document("status", world.only_run().name)
    assert status["state"] == "succeeded"
    assert {rank["rank"]: rank["exit"] for rank in status["ranks"]} == {0: "0", 1: "0", 2: "0", 3: "0"}
    assert {slot["node"] for slot in status["slots"]} == {"n1", "n2"}
    for rank in range(4):
        text = world.cli("logs", world.only_run().name, "--rank", str(rank), "--no-prefix").stdout
        lines = text.splitlines()
        assert lines == [
            f"args ['--lr', '1e-3'] rank {rank} word {word!r}",
            *(f"step {step}" for step in range(4)),
            "done",
        ]


@pytest.mark.parametrize("backend", ["job"])
def test_jobapi_s16_the_first_rank_is_named_and_its_peers_are_victims(world, backend):
    done = world.run(job(backend=backend, namespace=world.namespace, fall="exit:3:12:17"))
    assert done.returncode == 17, done.stderr
    verdict = world.document("why", world.only_run().name)
    assert (verdict["rank"], verdict["local_rank"], verdict["slot"]) == (3, 1, 1)
    assert verdict["node"] in {"n1", "n2"}
    assert verdict["pod"].startswith(world.only_run().name)
    assert verdict["cause"]["slug"] == "user_exit"
    assert {one["rank"] for one in verdict["consequences"]} == {0, 1, 2}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_verdict_is_shown_by_kubectl_describe(world, backend):
    spec = job(backend=backend, namespace=world.namespace, fall="raise:3:12")
    spec["kubernetes"]["annotate"] = True
    spec["policies"]["max_restarts"] = 0
    planned = world.run(spec, "--dry-run").stdout
    assert "annotation rankfall.dev/verdict, and an Event RankfallVerdict" in planned
    done = world.run(spec)
    assert done.returncode == 1, done.stderr
    verdict = world.document("why", world.only_run().name)
    described = world.kubectl("describe", backend, f"{world.only_run().name}-a1", "-n", world.namespace)
    assert '"cause":"user_code_exception"' in described
    assert f"rank 3, pod {verdict['pod']}, node {verdict['node']}" in described
    assert "RankfallVerdict" in described
    assert "bad sample 17" in described


# With torchrun; the conformance suite compares all backends case by case without it.
@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s28_the_same_job_file_gives_the_same_verdict_and_status(world, backend):
    done = world.run(job(backend=backend, namespace=world.namespace, fall="SIGKILL:2:1"))
    run = world.only_run().name
    verdict, status = world.document("why", run, "--attempt", "1"), world.document("status", run)
    assert done.returncode == 0, done.stderr
    assert (verdict["cause"]["slug"], verdict["scope"], verdict["rank"], verdict["slot"]) == (
        "killed_unknown",
        "rank",
        2,
        1,
    )
    assert verdict["pod"].startswith(f"{run}-a1-")
    assert {one["rank"] for one in verdict["consequences"]} == {0, 1, 3}
    assert (status["state"], status["attempts"], [slot["state"] for slot in status["slots"]]) == (
        "succeeded",
        2,
        ["ended"] * 2,
    )
    assert [(rank["rank"], rank["state"], rank["exit"], rank["hook"]) for rank in status["ranks"]] == [
        (rank, "ended", "0", "loaded") for rank in range(4)
    ]


@pytest.mark.parametrize("backend", ["job"])
@pytest.mark.parametrize(
    ("fall", "expected"),
    [
        ("raise:3:1", (3, "user_code_exception", 1)),
        ("SIGSEGV:1:1", (1, "segfault", 2)),
    ],
)
def test_the_verdict_names_the_rank_and_the_decision_follows_it(world, backend, fall, expected):
    rank, slug, attempts = expected
    done = world.run(job(backend=backend, namespace=world.namespace, fall=fall))
    run = world.only_run().name
    verdict = world.document("why", run, "--attempt", "1")
    assert (verdict["cause"]["slug"], verdict["rank"], verdict["pod"].startswith(f"{run}-a1-")) == (slug, rank, True)
    assert verdict["node"] in {"n1", "n2"}
    status = world.document("status", run)
    assert status["attempts"] == attempts
    assert done.returncode == (0 if attempts > 1 else 1), done.stderr


def test_jobapi_s17_text_and_state_of_each_attempt_stay_readable_after_the_job_is_gone(world):
    done = world.run(job(backend="job", namespace=world.namespace, fall="SIGKILL:0:12"))
    run = world.only_run().name
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    world.kubectl("delete", "jobs,pods", "--all", "--namespace", world.namespace, "--grace-period=0", "--force")
    for attempt in ("1", "2"):
        text = world.cli("logs", run, "--attempt", attempt, "--rank", "0", "--no-prefix").stdout
        assert text.splitlines()[-1] == "step 2"
        pods = [
            json.loads(line)
            for line in (world.only_run() / f"kube/attempt-{attempt}/pods.jsonl").read_text().splitlines()
        ]
        assert {pod["slot"] for pod in pods if pod.get("main", {}).get("state") == "terminated"} == {0, 1}


def test_launch_s12_a_killed_supervisor_is_followed_by_another_without_loss_or_repeat(world):
    spec = job(backend="job", namespace=world.namespace)
    spec["env"]["SLOW"] = "1"
    with world.killed_after(spec, "step 1"):
        pass
    run = world.attached_whole()
    assert [name for name in world.objects() if name.startswith("job")] == [f"job.batch/{run}-a1"]


def test_a_cancelled_run_leaves_nothing_in_the_cluster(world):
    spec = job(backend="job", namespace=world.namespace)
    spec["env"]["SLOW"] = "30"
    started = world.run(spec, "--detach")
    assert started.returncode == 0, started.stderr
    run = world.only_run().name
    wait_until(lambda: len(world.document("status", run)["ranks"]) == 4, timeout=120, what="four ranks")
    done = world.cli("cancel", run, "-y")
    assert done.returncode == 0, done.stderr
    assert world.cli("wait", run).returncode == 130
    assert world.objects() == []
    assert world.document("status", run)["state"] == "cancelled"


def test_launch_s9_an_image_that_does_not_exist_is_named_with_its_pod(world):
    spec = job(backend="job", namespace=world.namespace)
    spec["kubernetes"]["image"] = "rankfall.test/nothing:1"
    spec["deadlines"] = {"startup_s": 15}
    done = world.run(spec)
    run = world.only_run().name
    verdict = world.document("why", run)
    assert verdict["cause"]["slug"] == "image_pull", done.stderr
    assert "rankfall.test/nothing:1" in verdict["decisive"]["line"]
    assert (verdict["scope"], verdict["rank"], verdict["node_action"]) == ("all", None, "none")


def test_jobapi_s26_the_next_attempt_keeps_off_the_node_that_fell(world):
    spec = job(backend="job", namespace=world.namespace, fall="exit:0:1:9", nnodes=1)
    spec["rules"] = [{"exit_codes": [9], "action": "restart_elsewhere", "budget": "hardware"}]
    spec["policies"]["budgets"] = {"hardware": 1}
    done = world.run(spec)
    assert done.returncode == 0, done.stderr
    nodes = []
    for attempt in (1, 2):
        lines = (world.only_run() / f"kube/attempt-{attempt}/pods.jsonl").read_text().splitlines()
        nodes.append({json.loads(line).get("node") for line in lines} - {None})
    assert [len(found) for found in nodes] == [1, 1]
    assert nodes[0].isdisjoint(nodes[1])


def test_a_dry_run_shows_manifests_that_the_server_takes_and_creates_nothing(world):
    spec = job(backend="job", namespace=world.namespace)
    hidden = "a-word-that-must-not-show"
    spec["env"]["API_TOKEN"] = hidden
    done = world.run(spec, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert hidden not in done.stdout + done.stderr
    items = list(yaml.safe_load_all(done.stdout))
    assert [item["kind"] for item in items] == ["Job", "Secret", "Service", "ConfigMap"]
    assert items[1]["data"] == {"worker.env.API_TOKEN": "***"}
    assert world.objects() == []
    assert not (world.home / "runs").exists()


@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_a_field_that_the_server_would_drop_is_refused_before_anything_is_created(world, backend):
    spec = job(backend=backend, namespace=world.namespace)
    spec["kubernetes"]["pod"]["spec"]["terminationGracePeriodSecond"] = 5
    done = world.run(spec)
    assert done.returncode == 2
    assert "terminationGracePeriodSecond" in done.stderr
    assert "Traceback" not in done.stderr
    assert world.objects("jobs,services,configmaps,pods,jobsets,trainjobs,trainingruntimes") == []


@pytest.mark.parametrize("backend", ["job", "trainjob"])
def test_errors_s40_a_job_that_somebody_deleted_is_not_started_again(world, backend):
    spec = job(backend=backend, namespace=world.namespace)
    spec["env"]["SLOW"] = "30"
    started = world.run(spec, "--detach")
    assert started.returncode == 0, started.stderr
    run = world.only_run().name
    wait_until(lambda: len(world.document("status", run)["ranks"]) == 4, timeout=120, what="four ranks")
    world.kubectl("delete", backend, f"{run}-a1", "--namespace", world.namespace, "--wait=false")
    assert world.cli("wait", run).returncode == 130
    status = world.document("status", run)
    assert (status["state"], status["attempts"]) == ("deleted", 1)
    assert world.document("why", run)["cause"]["slug"] == "cancelled"
    assert world.objects("jobs,jobsets,trainjobs,pods") == []
