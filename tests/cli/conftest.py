from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfall.model import FINAL_STATES
from rankfall.rundir import list_runs
from support.patience import scaled

TRAIN = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), os.environ["RANKFALL_ATTEMPT"]
gate = os.environ.get("GATE")
for step in range(3):
    print(f"rank {rank} step {step}", flush=True)
print(f"rank {rank} to stderr", file=sys.stderr, flush=True)
while gate and not os.path.exists(gate):
    time.sleep(0.01)
if "fail" in sys.argv and rank == 1:
    raise TypeError("unsupported operand")
if "kill" in sys.argv and rank == 1 and attempt == "1":
    os.kill(os.getpid(), 9)
if "exit" in sys.argv and rank == 1:
    os._exit(17)
"""

Runner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    monkeypatch.setenv("RANKFALL_HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("NO_COLOR", "RANKFALL_DEBUG", "RANKFALL_CONFIG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def folder(tmp_path: Path, home: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    (path / "train.py").write_text(TRAIN)
    return path


@pytest.fixture
def rankfall(folder: Path) -> Iterator[Runner]:
    """Runs the real command in the folder of ``train.py``; a job that a failed test left behind is cancelled."""

    def call(*words: str, stdin: bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*words),
            cwd=folder,
            env=os.environ | env,
            input=stdin,
            capture_output=True,
            timeout=scaled(50),
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    yield call
    for run in list_runs(folder.parent / "home"):
        with run.reader() as reader:
            ended = reader.summary().state in FINAL_STATES
        if not ended or run.lease_holder() is not None:
            call("cancel", run.id)


@pytest.fixture
def start(folder: Path, rankfall: Runner) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the real command and leaves it running; what still runs after the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def call(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        env = os.environ | options.pop("env", {})
        made = subprocess.Popen(command(*words), cwd=folder, env=env, **options)
        started.append(made)
        return made

    yield call
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rankfall", *words]
