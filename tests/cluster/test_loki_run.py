"""A real job whose lines come out of a real Loki: while it goes on and nobody records it, and after its pods are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cluster.collector import collecting
from cluster.run_world import RULES, World
from support.helpers import wait_until
from testbed import accounts
from testbed.ondemand import loki as lokis
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
LINES = 600
COUNT = f"""
import os, time
for number in range({LINES}):
    print("rank", os.environ["RANK"], "number", number, flush=True)
    time.sleep(0.03)
"""


@pytest.fixture
def world(bed, kubectl, namespace, tmp_path):
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    (tmp_path / "home").mkdir()
    return World(tmp_path / "home", kubeconfig=path, kubectl=kubectl, namespace=namespace)


def submitted(world: World) -> str:
    """A run whose supervisor is gone as soon as its ranks print."""
    spec = {
        "name": "loki",
        "backend": "job",
        "command": ["python3", "-c", COUNT],
        "launcher": "plain",
        "nnodes": 2,
        "nproc_per_node": 2,
        "kubernetes": {"image": PYTHON_IMAGE, "image_pull_policy": "Never", "namespace": world.namespace},
    }
    done = world.cli("submit", "--file", str(world.file(spec)))
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    wait_until(lambda: world.document("status", run)["state"] == "running", timeout=60, what="a run that runs")
    pid = int((world.only_run() / "lease").read_text().partition('"pid":')[2].partition(",")[0])
    os.kill(pid, signal.SIGKILL)
    return run


def of_rank(text: str, rank: int) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"rank {rank} ")]


WHOLE = {rank: [f"rank {rank} number {number}" for number in range(LINES)] for rank in range(4)}


def test_a_run_that_nobody_records_is_followed_out_of_loki_and_every_line_comes_once(bed, world):
    with lokis.run(bed) as url, collecting(bed, url, namespace=world.namespace):
        run = submitted(world)
        command = [sys.executable, "-m", "rankfall", "logs", "-f", run, "--all", "--no-prefix"]
        follow = subprocess.run(
            [*command, "--log-source", "loki", "--loki-url", url],
            env=world.environment(),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert follow.returncode == 0, follow.stderr
    assert {rank: of_rank(follow.stdout, rank) for rank in WHOLE} == WHOLE, follow.stderr
    # And in the record, which needs no Loki any more.
    for rank, lines in WHOLE.items():
        assert world.cli("logs", run, "--rank", str(rank), "--no-prefix").stdout.splitlines() == lines


def test_lines_of_pods_that_are_gone_are_taken_out_of_loki_and_every_line_comes_once(bed, world):
    with lokis.run(bed) as url:
        with collecting(bed, url, namespace=world.namespace) as collector:
            run = submitted(world)
            last = {f"[rank {rank}] {lines[-1]}" for rank, lines in WHOLE.items()}
            wait_until(
                lambda: last <= {line for lines in collector.brought.values() for line in lines},
                timeout=120,
                what="the last line of each rank",
            )
        world.kubectl("delete", "jobs", "--all", "-n", world.namespace, "--cascade=foreground")
        from_loki = ("--no-prefix", "--log-source", "loki", "--loki-url", url)
        # Nobody has seen yet that its pods are gone: one log comes by the API or out of Loki, never by both.
        done = world.cli("logs", run, "--rank", "0", *from_loki)
        assert "these pods may still exist" in done.stderr
        assert done.stdout.splitlines() == WHOLE[0][: len(done.stdout.splitlines())]
        assert world.cli("cancel", run, "--yes").returncode == 0
        for rank, lines in WHOLE.items():
            done = world.cli("logs", run, "--rank", str(rank), *from_loki)
            assert done.stdout.splitlines() == lines, done.stderr
