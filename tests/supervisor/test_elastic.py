"""A gang of MIN:MAX nodes under the real torchrun that changes while it runs: nodes join, leave, fall; the others keep their processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.supervisor import request_resize
from support.helpers import wait_until

from .conftest import QUICK, Bench, Threaded

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

WAIT = 100.0
# Ranks that work together until a file tells them to leave: whoever goes is missed by all others at once. Each round has a port of its own.
SCRIPT = """
import os, time
rank, world, slot = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "RANKFALL_SLOT"))
round_ = f"round-{os.environ['MASTER_PORT']}-{world}"
os.makedirs(round_, exist_ok=True)
open(os.path.join(round_, str(os.getpid())), "w").close()
open(f"here-{world}-{slot}-{os.getpid()}", "w").close()
print(f"slot {slot} is rank {rank} of {world}", flush=True)
while not os.path.exists("leave"):
    if os.path.exists(f"fall-{slot}"):
        raise ValueError("a bug of the user")
    for pid in os.listdir(round_):
        if not os.path.exists(f"/proc/{pid}"):
            raise RuntimeError("Connection closed by peer [127.0.0.1]:29500")
    time.sleep(0.05)
"""


def spec(bench: Bench, **fields: Any) -> JobSpec:
    (bench.folder / "train.py").write_text(SCRIPT)
    plain = {"cwd": str(bench.folder), "python": sys.executable, "policies": QUICK}
    return JobSpec(command=("train.py",), **(plain | fields))


def here(bench: Bench, world: int) -> None:
    """Wait for all ranks of a world of this size."""
    wait_until(lambda: len(slots_of(bench, world)) == world, timeout=WAIT, what=f"a world of {world}")


def slots_of(bench: Bench, world: int) -> set[str]:
    return {path.name.split("-")[2] for path in bench.folder.glob(f"here-{world}-*")}


def wrappers(run: RunDir) -> dict[str, int]:
    """Process id of each slot's wrapper."""
    locks = (run.path / "slots" / "attempt-1").glob("*/lock")
    return {lock.parent.name: int(lock.read_text().split()[0]) for lock in locks}


def done(run: RunDir, nodes: int) -> bool:
    with run.reader() as reader:
        changes = reader.attempts()[-1].plan["changes"]
    return bool(changes) and changes[-1]["nodes"] == nodes and changes[-1]["done_at"] is not None


@pytest.mark.full
def test_jobapi_s07_nodes_join_and_leave_in_place_and_the_others_keep_their_processes(bench: Bench) -> None:
    run = bench.run_dir(spec(bench, nnodes=1, nnodes_max=3))
    request_resize(run, role="worker", nodes=2)
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 2)
    first = wrappers(run)
    assert sorted(first) == ["worker-0", "worker-1"]
    request_resize(run, role="worker", nodes=3)
    here(bench, 3)
    wait_until(lambda: done(run, 3), timeout=WAIT, what="the growth")
    grown = wrappers(run)
    assert {name: grown[name] for name in first} == first
    request_resize(run, role="worker", nodes=1)
    here(bench, 1)
    wait_until(lambda: done(run, 1), timeout=WAIT, what="the shrinking")
    (bench.folder / "leave").touch()
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts) == ("succeeded", 1), bench.events
    assert wrappers(run)["worker-0"] == first["worker-0"]
    with run.reader() as reader:
        assert (reader.verdicts(), reader.decisions()) == ([], [])
        status = reader.status(0)
        assert status.sizes == {"worker": 1}
        assert [slot.exit for slot in status.slots if slot.slot == 0] == ["0"]
        assert [slot.note for slot in status.slots] == [None, "removed by a resize", "removed by a resize"]
        assert (status.succeeded, status.failed, status.stopped) == (1, 0, 2)
    text = b"".join(path.read_bytes() for path in sorted((run.path / "logs").rglob("*.log")))
    for line in (b"slot 2 is rank", b"slot 1 is rank", b"slot 0 is rank"):
        assert line in text


def test_an_elastic_gang_goes_on_without_a_node_that_was_killed(bench: Bench) -> None:
    run = bench.run_dir(spec(bench, nnodes=1, nnodes_max=2))
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 2)
    kill_node(run, 1)
    here(bench, 1)
    wait_until(
        lambda: any("continues in a new round" in text for text in bench.texts("gap")),
        timeout=WAIT,
        what="the new round",
    )
    (bench.folder / "leave").touch()
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts) == ("succeeded", 1), bench.events
    with run.reader() as reader:
        assert reader.verdicts() == []


@pytest.mark.full
def test_a_rank_that_falls_by_itself_ends_an_elastic_gang_though_torchrun_would_start_it_again(bench: Bench) -> None:
    run = bench.run_dir(spec(bench, nnodes=1, nnodes_max=2))
    supervisor = Threaded(bench, run, wait=WAIT)
    here(bench, 2)
    (bench.folder / "fall-1").touch()
    wait_until(lambda: bench.texts("failure"), timeout=WAIT, what="the fall")
    (bench.folder / "fall-1").unlink(missing_ok=True)
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts, outcome.code) == ("failed", 1, 1), bench.events
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.slot) == ("user_code_exception", 1)


def kill_node(run: RunDir, slot: int) -> None:
    """All processes of a slot at once, its wrapper first."""
    folder = run.path / "slots" / "attempt-1" / f"worker-{slot}"
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and belongs(path, folder)]
    wrapper = int((folder / "lock").read_text().split()[0])
    for pid in (wrapper, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def belongs(process: Path, folder: Path) -> bool:
    try:
        return f"RANKFALL_SLOT_DIR={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
