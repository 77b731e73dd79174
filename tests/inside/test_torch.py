"""The hook under the real torchrun and torch's own ways to start processes."""

from __future__ import annotations

import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


def test_errors_s26_torchrun_with_virtual_local_ranks_and_a_restart(slot) -> None:
    text = """
import os, sys
print("rank", os.environ["RANK"], "local", os.environ["LOCAL_RANK"], "try", os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "1": raise ValueError("boom")
"""
    options = ("--nproc-per-node", "2", "--virtual-local-rank", "--max-restarts", "1", "--monitor-interval", "0.1")
    done = slot.run(*TORCHRUN, *options, slot.script(text), options=("--nproc", "2"))
    assert done.returncode == 1
    starts = slot.records("start")
    assert sorted((r.rank, r.local_rank, r.restart_count) for r in starts) == [
        (0, 0, 0),
        (0, 0, 1),
        (1, 0, 0),
        (1, 0, 1),
    ]
    assert sorted(r.ordinal for r in starts) == [0, 1, 2, 3]
    assert all(r.rank_source == "env:RANK" and r.streams for r in starts)
    for start in starts:
        expected = f"rank {start.rank} local 0 try {start.restart_count}\n".encode()
        assert slot.stream(f"{start.ordinal}.out") in (expected, b"")
        assert slot.stream(f"{start.ordinal}.out") == expected or start.rank == 0
    assert sorted((e.rank, e.restart_count, e.error.types) for e in slot.records("error")) == [
        (1, 0, ("ValueError",)),
        (1, 1, ("ValueError",)),
    ]
    ends = {record.ordinal: record.exit for record in slot.records("end")}
    assert len(ends) == 4
    assert {ends[r.ordinal].code for r in starts if r.rank == 1} == {1}
    assert b"Root Cause" in slot.stream("slot.err")


def test_function_launch_and_recorded_errors(slot) -> None:
    text = """
import os
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
def work(x):
    import colorsys
    print("function rank", os.environ["RANK"])
    open(os.environ["MEET"] + os.environ["RANK"], "w").close()
    if os.environ["RANK"] == "1":
        while not os.path.exists(os.environ["MEET"] + "0"): pass
        raise KeyError("in function")
    return x
if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
                          run_id="x", max_restarts=0, monitor_interval=0.1)
    elastic_launch(config, work)(5)
"""
    assert slot.run(sys.executable, slot.script(text), MEET=str(slot.base / "met")).returncode == 1
    starts = {record.rank: record for record in slot.records("start")}
    assert {rank: (r.local_rank, r.world_size) for rank, r in starts.items()} == {0: (0, 2), 1: (1, 2)}
    assert slot.stream(f"{starts[1].ordinal}.out") == b"function rank 1\n"
    assert [(e.rank, e.error.types) for e in slot.records("error")] == [(1, ("KeyError",))]


@pytest.mark.full
def test_torch_spawn_and_dataloader_workers(slot) -> None:
    text = """
import os, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor(i)
def work(i):
    os.environ.update(RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE="1")
    for method in ("fork", "spawn"):
        seen = sorted(int(x) for x in DataLoader(Data(), batch_size=None, num_workers=1, multiprocessing_context=method))
        print(method, seen, flush=True)
    raise ValueError("from spawn")
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""
    assert slot.run(sys.executable, slot.script(text)).returncode == 1
    assert [(r.rank, r.streams) for r in slot.records("start")] == [(0, True)]
    assert slot.stream("0.out") == b"fork [0, 1, 2, 3]\nspawn [0, 1, 2, 3]\n"
    error = slot.one("error")
    assert (error.rank, error.error.types, error.error.exit_code, error.error.handled) == (0, ("ValueError",), 1, True)
    assert slot.one("end").exit.code == 1
