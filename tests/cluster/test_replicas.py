"""``restart_scope: replica`` on an Indexed Job: one index falls, Kubernetes replaces its pod, the others are not touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import RULES, World, job
from rankfall.rundir import RunDir
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import SCRIPT_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# All nodes of the bed share this machine's files: there each start leaves a mark, and finds those of its predecessors.
WORKER = """
import os, sys, time
from pathlib import Path

slot, marks = os.environ["RANKFALL_SLOT"], Path("/marks")
start = len(list(marks.glob(f"start-{slot}-*")))
(marks / f"start-{slot}-{start}").write_text(os.environ["HOSTNAME"])
print(f"slot {slot} start {start}", flush=True)
who, times, code = os.environ["FALLS"].split(":")
if slot == who and start < int(times):
    time.sleep(1)
    print(f"slot {slot} falls", flush=True)
    sys.exit(int(code))
if slot == who:
    (marks / "done").touch()
until = time.monotonic() + 120
while not (marks / "done").exists() and time.monotonic() < until:
    time.sleep(0.1)
print(f"slot {slot} is done", flush=True)
"""


class Scene:
    def __init__(self, world: World, marks: Path) -> None:
        self.world = world
        self.marks = marks

    def spec(self, falls: str, **fields: Any) -> dict[str, Any]:
        policies = {"max_restarts": 3, "grace_s": 3, "backoff_s": 0.2, **fields.pop("policies", {})}
        made = job(backend="job", namespace=self.world.namespace, policies=policies)
        made |= {
            "nnodes": 3,
            "nproc_per_node": 1,
            "launcher": "exec",
            "restart_scope": "replica",
            "command": ["python3", f"{SCRIPT_FOLDER}/train.py"],
            "env": {"FALLS": falls},
            **fields,
        }
        del made["kubernetes"]["pod"]["spec"]["affinity"]
        del made["python"]
        volume = {"name": "marks", "hostPath": {"path": str(self.marks), "type": "Directory"}}
        made["kubernetes"]["volumes"].append(volume)
        made["kubernetes"]["volume_mounts"].append({"name": "marks", "mountPath": "/marks"})
        return made

    def starts(self) -> list[str]:
        return sorted(path.name.removeprefix("start-") for path in self.marks.glob("start-*"))


@pytest.fixture
def scene(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Scene:
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    home, marks = tmp_path / "home", tmp_path / "marks"
    home.mkdir()
    marks.mkdir()
    marks.chmod(0o777)
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=WORKER)
    return Scene(world, marks)


def test_an_index_that_falls_is_replaced_and_the_others_run_on(scene: Scene) -> None:
    world = scene.world
    done = world.run(scene.spec("1:1:130"))
    assert done.returncode == 0, done.stderr
    run = RunDir(world.only_run())
    status = world.document("status", run.id)
    assert (status["state"], status["attempts"]) == ("succeeded", 1)
    assert [(s["slot"], s["restarts"], s["exit"]) for s in status["slots"]] == [(0, 0, "0"), (1, 1, "0"), (2, 0, "0")]
    # Each of the others is the one pod that it was from the beginning.
    assert scene.starts() == ["0-0", "1-0", "1-1", "2-0"]
    with run.reader() as reader:
        ((fall, state),) = [(row.fall, row.fall.state) for row in reader.falls()]
    verdict = fall.diagnosis.verdict
    assert (fall.slot, fall.instance, fall.action, state) == (1, 0, "retry", "done")
    assert (verdict.cause.slug, verdict.slot, fall.diagnosis.exit_code) == ("user_exit", 1, 130)
    assert verdict.node in {"n1", "n2"}
    assert verdict.pod == (scene.marks / "start-1-0").read_text() or verdict.pod.startswith(f"{run.id}-a1-1-")
    assert sorted(world.cli("logs", run.id, "--no-prefix").stdout.splitlines()) == sorted(
        [
            "slot 0 start 0", "slot 0 is done", "slot 1 start 0", "slot 1 falls", "slot 1 start 1", "slot 1 is done",
            "slot 2 start 0", "slot 2 is done",
        ]
    )  # fmt: skip


def test_a_permanent_code_of_one_index_ends_the_job_and_its_verdict_is_the_runs(scene: Scene) -> None:
    world = scene.world
    done = world.run(scene.spec("2:9:2"))
    assert done.returncode == 2, done.stderr
    run = world.only_run().name
    verdict = world.document("why", run)
    assert (verdict["slot"], verdict["cause"]["slug"], verdict["decision"]["action"]) == (2, "user_exit", "stop")
    assert verdict["node"] in {"n1", "n2"}
    assert world.document("status", run)["state"] == "failed"
    assert scene.starts() == ["0-0", "1-0", "2-0"]


def test_a_budget_is_kept_that_is_tighter_than_what_kubernetes_counts(scene: Scene) -> None:
    world = scene.world
    rules = [{"exit_codes": [7], "action": "restart", "budget": "app"}]
    done = world.run(scene.spec("0:9:7", rules=rules, policies={"budgets": {"app": 1}}))
    assert done.returncode == 7, done.stderr
    status = world.document("status", world.only_run().name)
    assert (status["state"], status["reason"]) == ("failed", "budget app exhausted (1/1)")
    assert scene.starts() == ["0-0", "0-1", "1-0", "2-0"]


def test_who_takes_over_finds_a_pod_that_was_replaced_meanwhile(scene: Scene) -> None:
    world = scene.world
    path = world.file(scene.spec("1:1:130"))
    command = [sys.executable, "-m", "rankfall", "run", "--file", str(path)]
    with subprocess.Popen(command, env=world.environment(), stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: "1-0" in scene.starts(), timeout=60, what="the first start of slot 1")
        first.kill()
    wait_until(lambda: "1-1" in scene.starts(), timeout=90, what="its second start, by Kubernetes alone")
    run = world.only_run().name
    done = world.cli("attach", run)
    assert done.returncode == 0, done.stderr
    assert scene.starts() == ["0-0", "1-0", "1-1", "2-0"]
    with RunDir(world.only_run()).reader() as reader:
        falls = [row.fall for row in reader.falls()]
    assert [(fall.slot, fall.instance, fall.action, fall.state) for fall in falls] == [(1, 0, "retry", "done")]
    lines = world.cli("logs", run, "--no-prefix").stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("slot 1")) == [
        "slot 1 falls", "slot 1 is done", "slot 1 start 0", "slot 1 start 1",
    ]  # fmt: skip


# test_outside.py has the same for a gang.
def test_a_suspension_from_outside_is_no_fall_of_any_slot(scene: Scene) -> None:
    world = scene.world
    path = world.file(scene.spec("none:0:0"))
    command = [sys.executable, "-m", "rankfall", "run", "--file", str(path)]
    with subprocess.Popen(command, env=world.environment(), stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(scene.starts()) == 3, timeout=60, what="all slots")
        run = world.only_run()
        world.kubectl(
            *("patch", "job", f"{run.name}-a1", "--namespace", world.namespace),
            *("--type", "merge", "--patch", '{"spec": {"suspend": true}}'),
        )
        wait_until(
            lambda: world.document("status", run.name)["state"] == "suspended", timeout=90, what="the suspension"
        )
        with RunDir(run).reader() as reader:
            assert reader.falls() == []
            assert reader.decisions() == []
        assert world.cli("cancel", run.name).returncode == 0
        process.wait(60)


def test_a_role_that_is_done_is_not_run_again_by_the_next_attempt_of_the_gang(scene: Scene) -> None:
    # Slot 0 is the gang and leaves once with 130; slots 1 and 2 end with 0 at once.
    spec = scene.spec("0:1:130", env={"FALLS": "0:1:130"})
    for field in ("nnodes", "nproc_per_node", "restart_scope"):
        del spec[field]
    done = "import os, pathlib; pathlib.Path('/marks/start-' + os.environ['RANKFALL_SLOT'] + '-' + os.environ['HOSTNAME']).touch()"
    lead = {"name": "lead", "nnodes": 1}
    check = {"name": "check", "nnodes": 2, "restart_scope": "replica", "command": ["python3", "-c", done]}
    first = f"{SCRIPT_FOLDER}/train.py"
    lead["command"] = [
        "sh",
        "-c",
        f"until [ $(ls /marks | grep -c start-[12]-) = 2 ]; do sleep 0.2; done; sleep 3; exec python3 {first}",
    ]
    found = scene.world.run(spec | {"roles": [lead, check], "command": []})
    assert found.returncode == 0, found.stderr
    status = scene.world.document("status", scene.world.only_run().name)
    assert (status["state"], status["attempts"]) == ("succeeded", 2)
    assert [name.split("-")[0] for name in scene.starts()] == ["0", "0", "1", "2"]
