"""A supervisor killed after the final state was stored: who looks at the run next writes the files that its end owes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankfall.client import create_run
from rankfall.client.run import Run
from rankfall.model import StoreError
from rankfall.rundir import RunDir
from rankfall.rundir.lines import derived_files
from rankfall.supervisor.outcome import begin, done, finish_files, pending_cleanup
from rankfall.supervisor.supervise import finish
from support.helpers import wait_until
from support.patience import scaled
from support.stream_files import row, stream

from .conftest import Bench
from .test_resume import mortal

HELLO = "[attempt 1]\n[rank 0] hello\n"


def ended(bench: Bench, **fields: Any) -> RunDir:
    """A run as it is right after its supervisor stored that it had succeeded."""
    run = create_run(bench.spec(nnodes=1, **fields), home=bench.home)
    out = stream(run, "r0")
    out.write(b"hello\n", at=1)
    with run.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        writer.put_streams([row(run, out, 0)])
        writer.end_attempt(1, at=2, state="succeeded")
        begin(run)
        writer.set_run("succeeded", reason=None, at=3)
    return run


def text(folder: Path) -> str:
    return (folder / derived_files.ALL_RANKS).read_text()


def test_a_supervisor_that_dies_right_after_the_final_state_is_finished_by_the_next(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("print('hello')", nnodes=1))
    # A life stores three states: starting, running, and this one.
    assert mortal(run, 3, "after-set_run").returncode == -9
    assert pending_cleanup(run) == "files"
    with run.reader() as reader:
        assert reader.run().state == "succeeded"
    assert not (run.path / derived_files.ALL_RANKS).exists()
    assert asyncio.run(Run(run).wait(timeout=scaled(60))).state == "succeeded"
    assert text(run.path) == HELLO
    assert pending_cleanup(run) is None


def test_the_files_are_written_once_by_who_looks_first_and_the_rest_by_who_waits(bench: Bench) -> None:
    folder = bench.folder / "logs"
    run = ended(bench, log_dir=str(folder))
    with run.lease():
        finish_files(run)
        finish(run)
        assert pending_cleanup(run) == "files", "somebody holds it"
    finish_files(run)
    assert text(run.path) == text(folder) == HELLO
    assert (folder / "rank-00000.log").read_text() == "hello\n"
    assert pending_cleanup(run) == "rest"
    written = (run.path / derived_files.ALL_RANKS).stat().st_ino
    finish_files(run)
    assert asyncio.run(Run(run).wait(timeout=scaled(60))).state == "succeeded"
    assert pending_cleanup(run) is None
    assert (run.path / derived_files.ALL_RANKS).stat().st_ino == written
    assert text(folder) == HELLO


def test_a_run_that_ended_in_order_owes_nothing(bench: Bench) -> None:
    run, _ = bench.run("print('hello')", nnodes=1)
    assert pending_cleanup(run) is None
    written = (run.path / derived_files.ALL_RANKS).stat().st_ino
    finish_files(run)
    finish(run)
    assert (run.path / derived_files.ALL_RANKS).stat().st_ino == written


def test_files_that_find_no_room_are_tried_again_by_the_next_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(run_dir: RunDir) -> list[str]:
        raise StoreError(f"cannot write the derived logs in {run_dir.path}: No space left", hint="free space")

    run = ended(bench)
    with monkeypatch.context() as patch:
        patch.setattr(derived_files, "write_derived", full)
        finish_files(run)
    done(run)
    assert pending_cleanup(run) == "files"
    finish_files(run)
    assert text(run.path) == HELLO


def test_what_is_marked_and_has_not_ended_is_left_to_its_supervisor(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(nnodes=1))
    begin(run)
    finish_files(run)
    finish(run)
    assert pending_cleanup(run) == "files"
    assert not (run.path / derived_files.ALL_RANKS).exists()


def test_logs_s4_the_file_of_all_ranks_grows_while_the_run_goes_on_and_outlives_its_supervisor(bench: Bench) -> None:
    """The job itself waits until what it printed stands in the file; then its supervisor is killed, and another goes on."""
    folder = bench.folder / "logs"
    code = f"""
from pathlib import Path
path = Path({str(folder / derived_files.ALL_RANKS)!r})
for number in range(2):
    print(f"line {{number}}", flush=True)
    deadline = time.monotonic() + 600
    while f"[rank 0] line {{number}}\\n" not in path.read_text():
        if time.monotonic() > deadline:
            sys.exit(9)
        time.sleep(0.02)
    Path(f"seen-{{number}}").touch()
    while number == 0 and not Path("go").exists():
        time.sleep(0.02)
"""
    run = create_run(bench.spec(code, nnodes=1, log_dir=str(folder)), home=bench.home)
    bench.made.append(run)
    first = subprocess.Popen([sys.executable, "-m", "rankfall.supervisor", str(run.path)])
    wait_until((bench.folder / "seen-0").exists, timeout=60, what="the first line in the file")
    first.kill()
    first.wait(scaled(10))
    (bench.folder / "go").touch()
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.attempts) == ("succeeded", 1)
    assert text(folder) == "[attempt 1]\n[rank 0] line 0\n[rank 0] line 1\n"
    assert text(folder) == text(run.path)
