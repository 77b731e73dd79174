"""Checks as Jobs: what counts as passed, as failed, and as "cannot tell"; none is left behind. On real kubelets: tests/cluster/test_checks.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from kube.apiserver import serving, status
from nodes.node_server import node_server
from rankfall.cli.app import run
from rankfall.kube.client import Kube
from rankfall.model.errors import SpecError
from rankfall.nodes.checks import jobs as check_jobs
from rankfall.nodes.checks.jobs import checks_from, packaged_checks, script_text
from rankfall.nodes.checks.rounds import Round, run_checks
from rankfall.nodes.config import load_config
from rankfall.nodes.rules.policy import Policy
from support.patience import scaled

OWN = {"name": "own", "image": "i", "command": ["true"], "timeout_s": 1, "wait_s": 1}


def over(code: int = 0, *, message: str = "", reason: str = "", phase: str = "", why: str = "") -> dict[str, Any]:
    """A pod that is over."""
    ended = {"exitCode": code, "message": message, "reason": why or ("Error" if code else "Completed")}
    status_ = {
        "phase": phase or ("Failed" if code else "Succeeded"),
        "containerStatuses": [{"state": {"terminated": ended}}],
    }
    return {
        "metadata": {"name": "p"},
        "status": {**status_, "podIP": "10.0.0.1", **({"reason": reason} if reason else {})},
    }


RUNS = {"metadata": {"name": "p"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
PENDING = {
    "metadata": {"name": "p"},
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes fit"}],
               "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]},
}  # fmt: skip


class Jobs:
    """A server that makes of each Job the pods that a test wrote for it, one look after the other; the last one stays."""

    def __init__(self, *looks: Any, gpus: str = "8") -> None:
        self.looks = list(looks)
        self.made: dict[str, Any] = {}
        self.deleted: list[str] = []
        self.exists = False
        self.node = {
            "metadata": {"name": "n1", "resourceVersion": "1"},
            "status": {"nodeInfo": {"bootID": "b1"}, "allocatable": {"nvidia.com/gpu": gpus}},
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        last = request.path.rpartition("/")[2]
        if "/nodes/" in request.path:
            return web.json_response(self.node)
        if request.method == "POST":
            body = json.loads(await request.read())
            if self.exists:
                return web.json_response(status(409, "AlreadyExists"), status=409)
            self.made[body["metadata"]["name"]] = body
            return web.json_response(body)
        if request.method == "DELETE":
            self.deleted.append(last)
            return web.json_response({})
        if last == "pods":
            pod = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            return web.json_response({"metadata": {}, "items": [pod] if pod else []})
        return web.json_response(status(404, "NotFound"), status=404)


def outcome(tmp_path, jobs: Jobs, *rows: dict[str, Any], **options: Any) -> Round:
    checks = checks_from([{**OWN, **row} for row in rows], origin="own")

    async def story() -> Round:
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), rate=1000, burst=1000) as kube:
            server.default = jobs.handle
            return await run_checks(
                kube, checks, node="n1", namespace="rankfall", policy=Policy(), round_="r", poll_s=0.01, **options
            )

    return asyncio.run(asyncio.wait_for(story(), scaled(20)))


def test_health_s09_all_checks_pass_and_nothing_is_left(tmp_path):
    told: list[Any] = []
    jobs = Jobs(None, PENDING, RUNS, over(0, message="8 GPUs"))
    done = outcome(tmp_path, jobs, {}, {"name": "second"}, tell=told.append)
    assert (done.round.outcome, done.round.check, done.round.boot) == ("passed", "", "b1")
    assert [(each.check, each.outcome, each.text) for each in told] == [
        ("own", "passed", "8 GPUs"),
        ("second", "passed", "8 GPUs"),
    ]
    assert sorted(jobs.deleted) == sorted(jobs.made)


def test_health_s09_a_failing_check_is_named_and_the_dear_ones_behind_it_are_not_run(tmp_path):
    jobs = Jobs(over(1, message="a\nb\n7 GPUs, expected 8"))
    done = outcome(tmp_path, jobs, {}, {"name": "second"})
    assert (done.round.outcome, done.round.check) == ("failed", "own: ended with 1: a | b | 7 GPUs, expected 8")
    assert len(done.results) == 1


@pytest.mark.parametrize(
    ("pod", "expected", "word"),
    [
        (over(0, reason="DeadlineExceeded", phase="Failed"), "failed", "had not ended after 1 s"),
        (over(75, message="unknown model"), "unable", "ended with 75: unknown model"),
        (over(127, message="sh: nvidia-smi: not found"), "unable", "not found"),
        (over(137, why="OOMKilled"), "unable", "OOMKilled"),
        (over(1, reason="Evicted"), "unable", "Evicted"),
        ({"metadata": {}, "status": {"phase": "Failed"}}, "unable", "no container ran"),
        (PENDING, "unable", "did not start within 1 s: Unschedulable: 0/1 nodes fit; ErrImagePull: no such image"),
        (None, "unable", "the Job has no pod"),
    ],
)
def test_health_s41_what_could_not_be_made_is_no_pass(tmp_path, pod, expected, word):
    done = outcome(tmp_path, Jobs(pod), {})
    assert done.round.outcome == expected
    assert word in done.round.check


def test_a_program_that_cannot_be_ended_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.nodes.checks.rounds._GRACE_S", 0)
    done = outcome(tmp_path, Jobs(RUNS), {})
    assert (done.round.outcome, "could not be stopped" in done.round.check) == ("failed", True)


def test_a_job_that_somebody_removed_and_a_boot_meanwhile_are_no_pass(tmp_path):
    assert outcome(tmp_path, Jobs(RUNS, None), {}).results[0].text == "the Job was deleted"
    jobs = Jobs(over())
    done = outcome(tmp_path, jobs, {}, tell=lambda _: jobs.node["status"]["nodeInfo"].update(bootID="b2"))
    assert (done.round.outcome, done.round.check) == ("unable", "boot: the node rebooted meanwhile")


def test_the_same_round_again_finds_its_jobs(tmp_path):
    jobs = Jobs(over())
    jobs.exists = True
    assert outcome(tmp_path, jobs, {}).round.outcome == "passed"
    (check,) = checks_from([OWN], origin="own")
    assert jobs.deleted == [check_jobs.job_name(check, "n1", round_="r")]


def test_no_checks_no_gpus_and_no_second_node_are_no_pass(tmp_path):
    assert outcome(tmp_path, Jobs(over())).round.check == "none: no check is configured"
    assert outcome(tmp_path, Jobs(over(), gpus="0"), {"gpus": True}).round.outcome == "unable"
    assert (
        outcome(tmp_path, Jobs(over(), gpus="x"), {"gpus": True, "expected": 8, "needs_expected": True}).round.outcome
        == "failed"
    )
    assert outcome(tmp_path, Jobs(over()), {"nodes": 2}).round.check == "own: there is no healthy node to check it with"


@pytest.mark.parametrize(
    ("looks", "expected", "text"),
    [
        ([RUNS, over(0, message="390 GB/s")], "passed", "with n2: 390 GB/s"),
        ([RUNS, RUNS, RUNS, over(1, message="100 GB/s")], "failed", "with n2: ended with 1: 100 GB/s"),
        ([over(75)], "unable", "ended with 75"),
    ],
)
def test_two_nodes_are_checked_together(tmp_path, looks, expected, text):
    jobs = Jobs(*looks)
    done = outcome(tmp_path, jobs, {"nodes": 2}, peer="n2")
    assert (done.round.outcome, done.results[0].text) == (expected, text)
    assert sorted(jobs.deleted) == sorted(jobs.made)
    places = [pod_of(each)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] for each in jobs.made.values()]  # fmt: skip
    if expected != "unable":
        assert places == [["n1"], ["n2"]]


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def test_the_job_passes_our_taint_has_no_privilege_and_asks_for_all_gpus():
    (check,) = checks_from(
        [{"name": "gpu-count", "image": "i", "expected": 8, "tolerate": ["dedicated"]}], origin="own"
    )
    pod = pod_of(check_jobs.job(check, "n1", name="x", namespace="rankfall", gpus=8, keys=Policy().keys))
    assert {each["key"] for each in pod["tolerations"]} == {
        "rankfall.dev/faulty",
        "node.kubernetes.io/unschedulable",
        "nvidia.com/gpu",
        "dedicated",
    }
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert {each["name"]: each.get("value") for each in container["env"]}["EXPECTED"] == "8"
    assert not pod["automountServiceAccountToken"]
    assert pod["activeDeadlineSeconds"] == 40


def test_packaged_checks_are_whole_once_an_operator_gives_image_and_number():
    rows = [{"name": name, "image": "i", "expected": 1} for name in packaged_checks()]
    checks = checks_from(rows, origin="own")
    assert [each.name for each in checks] == [
        "gpu-count",
        "nvidia-smi",
        "dcgmi",
        "all-reduce",
        "all-reduce-pair",
        "disk",
        "network",
    ]
    for check in checks:
        job = check_jobs.job(check, "n1", name="x", namespace="n", gpus=1, keys=(), rank=1, master="10.0.0.1")
        env = {each["name"]: each["value"] for each in pod_of(job)["containers"][0]["env"]}
        assert ("SCRIPT" in env) == (check.script is not None)
    compile(script_text("all_reduce.script"), "all_reduce", "exec")
    (dcgmi,) = checks_from([{"name": "dcgmi", "image": "i", "env": {"LEVEL": "3"}}], origin="own")
    assert dcgmi.env == {"LEVEL": "3", "LIMIT": "1500"}


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"name": "gpu-count"}, "image"),
        ({"name": "gpu-count", "image": "i"}, "expected"),
        ({"name": "own", "image": "i"}, "command"),
        ({"name": "own", "image": "i", "command": []}, "command"),
        ({"name": "Own Check", "image": "i", "command": ["x"]}, "name"),
        ({"name": "own", "image": "i", "command": ["x"], "script": "none"}, "script"),
        ({"name": "own", "image": "i", "command": ["x"], "env": 3}, "env"),
        ({"name": "own", "image": "i", "command": ["x"], "nodes": 3}, "nodes"),
        ({"image": "i", "command": ["x"]}, "name"),
        ({"name": 7}, "str"),
    ],
)  # fmt: skip
def test_a_check_with_any_fault_is_refused_with_its_place(row, word):
    with pytest.raises(SpecError, match=word) as refused:
        checks_from([row], origin="own.toml")
    assert "own.toml: check 1" in str(refused.value)


def test_two_checks_of_one_name_are_refused():
    with pytest.raises(SpecError, match="already"):
        checks_from([OWN, OWN], origin="own.toml")


def test_the_command_says_what_is_missing_and_ends_with_the_code_of_the_outcome(tmp_path, capsys):
    config = tmp_path / "health.toml"
    config.write_text('[[check]]\nname = "own"\nimage = "i"\ncommand = ["x"]\ngpus = true\n')
    assert [each.name for each in load_config(config).checks] == ["own"]
    with node_server(tmp_path) as server:
        server.add("n1")
        words = ["nodes", "check", "n1", "--kubeconfig", str(server.kubeconfig)]
        assert run(words) == 2
        assert run([*words, "--config", str(config), "--check", "none"]) == 2
        assert run([*words, "--config", str(config), "--peer", "n9"]) == 66
        capsys.readouterr()
        assert run([*words, "--config", str(config), "--check", "own"]) == 74
    assert capsys.readouterr().out == "n1: own: unable: the node offers no nvidia.com/gpu\n"
