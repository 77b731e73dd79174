"""A supervisor killed by SIGKILL anywhere and started again neither repeats nor forgets."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rankfall.rundir import RunDir
from rankfall.rundir.lines import LineQuery, read_lines
from rankfall.supervisor import request_cancel

from .conftest import Bench

MORTAL = Path(__file__).with_name("mortal.py")
# Rank 1 falls in the first attempt, the second succeeds; each start is written down where only the ranks write.
JOB = """
attempt = os.environ["RANKFALL_ATTEMPT"]
with open("starts", "a") as file:
    file.write(f"{attempt} {rank}\\n")
for line in range(20):
    print(f"attempt {attempt} line {line}", flush=True)
    time.sleep(0.005)
if attempt == "1" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""
LINES = [f"attempt {attempt} line {line}" for attempt in (1, 2) for line in range(20)]


def mortal(run: RunDir, moment: int, when: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MORTAL), str(run.path), str(moment), when], capture_output=True, text=True, check=False
    )


def check(bench: Bench, run: RunDir) -> None:
    outcome = bench.supervise(run)
    assert outcome.state == "succeeded"
    assert outcome.attempts == 2
    starts = Counter((bench.folder / "starts").read_text().splitlines())
    assert starts == {"1 0": 1, "1 1": 1, "2 0": 1, "2 1": 1}
    with run.reader() as reader:
        assert [row.attempt for row in reader.attempts()] == [1, 2]
        assert all(row.ended for row in reader.attempts())
        assert [(row.attempt, row.version) for row in reader.verdicts()] == [(1, 1)]
        verdict = reader.verdicts()[0].diagnosis.verdict
        assert (verdict.cause.slug, verdict.rank, verdict.node) == ("killed_unknown", 1, "node1")
        decisions = reader.decisions()
        assert [(row.attempt, row.decision.action, row.decision.state) for row in decisions] == [(1, "retry", "done")]
        assert reader.problems == []
        assert reader.run().incomplete == ()
    for rank in (0, 1):
        lines = [line.data.decode() for line in read_lines(run, LineQuery(ranks=frozenset({rank}), attempt="all"))]
        assert lines == LINES


# A whole life has 30 moments: 3-4 are starts of slots, 13-16 and 19 verdict, end, decision and the way to the next attempt.
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(n, marks=[pytest.mark.full] * (n in {2, 7, 17, 18, 20, 28}))
        for n in (1, 2, 3, 4, 7, 9, 13, 14, 15, 16, 17, 18, 19, 20, 24, 28, 29)
    ],
)
def test_killed_after_a_moment_and_resumed(bench: Bench, moment: int) -> None:
    run = bench.run_dir(bench.spec(JOB))
    done = mortal(run, moment, "after")
    assert done.returncode in {-9, 0}, done.stderr
    check(bench, run)


@pytest.mark.parametrize("moment", [1, 3, 15])
def test_killed_before_a_moment_and_resumed(bench: Bench, moment: int) -> None:
    run = bench.run_dir(bench.spec(JOB))
    assert mortal(run, moment, "before").returncode == -9
    check(bench, run)


def test_killed_again_and_again(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(JOB))
    killed = sum(mortal(run, moment, "after").returncode == -9 for moment in (2, 3, 5, 4, 6, 3))
    assert killed >= 4
    check(bench, run)


def test_a_run_cancelled_while_its_supervisor_was_dead_starts_nothing_more(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(JOB))
    # Dead right after the first of two slots was started.
    assert mortal(run, 3, "after").returncode == -9
    request_cancel(run.path)
    assert bench.supervise(run).state == "cancelled"
    assert not run.slot_dir(1, "worker", 1).exists()


def test_a_verdict_that_was_reached_stands_and_the_slots_are_ended(bench: Bench) -> None:
    """Killed after the verdict of a standstill was stored and before anything was stopped."""
    run = bench.run_dir(bench.spec("time.sleep(600)", policies={"hang_timeout_s": 0.5, "max_restarts": 0}))
    done = mortal(run, 1, "after-add_verdict")
    assert done.returncode == -9, done.stderr
    with run.reader() as reader:
        first = reader.verdicts()
    assert bench.left()
    outcome = bench.supervise(run)
    assert outcome.state == "failed"
    with run.reader() as reader:
        assert reader.verdicts() == first
