"""Whatever a job prints or leaves in its folders, the run is supervised to its end with the verdict of its true end. Real processes.

The inputs are the shared table of ``hostile_inputs``, the same that ``why DIR`` is tested with; several share one run, which keeps this short.
"""

from __future__ import annotations

import json
import random
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfall.rundir import RunDir, list_runs
from support import hostile_inputs
from support.helpers import wait_until
from support.hostile_inputs import Kind, of_kind
from support.patience import scaled

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
GANG = ("--nnodes", "2", "--launcher", "plain", "--max-restarts", "0")
TESTS = str(Path(hostile_inputs.__file__).parents[2])
# Bytes of each text, and of each file.
TEXT = 24 << 10
FILE = 24 << 10
PARTS = 4

JOB = """
import contextlib, os, sys
from pathlib import Path
sys.path.insert(0, os.environ["TESTS"])
from support.hostile_inputs import INPUTS, Kind

rank, size = int(os.environ["RANK"]), int(os.environ["SIZE"])
slot, records = Path(os.environ["RANKFALL_SLOT_DIR"]), Path(os.environ["RANKFALL_RECORD_DIR"])
names = os.environ["INPUTS"].split() if rank else []

def leave(folder, name, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)

with contextlib.ExitStack() as trees:
    for number, name in enumerate(names):
        one = INPUTS[name]
        out = (sys.stdout, sys.stderr)[number % 2].buffer
        if one.kind is Kind.TEXT:
            for piece in one.pieces(size):
                out.write(piece)
            out.write(b"\\n")
            out.flush()
        elif one.kind is Kind.TREE:
            streams = slot.parents[2] / "logs" / "attempt-1" / "worker-1"
            trees.enter_context(one.laid(streams / "0" / f"x{number}.log"))
            trees.enter_context(one.laid(streams / str(number + 7)))
        else:
            data = one.data(size)
            leave(records, f"error-{number}-{rank}.json", data)
            leave(slot / "errors", f"error-{number}.pb", data)
            leave(records / "errors", f"error-{number}-{rank}.pb", data)
            leave(slot / "flight", f"nccl_trace_rank_{number}", data)
            if number < 8:
                leave(slot / "errors", f"{number}.json", data)
    print("all of it is there", flush=True)
    if rank == 1:
        config = {}
        config["learning rate"]
"""

FLOOD = """
import os, signal, sys, time
sys.path.insert(0, os.environ["TESTS"])
from support.hostile_inputs import INPUTS

def stopped(number, frame):
    with open(os.environ["STOPPED"], "w") as file:
        file.write(str(time.time_ns()))
    os._exit(0)

signal.signal(signal.SIGTERM, stopped)
print("here", flush=True)
data = INPUTS[os.environ["SHAPE"]].data(1 << 20)
while True:
    sys.stdout.buffer.write(data)
"""


def chosen(*kinds: Kind) -> list[str]:
    # What is nested too deeply for pytest to remove it is left to the tests of ``why DIR``.
    return [one.name for one in of_kind(*kinds) if not one.full and not one.root and not one.name.startswith("nested-")]


@pytest.fixture
def job(folder: Path) -> Path:
    path = folder / "job.py"
    path.write_text(JOB)
    return path


def judged(rankfall: Runner, home: Path, names: list[str], *, size: int) -> tuple[dict[str, Any], RunDir]:
    """The verdict of a run whose ranks print or leave these inputs, and the run."""
    done = rankfall("run", *GANG, "--quiet", "job.py", TESTS=TESTS, INPUTS=" ".join(names), SIZE=str(size))
    assert "rankfall-exit: " in done.stderr, done.stderr[-3000:]
    assert "rankfall-exit: rankfall 74" not in done.stderr, done.stderr[-3000:]
    (run,) = list_runs(home)
    for words in (("status", run.id), ("logs", run.id, "--tail", "50"), ("attach", run.id), ("why", run.id)):
        shown = rankfall(*words)
        # The run's own code with attach, and never that the record cannot be read.
        assert shown.returncode != 74, (words, shown.stderr[-3000:])
        assert "details are in" not in shown.stderr, (words, shown.stderr[-3000:])
    with run.reader() as reader:
        (row,) = [one for one in reader.attempts() if one.attempt == 1]
        assert row.state == "failed"
    said = rankfall("why", run.id, "-o", "json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout), run


def blames_the_key(verdict: dict[str, Any]) -> None:
    assert (verdict["state"], verdict["rank"], verdict["exit_origin"]) == ("failed", 1, "rank"), verdict["cause"]
    assert "KeyError" in verdict["decisive"]["line"], verdict["decisive"]


def test_there_are_at_least_90_inputs() -> None:
    assert len(chosen(Kind.TEXT, Kind.ERROR_FILE, Kind.DUMP, Kind.TREE)) >= 90


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("part", [0, *(pytest.param(one, marks=pytest.mark.full) for one in range(1, PARTS))])
def test_i18_live_hostile_texts_leave_the_true_end(part: int, rankfall: Runner, home: Path) -> None:
    verdict, _ = judged(rankfall, home, chosen(Kind.TEXT)[part::PARTS], size=TEXT)
    blames_the_key(verdict)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.full)])
def test_i18_live_hostile_files_leave_the_true_end(part: int, rankfall: Runner, home: Path) -> None:
    verdict, _ = judged(rankfall, home, chosen(Kind.ERROR_FILE, Kind.DUMP)[part::2], size=FILE)
    blames_the_key(verdict)


@pytest.mark.usefixtures("job")
def test_i18_live_hostile_trees_among_the_streams_leave_the_true_end(rankfall: Runner, home: Path) -> None:
    verdict, run = judged(rankfall, home, chosen(Kind.TREE), size=FILE)
    # What lies among its streams is what the job printed.
    assert (verdict["state"], verdict["exit_origin"]) == ("failed", "rank"), verdict["cause"]
    for path in (run.path / "problems").glob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture
def flood(folder: Path) -> Path:
    path = folder / "flood.py"
    path.write_text(FLOOD)
    return path


def printed(run: RunDir) -> int:
    """Bytes of all streams."""
    return sum(path.stat().st_size for path in run.logs_dir.rglob("*.log"))


def stop_times(run: RunDir) -> Iterator[int]:
    """When a stop was shown, nanoseconds since the epoch."""
    for line in (run.path / "events.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["kind"] == "stopping":
            yield event["at"]


@pytest.mark.usefixtures("flood")
@pytest.mark.parametrize(
    "shape",
    [
        "traceback-interleaved",
        pytest.param("different-errors", marks=pytest.mark.full),
        pytest.param("traceback-prefix-dice", marks=pytest.mark.full),
    ],
)
def test_i18_live_a_stop_is_requested_and_shown_soon_at_any_moment(
    shape: str, rankfall: Runner, start: Starter, home: Path, folder: Path
) -> None:
    """SIGTERM at a random moment of a flood; nobody reads what the run prints, so its view waits for ever."""
    stopped = folder / "stopped"
    env = {"TESTS": TESTS, "SHAPE": shape, "STOPPED": str(stopped)}
    process = start(
        "run", "--nproc-per-node", "1", "--launcher", "plain", "flood.py",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env,
    )  # fmt: skip
    (run,) = wait_until(lambda: list_runs(home), timeout=20, what="the run")
    # At any moment: after so many bytes.
    much = random.randrange(1, 32 << 20)
    wait_until(lambda: printed(run) >= much, timeout=40, what=f"{much} bytes")
    at = time.time_ns()
    process.send_signal(signal.SIGTERM)
    wait_until(stopped.exists, timeout=30, what="the stop of the job")
    # How soon, make bench-hostile measures.
    assert wait_until(lambda: next(stop_times(run), None), timeout=30, what="a stop that is shown") >= at
    # Nobody will read it: the view gives up, and says how the run ended.
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=scaled(30))
    assert b"rankfall: cancelling " in err
    assert b"rankfall-exit: rankfall 130" in err, err[-2000:]
