"""The real torchrun: static and c10d, a range of nodes, a command of the user's own."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rankfall.model import JobSpec

from .conftest import QUICK, Bench

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    total = torch.ones(2)
    dist.all_reduce(total)
    if step == 1 and rank == 1 and "fall" in sys.argv:
        raise RuntimeError("a bug of the user")
print("sum", int(total[0]), flush=True)
dist.destroy_process_group()
"""


def spec(
    bench: Bench, *words: str, code: str = SCRIPT, command: tuple[str, ...] | None = None, **fields: Any
) -> JobSpec:
    (bench.folder / "train.py").write_text(code)
    job = command or ("train.py", *words)
    plain = {"nnodes": 2, "cwd": str(bench.folder), "python": sys.executable, "policies": QUICK}
    return JobSpec(command=job, **(plain | fields))


@pytest.mark.full
def test_errors_s1_the_rank_that_raised_is_named_among_its_victims(bench: Bench) -> None:
    outcome = bench.supervise(bench.run_dir(spec(bench, "fall")))
    assert bench.texts("launcher")[0].startswith("launcher: torchrun (torch ")
    assert (outcome.state, outcome.attempts, outcome.code, outcome.exit_origin) == ("failed", 1, 1, "rank")
    verdict = outcome.verdict
    assert verdict is not None
    assert (verdict.cause.slug, verdict.rank, verdict.node) == ("user_code_exception", 1, "node1")


# torchrun itself loads torch once a node; workers that do not keep these tests short.
WORLD = """
import os
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RUN_ID"], flush=True)
"""


@pytest.mark.full
def test_a_range_of_nodes_meets_through_c10d(bench: Bench) -> None:
    run = bench.run_dir(spec(bench, code=WORLD, nnodes=1, nnodes_max=2))
    assert bench.supervise(run).state == "succeeded"
    assert (run.path / "rank-00001.log").read_text() == f"1 2 {run.id}-a1\n"


def test_a_given_torchrun_is_completed(bench: Bench) -> None:
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "train.py")
    run = bench.run_dir(spec(bench, code=WORLD, command=command))
    assert bench.supervise(run).state == "succeeded"
    assert (run.path / "rank-00001.log").read_text() == f"1 2 {run.id}-a1\n"
