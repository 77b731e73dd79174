"""Errors that ranks survive, and errors after their work: real runs of small jobs, three ranks started by Rankfall itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

JOB = """
import atexit, os, sys, time
from rankfall_inside import progress
rank = int(os.environ["RANK"])


def work(first, last):
    for step in range(first, last):
        print(f"step {step} loss {9 / (step + 1):.4f}", flush=True)
        time.sleep(0.02)


def meet():
    # Ranks come to the same point without torch: each leaves a file and waits for the others'.
    here = os.environ["MEET"]
    open(f"{here}/{rank}", "w").close()
    while len(os.listdir(here)) < 3:
        time.sleep(0.01)


work(0, 3)
"""
SURVIVED = """
if rank == 1:
    print("retry 1/5: OSError: [Errno 116] Stale file handle: '/data/shard_17'", file=sys.stderr, flush=True)
work(3, 20)
meet()
if rank == 2:
    batch = {}
    batch["token_type_ids"]
time.sleep(600)
"""
RETRIED = """
if rank == 1:
    print("caught torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; batch halved", flush=True)
work(3, 20)
meet()
if rank == 2:
    os._exit(3)
time.sleep(600)
"""
AT_EXIT = """
if rank == 1:
    atexit.register(os._exit, 1)
work(3, 6)
print("training finished", flush=True)
meet()
"""
TEARDOWN = """
work(3, 6)
progress(6, "teardown")
meet()
if rank == 1:
    raise RuntimeError("DataLoader worker (pid(s) 123) exited unexpectedly")
"""
DONE = """
work(3, 6)
progress(phase="done")
meet()
if rank == 1:
    raise OSError(116, "Stale file handle")
"""


CAUGHT = """
import signal, traceback
if rank == 1:
    try:
        import xformers_that_nobody_has
    except ImportError:
        traceback.print_exc()
work(3, 60)
meet()
if rank == 1:
    END
time.sleep(600)
"""


@pytest.fixture
def run(folder: Path, rankfall: Callable[..., object]) -> Callable[[str], tuple[dict[str, object], int, int]]:
    """Runs a job with one retry allowed; gives its verdict, the exit code and the number of attempts."""

    def call(text: str) -> tuple[dict[str, object], int, int]:
        (folder / "job.py").write_text(JOB + text)
        meet = folder / "meet"
        meet.mkdir()
        done = rankfall(
            "run", "--quiet", "--name", "job", "--launcher", "plain", "--nproc-per-node", "3", "--max-restarts", "1", "job.py", MEET=str(meet)
        )  # fmt: skip
        shown = json.loads(rankfall("ps", "-o", "json").stdout)["runs"][0]
        verdict = json.loads(rankfall("why", shown["run"], "-o", "json").stdout)
        return verdict, done.returncode, shown["attempts"]

    return call


@pytest.mark.parametrize(("text", "slug", "code"), [(SURVIVED, "user_code_exception", 1), (RETRIED, "user_exit", 3)])
def test_i18_p8_a_line_that_another_rank_survived_takes_no_blame(run, text, slug, code):
    verdict, exit_code, attempts = run(text)
    assert (verdict["rank"], verdict["cause"]["slug"], exit_code) == (2, slug, code)
    assert (verdict["retry"] in {"yes", "elsewhere"}, verdict["node_action"]) == (False, "none")
    assert all(e["role"] == "context" for e in verdict["evidence"] if e["rank"] == 1 and e["source"] == "log")
    assert attempts <= 1 + (verdict["retry"] == "once")


@pytest.mark.parametrize(
    ("text", "slug"), [(AT_EXIT, "user_exit"), (TEARDOWN, "dataloader_died"), (DONE, "shared_fs_error")]
)
def test_i18_p8_what_fails_after_the_work_is_not_started_again(run, text, slug):
    verdict, exit_code, attempts = run(text)
    assert (verdict["state"], verdict["rank"], verdict["cause"]["slug"], exit_code) == ("failed", 1, slug, 1)
    assert (verdict["phase"], verdict["retry"], attempts) == ("teardown", "no", 1)


@pytest.mark.parametrize(
    ("end", "slug"), [("os.kill(os.getpid(), signal.SIGKILL)", "killed_unknown"), ("os._exit(2)", "user_exit")]
)
def test_a_traceback_that_its_rank_caught_long_before_its_silent_end_is_not_the_cause(run, end, slug):
    verdict, _, _ = run(CAUGHT.replace("END", end))
    assert (verdict["cause"]["slug"], verdict["rank"]) == (slug, 1)
    assert any("xformers" in proof["line"] and proof["role"] == "context" for proof in verdict["evidence"])
