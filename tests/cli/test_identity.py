"""Whose line it is, where the place of a slot does not tell: ranks in the order that c10d gives them, and processes that are no ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .conftest import Runner

NODES = 11
# c10d numbers its nodes in the order of their sorted names: node-10 comes before node-2, so the last rank is in slot 9.
SORTED = f"""
import os, sys

slot = int(os.environ["RANKFALL_SLOT"])
if "RANK" not in os.environ:
    rank = sorted(range({NODES}), key=lambda number: f"train-node-0-{{number}}").index(slot)
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", GROUP_RANK=str(rank), WORLD_SIZE="{NODES}", LOCAL_WORLD_SIZE="1")
    os.execv(sys.executable, [sys.executable, *sys.argv])
print(f"RANK {{os.environ['RANK']}} in slot {{slot}}", flush=True)
"""


def test_launch_s13_the_first_and_the_true_last_rank_are_shown_wherever_they_run(
    rankfall: Runner, folder: Path
) -> None:
    (folder / "sorted.py").write_text(SORTED)
    done = rankfall("run", "--nnodes", str(NODES), "--launcher", "exec", "--", sys.executable, "sorted.py")
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if "RANK" in line]
    assert sorted(shown) == ["[rank 0] RANK 0 in slot 0", "[rank 10] RANK 10 in slot 9"]
    everything = rankfall("logs").stdout.splitlines()
    for line in everything:
        # Each line says itself which rank wrote it.
        assert line.startswith(f"[rank {line.split()[3]}] ")
    assert len(everything) == NODES


def test_launch_s15_processes_that_are_no_ranks_are_shown_with_their_slot_and_no_rank_is_made_up(
    rankfall: Runner,
) -> None:
    done = rankfall("run", "--nnodes", "2", "--launcher", "exec", "--", sys.executable, "-c", "print('hello')")
    assert done.returncode == 0, done.stderr
    assert sorted(rankfall("logs").stdout.splitlines()) == ["[slot 0] hello", "[slot 1] hello"]
    status = json.loads(rankfall("status", "-o", "json").stdout)
    assert status["ranks"] == []
    assert (status["succeeded"], [slot["exit"] for slot in status["slots"]]) == (2, ["0", "0"])
