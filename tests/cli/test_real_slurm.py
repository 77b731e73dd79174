"""Batch scripts of a real Slurm, as users submit them. Two of its three nodes have processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import real_slurm
from support.helpers import wait_until
from support.real_slurm import RealSlurm

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("real-slurm"),
    pytest.mark.skipif(bool(real_slurm.missing()), reason=f"a real Slurm: {real_slurm.missing()}"),
]
RUN = f"{sys.executable} -m rankfall run --launcher plain"
TRAIN = """
import os, sys, time
print("rank", os.environ["RANK"], "on", os.environ["SLURMD_NODENAME"], flush=True)
open(f"ready{os.environ['RANK']}-{os.environ['RANKFALL_ATTEMPT']}", "w").close()
if "fail" in sys.argv and os.environ["RANK"] == "1":
    raise TypeError("unsupported operand")
if os.environ["RANKFALL_ATTEMPT"] == "1":
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    with real_slurm.running(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def script(slurm: RealSlurm, tmp_path: Path) -> str:
    """Beginning of a batch script in an own folder."""
    (tmp_path / "train.py").write_text(TRAIN)
    return f"cd {tmp_path}\nexport RANKFALL_HOME={tmp_path}/home\n"


def verdict(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        (sys.executable, "-m", "rankfall", "why", "--attempt", "1", "-o", "json"),
        env=os.environ | {"RANKFALL_HOME": str(folder / "home")},
        capture_output=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_i24_p10_srun_of_rankfall_ends_with_the_code_of_the_root(slurm: RealSlurm, script: str, tmp_path: Path) -> None:
    job = slurm.script(f"{script}srun {RUN} train.py fail\necho script ended: $?", "--nodes=2", "--ntasks-per-node=1")
    wait_until(lambda: "script ended: " in slurm.output(job), timeout=60, what="the end of the job")
    text = slurm.output(job)
    assert "script ended: 1" in text
    assert "Rank 1 on n2 raised TypeError" in text
    assert text.count("rankfall: run train-") == 1


def test_i24_p10_a_node_that_fails_is_replaced_by_a_spare_one(slurm: RealSlurm, script: str, tmp_path: Path) -> None:
    words = ("--nodes=3", "--ntasks-per-node=1", "--no-kill")
    job = slurm.script(f"{script}{RUN} --nnodes 2 --max-restarts 1 train.py\necho script ended: $?", *words)
    wait_until(lambda: all((tmp_path / f"ready{rank}-1").exists() for rank in (0, 1)), timeout=60, what="both ranks")
    slurm.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    try:
        wait_until(lambda: "script ended: " in slurm.output(job), timeout=90, what="the end of the job")
    finally:
        slurm.call("scontrol", "update", "NodeName=n2", "State=IDLE")
    text = slurm.output(job)
    assert "script ended: 0" in text
    assert f"Slurm job {job}: nodes n1, n3" in text
    found = verdict(tmp_path)
    assert (found["cause"]["slug"], found["node"], found["decision"]["action"]) == (
        "node_lost",
        "n2",
        "retry_elsewhere",
    )


def test_i24_p10_slurms_time_limit_is_the_cause(slurm: RealSlurm, script: str, tmp_path: Path) -> None:
    words = ("--nodes=2", "--ntasks-per-node=1", "--time=1")
    job = slurm.script(f"{script}exec {RUN} train.py", *words)
    # Slurm looks for jobs over their time once in half a minute.
    wait_until(lambda: "rankfall-exit: " in slurm.output(job), timeout=180, what="the end of the job")
    found = verdict(tmp_path)
    assert (found["cause"]["slug"], found["cause"]["confidence"], found["rank"]) == (
        "walltime_or_requeue",
        "proven",
        None,
    )
    assert found["decisive"]["line"] == f"Slurm ends job {job} at its time limit of 00:01:00"
