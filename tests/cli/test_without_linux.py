"""The command on a system without /proc and Linux's own calls, as macOS: files and cluster jobs yes, local runs no."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import without_linux

LOG = """\
step 1
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 3, in <module>
[rank3]:     batch["label"]
[rank3]: KeyError: 'label'
"""
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mac(tmp_path: Path) -> Command:
    env = os.environ | {
        "PYTHONPATH": str(without_linux.FOLDER),
        "RANKFALL_HOME": str(tmp_path / "home"),
        "KUBECONFIG": str(tmp_path / "none"),
    }
    (tmp_path / "console.log").write_text(LOG)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (sys.executable, "-m", "rankfall", *words),
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return call


def test_i24_p1_the_imitated_system_lacks_what_macos_lacks() -> None:
    code = "import os, sys; print(sys.platform, os.path.exists('/proc/self/stat'), hasattr(os, 'pidfd_open'))"
    done = subprocess.run(
        (sys.executable, "-c", code),
        env=os.environ | {"PYTHONPATH": str(without_linux.FOLDER)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["darwin", "False", "False"]


def test_i24_p1_logs_are_explained_and_reported_without_linux(mac: Command, tmp_path: Path) -> None:
    done = mac("why", "console.log", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["cause"]["slug"], found["rank"]) == ("user_code_exception", 3)
    assert mac("report", "console.log", "-o", "report.html").returncode == 0
    assert "KeyError" in (tmp_path / "report.html").read_text()


def test_i24_p1_a_local_run_is_refused_with_the_reason_and_leaves_nothing(mac: Command, tmp_path: Path) -> None:
    for words in (("run", "--launcher", "plain", "train.py"), ("submit", "--launcher", "plain", "train.py")):
        (tmp_path / "train.py").write_text("")
        done = mac(*words)
        assert done.returncode == 2
        assert "need Linux with /proc" in done.stderr
        assert "this is macOS" in done.stderr
        assert "next: start the job on a cluster" in done.stderr
    assert not list(tmp_path.glob("home/runs/*"))


@pytest.mark.parametrize(("words", "state", "code"), [((), "warn", 0), (("--backend", "local"), "fail", 69)])
def test_i24_p1_doctor_says_what_works_without_linux(
    mac: Command, words: tuple[str, ...], state: str, code: int
) -> None:
    done = mac("doctor", "-o", "json", *words)
    assert done.returncode == code, done.stderr
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert (checks["system"]["state"], checks["system"]["text"]) == (
        state,
        "macOS runs no local jobs: the local backend needs Linux",
    )
    assert "proc" not in checks
    assert "shm" not in checks


@pytest.mark.parametrize(
    "words",
    [
        ("ps",),
        ("config", "show"),
        ("status",),
        ("why", "job/x"),
        ("logs", "-f", "job/x"),
        ("run", "--backend", "job", "--image", "x", "/app/train.py"),
    ],
)
def test_i24_p1_each_command_answers_without_linux(mac: Command, words: tuple[str, ...]) -> None:
    done = mac(*words)
    assert "defect" not in done.stderr
    assert done.returncode in {0, 66, 69}, done.stderr
