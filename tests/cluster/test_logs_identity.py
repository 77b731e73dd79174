"""Whose line it is where the order of the ranks is not that of the pods: a TrainJob whose torchruns meet by c10d."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from cluster.run_world import RULES, World, job
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import SCRIPT_FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
# c10d numbers its nodes in the order of their addresses as texts. The first slot gives its name and the second one its number, which is sorted
# before any name: so the ranks of the second slot come first. In the first attempt a middle rank raises, in the second another one dies in silence.
TRAIN = """
import os, signal, socket, sys, time

slot, attempt = int(os.environ["RANKFALL_SLOT"]), os.environ["RANKFALL_ATTEMPT"]
if "RANK" not in os.environ:
    name = socket.getfqdn() if slot == 0 else socket.gethostbyname(socket.gethostname())
    words = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=" + os.environ["MASTER_ADDR"] + ":29500"]
    words += ["--rdzv-id=" + attempt, "--local-addr=" + name, "--max-restarts=0", sys.argv[0]]
    print("launcher of slot", slot, flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words])
import torch.distributed as dist
import torch

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
value = torch.ones(1)
for step in range(4):
    dist.all_reduce(value)
    print(f"I am rank {rank} in slot {slot} attempt {attempt} step {step}", flush=True)
    if step == 2 and (rank, attempt) == (2, "1"):
        raise ValueError("bad sample 17")
    if step == 2 and (rank, attempt) == (1, "2"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    # Nothing is executed in a pod to know its ranks.
    rules = [rule for rule in RULES if rule["resources"] != ["pods/exec"]]
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=rules)
    home = tmp_path / "home"
    home.mkdir()
    return World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=TRAIN)


def test_launch_s13_s16_s17_s18_s19_a_trainjob_under_c10d_whose_ranks_do_not_follow_the_index(world):
    spec = job(backend="trainjob", namespace=world.namespace)
    spec |= {"launcher": "exec", "command": [sys.executable, f"{SCRIPT_FOLDER}/train.py"]}
    spec["policies"]["retryable"] = ["ValueError"]
    done = world.run(spec)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    console = done.stdout.splitlines()
    for attempt in (1, 2):
        # Those two, also after the gang's restart; each line says itself who wrote it and where. Late is what came after the hold window.
        said = {
            line.partition(f" attempt {attempt} ")[0].replace(", late]", "]")
            for line in console
            if f" attempt {attempt} " in line
        }
        assert said == {"[rank 0] I am rank 0 in slot 1", "[rank 3] I am rank 3 in slot 0"}
        for rank in range(4):
            words = ("--attempt", str(attempt), "--rank", str(rank), "--grep", "I am", "--no-prefix")
            kept = world.cli("logs", world.only_run().name, *words).stdout.splitlines()
            whose = f"I am rank {rank} in slot {1 - rank // 2} attempt {attempt} step"
            assert kept == [f"{whose} {step}" for step in range(3)]
    # What was said before there was a rank is its slot's, and nobody's.
    before_it = world.cli("logs", world.only_run().name, "--attempt", "1", "--grep", "^launcher of").stdout.splitlines()
    assert sorted(before_it) == ["[slot 0] launcher of slot 0", "[slot 1] launcher of slot 1"]

    # A rank that is not shown has failed: its traceback is, and where it was is told.
    traceback = [line for line in console if line.startswith("[rank 2] [rank2]: ")]
    assert traceback[0].endswith("Traceback (most recent call last):")
    assert "[rank 2] [rank2]: ValueError: bad sample 17" in traceback
    first, second = (world.document("why", world.only_run().name, "--attempt", str(number)) for number in (1, 2))
    assert (first["rank"], first["local_rank"], first["attempt"], first["slot"]) == (2, 0, 1, 0)
    assert f"rank    2 (local rank 0, slot 0)\npod     {first['pod']} on {first['node']}\n" in done.stderr
    # The one that said nothing fell first; those that complained are followers.
    assert (second["rank"], second["attempt"], second["cause"]["slug"]) == (1, 2, "killed_unknown")
    assert f"rank    1 (local rank 1, slot 1)\npod     {second['pod']} on {second['node']}\n" in done.stderr
    assert {one["rank"] for one in second["consequences"]} == {0, 2, 3}
    assert {first["node"], second["node"]} <= {"n1", "n2"}
