"""Several roles in one job on Kubernetes: parameter servers outside the world of ranks, workers inside; the same run on every kind of object."""

from __future__ import annotations

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
BACKENDS = ("job", "jobset", "trainjob")


# Each worker reaches the first parameter server by its name before it does anything.
PROGRAM = """
import os, socket, sys, time
role, index, fall = os.environ["RANKFALL_ROLE"], os.environ["RANKFALL_INDEX"], os.environ.get("FALL")
if role == "ps":
    with socket.create_server(("", 7000)) as server:
        print("serving", index, flush=True)
        while True:
            server.accept()[0].close()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
while True:
    try:
        socket.create_connection((os.environ["RANKFALL_HOST_PS"], 7000), timeout=60).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
print(f"rank {rank} of {size}, slot {os.environ['RANKFALL_SLOT']}, index {index}", flush=True)
if fall and rank == int(fall) and os.environ["RANKFALL_ATTEMPT"] == "1":
    raise ValueError("bad sample 17")
if fall:
    time.sleep(600)
"""


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home", program=PROGRAM)


def two_roles(*, backend: str, namespace: str, fall: str = "") -> dict[str, Any]:
    """2 parameter servers and 3 workers of the plain launcher."""
    spec = job(backend=backend, namespace=namespace, fall=fall)
    for field in ("nnodes", "nproc_per_node"):
        del spec[field]
    del spec["kubernetes"]["pod"]["spec"]["affinity"]
    program = f"{SCRIPT_FOLDER}/train.py"
    serve = {"name": "ps", "nnodes": 2, "launcher": "exec", "command": [sys.executable, program]}
    return spec | {
        "command": [program],
        "launcher": "plain",
        "roles": [serve, {"name": "worker", "nnodes": 3}],
        "success": {"role": "worker", "drain_s": 1},
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s11_when_the_workers_are_done_the_parameter_servers_are_stopped(world: World, backend: str) -> None:
    done = world.run(two_roles(backend=backend, namespace=world.namespace))
    assert done.returncode == 0, done.stderr
    run = world.only_run().name
    status = world.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 1)
    assert [(slot["slot"], slot["role"], slot["note"]) for slot in status["slots"]] == [
        *((number, "ps", "stopped after success") for number in (0, 1)),
        *((number, "worker", None) for number in (2, 3, 4)),
    ]
    assert [(rank["rank"], rank["slot"], rank["exit"]) for rank in status["ranks"]] == [
        (0, 2, "0"),
        (1, 3, "0"),
        (2, 4, "0"),
    ]
    for rank in range(3):
        text = world.cli("logs", run, "--rank", str(rank), "--no-prefix").stdout
        assert text.splitlines() == [f"rank {rank} of 3, slot {rank + 2}, index {rank}"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_of_the_second_role_that_falls_is_named_with_its_role(world: World, backend: str) -> None:
    done = world.run(two_roles(backend=backend, namespace=world.namespace, fall="1"))
    assert done.returncode == 1, done.stderr
    run = world.only_run().name
    verdict = world.document("why", run)
    assert (verdict["cause"]["slug"], verdict["rank"], verdict["role"], verdict["slot"]) == (
        "user_code_exception",
        1,
        "worker",
        3,
    )
    assert verdict["pod"].startswith(f"{run}-a1-")


def test_a_new_attempt_has_new_jobs_but_of_roles_that_are_done_and_a_cancel_leaves_none(world: World) -> None:
    spec = two_roles(backend="job", namespace=world.namespace, fall="1")
    spec["rules"] = [{"roles": ["worker"], "causes": ["user_code_exception"], "action": "restart"}]
    # Done before the first attempt falls, and needed by nobody after that.
    spec["roles"].insert(0, {"name": "prepare", "launcher": "exec", "restart_scope": "replica", "command": ["true"]})
    submitted = world.cli("submit", "--file", str(world.file(spec)))
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()

    def second_attempt_runs() -> bool:
        status = world.document("status", run)
        assert status["state"] not in {"failed", "succeeded"}, status["reason"]
        return (status["state"], status["attempts"], len(status["ranks"])) == ("running", 2, 3)

    wait_until(second_attempt_runs, timeout=120, what="the second attempt does not run")
    assert world.objects("jobs") == [f"job.batch/{run}-a2-ps", f"job.batch/{run}-a2-worker"]
    done = world.cli("cancel", run, "-y")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: world.objects() == [], timeout=60, what="something of the run is left")
