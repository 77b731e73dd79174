"""``suspend`` and ``resume`` as people type them, and jobs for a backend that is not there or has no use for a section."""

from __future__ import annotations

import json
from pathlib import Path

from support.helpers import wait_until

from .conftest import Runner

WAIT = 20.0


def state(rankfall: Runner, run: str) -> str:
    text: str = json.loads(rankfall("status", run, "-o", "json").stdout)["state"]
    return text


def test_jobapi_s09_a_run_begun_suspended_starts_with_resume(rankfall: Runner, home: Path) -> None:
    run = rankfall("submit", "--suspend", "--launcher", "plain", "train.py").stdout.strip()
    wait_until(lambda: state(rankfall, run) == "suspended", timeout=WAIT, what="the suspension")
    assert not list((home / "runs" / run / "slots").rglob("*"))
    assert "suspended by its job spec" in rankfall("status", run).stdout
    assert "not suspended" not in rankfall("suspend", run).stderr
    done = rankfall("resume", run)
    assert (done.returncode, done.stdout) == (0, f"{run} resumed\n")
    assert rankfall("wait", run, "--timeout", "30s").returncode == 0


def test_jobapi_s10_suspend_stops_all_and_resume_goes_on(rankfall: Runner, folder: Path) -> None:
    gate = folder / "gate"
    run = rankfall("submit", "--launcher", "plain", "-e", f"GATE={gate}", "train.py").stdout.strip()
    wait_until(lambda: state(rankfall, run) == "running", timeout=WAIT, what="the job")
    done = rankfall("suspend", run, "--reason", "lunch")
    assert (done.returncode, done.stdout) == (0, f"{run} suspended\n")
    status = json.loads(rankfall("status", run, "-o", "json").stdout)
    assert status["state"] == "suspended"
    assert status["reason"].endswith(": lunch")
    assert [slot["state"] for slot in status["slots"]] == ["ended"]
    gate.touch()
    rankfall("resume", run)
    done = rankfall("wait", run, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["attempts"]) == (0, 2)
    for verb in ("suspend", "resume"):
        late = rankfall(verb, run)
        assert late.returncode == 2
        assert f"nothing to {verb}" in late.stderr


def test_resume_of_a_run_that_is_not_suspended_says_so(rankfall: Runner, folder: Path) -> None:
    run = rankfall("submit", "--launcher", "plain", "-e", f"GATE={folder / 'gate'}", "train.py").stdout.strip()
    wait_until(lambda: state(rankfall, run) == "running", timeout=WAIT, what="the job")
    done = rankfall("resume", run)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{run} is not suspended: running" in done.stderr


def test_a_backend_that_is_not_there_is_refused_before_anything_is_created(rankfall: Runner, home: Path) -> None:
    done = rankfall("run", "--backend", "lsf", "train.py")
    assert done.returncode == 2
    assert "allowed values of $.backend: local, slurm, job, jobset, trainjob" in done.stderr
    assert not home.exists()


def test_what_only_a_cluster_can_use_is_named_in_the_plan(rankfall: Runner, home: Path) -> None:
    done = rankfall(
        "run", "--dry-run", "--launcher", "plain", "--image", "a:1", "--gpus", "2", "--ttl", "1d", "train.py"
    )
    assert done.returncode == 0, done.stderr
    assert "kubernetes: not used by the local backend (image, resources)" in done.stdout
    assert "ttl_s: not used by the local backend" in done.stdout
    assert not home.exists()


def test_what_only_a_cluster_can_do_is_refused(rankfall: Runner, folder: Path) -> None:
    del folder
    done = rankfall("run", "--unattended", "train.py")
    assert done.returncode == 2
    assert "$.unattended" in done.stderr
