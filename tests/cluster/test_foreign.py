"""Jobs that Rankfall did not start, on a real cluster: every line once and under its true rank, the rank that fell named, nothing written."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.foreign.fall import LOOK, fall
from bench.foreign.page import wrong
from cluster.run_world import World
from testbed import accounts, images, workloads
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
LINES = 120
# Each line says its own rank; the last rank falls when all is said. Started without a rank it is the launcher of its pod: the second one gives
# its address as a number, which c10d sorts before any name, so its ranks come first.
TRAIN = f"""
import os, socket, sys, time

if "RANK" not in os.environ:
    first = os.environ["JOB_COMPLETION_INDEX"] == "0"
    name = socket.getfqdn() if first else socket.gethostbyname(socket.gethostname())
    words = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=two-node-0-0.two:29500", "--rdzv-id=x"]
    words += ["--local-addr=" + name, "--max-restarts=0", "--tee=3", sys.argv[0]]
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words])
rank = int(os.environ["RANK"])
for n in range({LINES}):
    # In one piece: torchrun takes what an unbuffered print has written of a line for a whole one, and puts its prefix in the middle.
    os.write(1, f"I am rank {{rank}} line {{n}}\\n".encode())
    time.sleep(0.1)
if rank == 3:
    raise ValueError("bad sample 17")
time.sleep(2)
"""
EXEC: list[dict[str, Any]] = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]}]
SET = "jobset.sigs.k8s.io/jobset-name"


def world(bed: Bed, kubectl: Kubectl, namespace: str, folder: Path, rules: list[dict[str, Any]]) -> World:
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=rules)
    home = folder / "home"
    home.mkdir()
    return World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=TRAIN)


def pod(command: list[str], name: str) -> dict[str, Any]:
    # torchrun passes on what ranks say through its own stdout: without this a launcher that is killed takes all of it along.
    env = {"PYTHONUNBUFFERED": "1"}
    return workloads.torch_pod(
        program="program", command=command, mounts=images.torch_mounts(), spread={SET: name}, env=env
    )


def said(out: str) -> dict[int, list[int]]:
    """Numbers of the lines by rank; each line stands under the rank that it says."""
    found: dict[int, list[int]] = {}
    for line in out.splitlines():
        match = re.fullmatch(r"\[rank (\d+)(?:, late)?\] \[default\d+\]: ?I am rank (\d+) line (\d+)", line)
        if match:
            assert match[1] == match[2], line
            found.setdefault(int(match[1]), []).append(int(match[3]))
    # Lines that came late stand where they came.
    return {rank: sorted(numbers) for rank, numbers in found.items()}


def differing(out: str) -> str:
    """Which numbers are not there once, and every line that is none of these."""
    shown = said(out)
    odd = {rank: [n for n in range(LINES) if shown.get(rank, []).count(n) != 1] for rank in range(4)}
    others = [line for line in out.splitlines() if not said(line)]
    return "\n".join([f"not once: {odd}", *others, ""])


def test_launch_s16_a_foreign_trainjob_is_followed_killed_and_followed_again_by_who_may_only_read(
    bed, kubectl, namespace, tmp_path
):
    made = world(bed, kubectl, namespace, tmp_path, LOOK)
    command = [sys.executable, "-m", "torch.distributed.run", "--tee", "3", "/job/train.py"]
    kubectl.apply([workloads.torch_runtime(pod(command, "two"))])
    kubectl.apply([workloads.trainjob("two", namespace=namespace, nnodes=2, nproc=2, command=command)])
    words = [sys.executable, "-m", "rankfall", "logs", "-f", "trainjob/two", "-n", namespace]
    with subprocess.Popen(words, env=made.environment(), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert any("line 20" in line for line in first.stdout)
        first.send_signal(signal.SIGKILL)
    done = made.cli("logs", "-f", "trainjob/two", "-n", namespace)
    assert said(done.stdout) == {rank: list(range(LINES)) for rank in range(4)}, differing(done.stdout) + done.stderr
    before = kubectl.get("trainjob", "two", "-n", namespace)["metadata"]["resourceVersion"]
    verdict = made.document("why", "trainjob/two", "-n", namespace)
    assert (verdict["cause"]["slug"], verdict["rank"], verdict["slot"]) == ("user_code_exception", 3, 1), verdict
    assert verdict["node"] in {"n1", "n2"}
    assert verdict["pod"].startswith("two-node-0-1-")
    after = kubectl.get("trainjob", "two", "-n", namespace)["metadata"]
    assert after["resourceVersion"] == before
    assert "rankfall" not in json.dumps(after)
    status = made.document("status", "trainjob/two", "-n", namespace)
    assert (status["state"], status["foreign"]) == ("failed", "trainjob/two")


def test_launch_s13_ranks_of_a_foreign_jobset_under_c10d_are_those_of_its_processes(bed, kubectl, namespace, tmp_path):
    made = world(bed, kubectl, namespace, tmp_path, LOOK + EXEC)
    command = [sys.executable, "/job/train.py"]
    kubectl.apply(workloads.jobset("two", namespace=namespace, nnodes=2, pod=pod(command, "two")))
    done = made.cli("logs", "-f", "jobset/two", "-n", namespace)
    assert said(done.stdout) == {rank: list(range(LINES)) for rank in range(4)}, differing(done.stdout) + done.stderr
    verdict = made.document("why", "jobset/two", "-n", namespace)
    assert (verdict["cause"]["slug"], verdict["rank"]) == ("user_code_exception", 3), verdict
    again = made.cli("logs", "jobset/two", "-n", namespace, "--rank", "3", "--no-prefix")
    assert len([line for line in again.stdout.splitlines() if "I am rank 3" in line]) == LINES


def test_of_a_foreign_trainjob_that_fell_rank_node_and_cause_are_named_without_a_touch(
    bed, kubectl, namespace, tmp_path
):
    """As most people run it: without ``--tee``, ranks joined by gloo, whose ends are victims; the first node's pod is taken away by its Job."""
    seen = fall(bed, kubectl, namespace=namespace, folder=tmp_path)
    assert wrong(seen) == [], seen.why
    # The rank beside it is a victim, and those of the other node are never the cause.
    assert {one["slug"] for one in seen.verdict["consequences"]} <= {"peer_lost"}, seen.verdict
