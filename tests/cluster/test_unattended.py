"""Runs that Kubernetes restarts and ends by itself: launched and left, watched in the middle, or looked at when all is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import PROGRAM, RULES, World, job
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import SCRIPT_FOLDER, script

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
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    home = tmp_path / "home"
    home.mkdir()
    made = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)
    kubectl.apply([script(PROGRAM, namespace=namespace, text=TRAIN)])
    return made


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
    assert "unattended: Kubernetes alone decides" in done.stderr
    return done.stdout.strip()


def lines(world: World, run: str, rank: int, *, attempt: int = 1) -> list[str]:
    return world.cli("logs", run, "--rank", str(rank), "--attempt", str(attempt), "--no-prefix").stdout.splitlines()


def said(rank: int, *, restart: int = 0, steps: int = 5) -> list[str]:
    return [f"start {restart} of rank {rank}", *(f"start {restart} step {step}" for step in range(steps))]


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
