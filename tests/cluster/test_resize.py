"""Another size for runs on Kubernetes: an Indexed Job changes in place, a JobSet begins a new attempt; the account has the product's own rights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import RULES, World, job
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WAIT = 240.0
# No torch in the ranks: torchrun starts them, they miss each other at once, and stay until somebody in a pod of theirs lets them go.
STAY = """
import os, socket, time
slot, rank, world = os.environ["RANKFALL_SLOT"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"slot {slot} is rank {rank} of {world}", flush=True)
peers = []
if rank == 0 and world > 1:
    server = socket.create_server(("", 29777))
    peers = [server.accept()[0] for _ in range(world - 1)]
until = time.monotonic() + 60
while rank > 0 and not peers:
    try:
        peers = [socket.create_connection((os.environ["MASTER_ADDR"], 29777), timeout=5)]
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.2)
over = False
while not over:
    over = os.path.exists("/tmp/leave")
    for peer in peers:
        peer.settimeout(0.1)
        try:
            word = peer.recv(1)
        except TimeoutError:
            continue
        if not word:
            raise RuntimeError("Connection closed by peer [10.0.0.1]:29777")
        over = True
    time.sleep(0.1)
for peer in peers:
    peer.sendall(b"x")
print("left", flush=True)
"""


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[World]:
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    home = tmp_path / "home"
    home.mkdir()
    made = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=STAY)
    yield made
    made.cli("cancel", made.only_run().name, "-y")


def pods(world: World) -> dict[str, str]:
    """UID of each pod that is not being deleted, by its completion index."""
    found: dict[str, str] = {}
    for pod in world.kubectl.get("pods", "--namespace", world.namespace)["items"]:
        index = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index")
        if index is not None and "deletionTimestamp" not in pod["metadata"]:
            found[index] = pod["metadata"]["uid"]
    return found


def seated(world: World, run: str, ranks: int) -> dict[str, Any]:
    """The status once so many ranks run."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.clear()
        found.update(world.document("status", run))
        return sum(rank["state"] == "running" for rank in found["ranks"]) == ranks

    wait_until(look, timeout=WAIT, what=f"{ranks} ranks")
    return found


def leave(world: World, run: str, slots: int) -> None:
    status = world.document("status", run)
    for slot in status["slots"][:slots]:
        world.kubectl("exec", "--namespace", world.namespace, slot["pod"], "--", "touch", "/tmp/leave")


def test_jobapi_s07_an_indexed_job_grows_and_shrinks_while_pod_0_runs_on(world: World) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-conf", "last_call_timeout=3"]
    spec = job(backend="job", namespace=world.namespace, nnodes=1, nnodes_max=2, nproc_per_node=1, suspend=True)
    spec["command"] = [*torchrun, spec["command"][0]]
    run = world.cli("submit", "--file", str(world.file(spec))).stdout.strip()
    assert world.cli("resize", run, "1").returncode == 0
    world.cli("resume", run)
    seated(world, run, 1)
    first = pods(world)
    assert sorted(first) == ["0"]
    done = world.cli("resize", run, "2", "--wait", timeout=WAIT)
    assert (done.returncode, done.stdout) == (0, f"{run} worker: 1 -> 2 nodes, done\n"), done.stderr
    status = seated(world, run, 2)
    assert (status["attempts"], status["sizes"]) == (1, {"worker": 2})
    grown = pods(world)
    assert (sorted(grown), grown["0"]) == (["0", "1"], first["0"])
    done = world.cli("resize", run, "1", "--wait", timeout=WAIT)
    assert (done.returncode, done.stdout) == (0, f"{run} worker: 2 -> 1 node, done\n"), done.stderr
    assert pods(world) == first
    wait_until(
        lambda: "slot 0 is rank 0 of 1\n" in world.cli("logs", run, "--no-prefix", "--tail", "2").stdout,
        timeout=WAIT,
        what="a new round of the one that is left",
    )
    leave(world, run, 1)
    assert world.cli("wait", run).returncode == 0
    status = world.document("status", run)
    assert (status["state"], status["attempts"], status["restarts"]["count"]) == ("succeeded", 1, 0)
    lines = world.cli("logs", run, "--all", "--no-prefix").stdout
    assert "slot 1 is rank" in lines
    assert "left" in lines


def test_jobapi_s07_a_jobset_takes_its_new_size_in_a_new_attempt(world: World) -> None:
    spec = job(backend="jobset", namespace=world.namespace, nnodes=1, nproc_per_node=1, launcher="plain")
    spec["policies"]["max_restarts"] = 0
    run = world.cli("submit", "--file", str(world.file(spec))).stdout.strip()
    seated(world, run, 1)
    done = world.cli("resize", run, "2", "--wait", timeout=WAIT)
    assert (done.returncode, done.stdout) == (0, f"{run} worker: 1 -> 2 nodes, done\n"), done.stderr
    status = seated(world, run, 2)
    assert (status["attempts"], status["sizes"]) == (2, {"worker": 2})
    leave(world, run, 1)
    assert world.cli("wait", run).returncode == 0
    assert world.document("status", run)["restarts"]["count"] == 0
