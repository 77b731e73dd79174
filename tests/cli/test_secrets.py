"""The secrets of a job on this machine: in its processes and in secrets.json, and in no other file and no output of a run."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rankfall.model import JobSpec
from rankfall.rundir import RunDir, list_runs
from support.helpers import wait_until
from support.patience import scaled

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]

VALUE = "hunter2-abcdefgh"
SEES = """
import os, sys, time
assert os.environ["MY_TOKEN"] == os.environ["EXPECT"][::-1], "the variable is not the value"
assert f"--api-key={os.environ['EXPECT'][::-1]}" in sys.argv, "the argument is not the value"
print("sees it in attempt", os.environ["RANKFALL_ATTEMPT"], flush=True)
gate = os.environ.get("GATE")
while gate and not os.path.exists(gate):
    time.sleep(0.01)
if "kill" in sys.argv and os.environ["RANKFALL_ATTEMPT"] == "1":
    os.kill(os.getpid(), 9)
"""
# The value is known to the test's job only backwards, so that the job does not bring it into files itself.
WORDS = ("--launcher", "plain", "-e", f"EXPECT={VALUE[::-1]}", "-e", f"MY_TOKEN={VALUE}")
JOB = ("--", "sees.py", f"--api-key={VALUE}")


@pytest.fixture(autouse=True)
def sees(folder: Path) -> None:
    (folder / "sees.py").write_text(SEES)


def holding(folder: Path, value: str = VALUE) -> list[str]:
    """Files below a folder that have the value in their bytes."""
    found = [path for path in folder.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    return sorted(str(path.relative_to(folder)) for path in found)


def only_run(home: Path) -> RunDir:
    (run,) = list_runs(home)
    return run


def test_i18_p9_no_file_and_no_output_has_the_value_but_secrets_json(
    rankfall: Runner, home: Path, folder: Path
) -> None:
    done = rankfall("run", *WORDS, *JOB, "kill")
    assert done.returncode == 0, done.stderr
    assert "sees it in attempt 2" in done.stdout
    run = only_run(home)
    assert holding(home) == [f"runs/{run.id}/secrets.json"]
    assert stat.S_IMODE((run.path / "secrets.json").stat().st_mode) == 0o600
    spec = json.loads((run.path / "spec.json").read_bytes())
    assert (spec["env"]["MY_TOKEN"], spec["command"][1:]) == ("***", ["--api-key=***", "kill"])
    shown = [("status",), ("why",), ("logs",), ("status", "-o", "json"), ("why", "-o", "json")]
    said = [rankfall(words[0], run.id, *words[1:]) for words in shown] + [rankfall("ps"), rankfall("config")]
    assert [one.returncode for one in said[:5]] == [0] * 5
    assert VALUE not in done.stdout + done.stderr + "".join(one.stdout + one.stderr for one in said)
    assert VALUE not in repr(run.spec) + repr(run.whole_spec())
    assert run.whole_spec().env["MY_TOKEN"] == VALUE


def test_i18_p9_a_supervisor_that_takes_over_starts_the_next_attempt_with_the_value(
    start: Starter, rankfall: Runner, folder: Path, home: Path
) -> None:
    gate = folder / "gate"
    running = start("run", *WORDS, *JOB, "kill", env={"GATE": str(gate)}, stdout=-3, stderr=-3)
    wait_until(lambda: list_runs(home) and "sees it" in _logs(home), timeout=40, what="the job's line")
    # While it lives: the database and its journal too.
    assert holding(home) == [f"runs/{only_run(home).id}/secrets.json"]
    running.send_signal(signal.SIGKILL)
    running.wait(scaled(10))
    gate.touch()
    done = rankfall("attach")
    assert done.returncode == 0, done.stderr
    assert "sees it in attempt 2" in _logs(home)
    assert holding(home) == [f"runs/{only_run(home).id}/secrets.json"]


def test_i18_p9_a_variable_from_the_callers_environment(rankfall: Runner, home: Path) -> None:
    words = ("submit", "--launcher", "plain", "-e", f"EXPECT={VALUE[::-1]}", "-e", "MY_TOKEN", *JOB)
    assert "there is no such variable here" in rankfall(*words).stderr
    done = rankfall(*words, MY_TOKEN=VALUE)
    assert done.returncode == 0, done.stderr
    # Not of this environment any more: what was there at the submission counts.
    variable = "MY_TOKEN"
    assert rankfall("wait", **{variable: "another"}).returncode == 0
    assert "sees it in attempt 1" in _logs(home)
    assert holding(home) == [f"runs/{only_run(home).id}/secrets.json"]


def test_i18_p9_a_suspended_run_has_the_value_when_it_goes_on(rankfall: Runner, home: Path) -> None:
    assert rankfall("submit", "--suspend", *WORDS, *JOB).returncode == 0
    run = only_run(home)
    assert rankfall("resume", run.id).returncode == 0
    assert rankfall("wait", run.id).returncode == 0
    assert "sees it in attempt 1" in _logs(home)


def test_i18_p9_a_stored_spec_is_no_job_to_submit(rankfall: Runner, home: Path) -> None:
    assert rankfall("run", *WORDS, *JOB).returncode == 0
    again = rankfall("run", "-f", str(only_run(home).path / "spec.json"))
    assert again.returncode == 2
    assert "is masked: the value itself is not in this document" in again.stderr
    assert len(list_runs(home)) == 1
    # With the values of this call it is.
    assert rankfall("run", "-f", str(only_run(home).path / "spec.json"), "-e", "MY_TOKEN=x").returncode == 2


def test_i18_p9_nothing_is_started_where_the_values_are_gone(
    start: Starter, rankfall: Runner, folder: Path, home: Path
) -> None:
    gate = folder / "gate"
    running = start("run", *WORDS, *JOB, "kill", env={"GATE": str(gate)}, stdout=-3, stderr=-3)
    wait_until(lambda: list_runs(home) and "sees it" in _logs(home), timeout=40, what="the job's line")
    running.send_signal(signal.SIGKILL)
    running.wait(scaled(10))
    (only_run(home).path / "secrets.json").unlink()
    gate.touch()
    done = rankfall("attach")
    assert done.returncode != 0
    assert "attempt 2 could not be planned: the value at /env/MY_TOKEN" in rankfall("status").stdout
    assert "attempt 2" not in _logs(home)


def test_i18_p9_a_run_directory_of_an_earlier_version_goes_on(rankfall: Runner, home: Path, folder: Path) -> None:
    env = {"MY_TOKEN": VALUE, "EXPECT": VALUE[::-1]}
    spec = JobSpec(
        command=("sees.py", f"--api-key={VALUE}"), launcher="plain", env=env, cwd=str(folder), python=sys.executable
    )
    run = RunDir.create(spec, home=home)
    (run.path / "secrets.json").unlink()
    (run.path / "spec.json").write_bytes(msgspec.json.encode(spec))
    done = rankfall("attach", run.id)
    assert done.returncode == 0, done.stderr
    assert "sees it in attempt 1" in done.stdout


def _logs(home: Path) -> str:
    return "".join(path.read_text("utf-8", "replace") for path in home.glob("runs/*/logs/**/*.log"))
