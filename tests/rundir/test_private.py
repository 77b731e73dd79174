"""Whatever Rankfall makes in its home is for its user alone, whatever the umask is."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.cli.commands import doctor
from rankfall.model import InfrastructureError, JobSpec, decoding
from rankfall.rundir import RunDir, home
from rankfall.rundir.layout import Secrets
from rankfall.rundir.lease import append_to, make_folder, private, write_file
from support.patience import scaled

SOURCE = Path(__file__).resolve().parents[2] / "src"
JOB = """
import os, sys, time
sys.path.insert(0, os.environ["INSIDE"])
print("rank", os.environ["RANK"], flush=True)
from rankfall_inside import api
api.progress(step=1)
if "fall" in sys.argv and os.environ["RANKFALL_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
    raise ValueError("of rank 1")
"""


def too_open(folder: Path) -> list[str]:
    """What below a folder, and itself, has another mode than it should."""
    found = []
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = {0o700} if path.is_dir() else {0o600, 0o700} if path.name == "tool.sh" else {0o600}
        if mode not in wanted:
            found.append(f"{path.relative_to(folder)}: {mode:o}")
    return found


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_i18_p9_a_finished_run_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "train.py").write_text(JOB)
    (code / "sub" / "tool.sh").write_text("#!/bin/sh\n")
    (code / "sub" / "tool.sh").chmod(0o755)
    env = os.environ | {
        "RANKFALL_HOME": str(tmp_path / "deep" / "home"),
        "INSIDE": str(SOURCE),
        "A_TOKEN": "hunter2hunter2",
    }
    words = (
        "run",
        "--launcher",
        "plain",
        "--nproc-per-node",
        "2",
        "--code",
        str(code),
        "-e",
        "INSIDE",
        "-e",
        "A_TOKEN",
    )
    log_dir = tmp_path / "logs"
    done = subprocess.run(
        [sys.executable, "-m", "rankfall", *words, "--max-restarts", "1", "--log-dir", str(log_dir), "--", "train.py", "fall"],
        env=env, umask=umask, cwd=tmp_path, capture_output=True, text=True, timeout=scaled(50), check=False,
    )  # fmt: skip
    made = tmp_path / "deep" / "home"
    assert too_open(made) == [], done.stderr
    names = {path.name for path in made.rglob("*")}
    assert {"run.db", "spec.json", "secrets.json", "events.jsonl", "rank-00000.log", "tool.sh", "lease"} <= names
    # What the user asked for is as the user's umask has it.
    modes = {stat.S_IMODE(path.stat().st_mode) for path in log_dir.iterdir()}
    assert modes == {0o666 & ~umask}
    assert len(list(log_dir.iterdir())) > 2


def test_i18_p9_a_home_of_an_earlier_version_is_closed_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "old-0a1b2c").mkdir(parents=True)
    (tmp_path / "inside").mkdir()
    (tmp_path / "layout").write_text("1\n")
    for folder in (tmp_path, tmp_path / "runs", tmp_path / "inside"):
        folder.chmod(0o755)
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path))
    home()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "inside", ".")] == [0o700, 0o700, 0o755]


def test_i18_p9_helpers_make_no_mode_wider_than_it_should_be(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b" / "c")
        make_folder(tmp_path / "a" / "b")
        write_file(tmp_path / "a" / "file", b"x", sync=True)
        with append_to(tmp_path / "a" / "file") as file:
            file.write(b"y")
        os.close(private(tmp_path / "a" / "other", os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(before)
    assert too_open(tmp_path / "a") == []
    assert (tmp_path / "a" / "file").read_bytes() == b"xy"
    for make in (
        lambda: make_folder(tmp_path / "a", new=True),
        lambda: make_folder(tmp_path / "a" / "file"),
        lambda: write_file(tmp_path / "a" / "file", b"", new=True),
    ):
        with pytest.raises(FileExistsError):
            make()


# What makes files elsewhere than in the home: for the user, for the machine that builds, or for a volume of a pod.
_ELSEWHERE = {
    "rankfall/rundir/lease.py", "rankfall/rundir/lines/log_dir.py", "rankfall/rundir/bundle.py", "rankfall/cli/commands/why.py", "rankfall/backends/kubernetes/rights.py",
    "rankfall/backends/kubernetes/copy/transfer.py", "rankfall/cli/commands/doctor.py", "rankfall/kube/discovery.py", "rankfall/nodes/agent/state_file.py",
    "rankfall/rundir/lines/derived_files.py",
}  # fmt: skip
_CALLS = {"write_bytes", "write_text", "mkdir", "makedirs", "touch", "mkfifo", "copyfile", "copy2", "copytree"}


def makes_files(source: str) -> list[str]:
    """Calls that make a file or a folder with the modes of the umask."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        text = ast.unparse(node)
        if "384" in text or "448" in text:
            # Modes that are given: 0o600 and 0o700.
            continue
        if name in _CALLS:
            found.append(text)
        elif name == "open" and "opener=" not in text:
            mode = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if "O_CREAT" in text or any(one and one[0] in "wax" and len(one) <= 3 for one in mode):
                found.append(text)
    return found


def test_i18_p9_all_files_are_made_by_the_helper() -> None:
    found = {}
    for path in sorted((SOURCE / "rankfall").rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name not in _ELSEWHERE and (calls := makes_files(path.read_text())):
            found[name] = calls
    assert found == {}


def test_i18_p9_the_rule_sees_what_makes_files() -> None:
    wide = [
        "path.mkdir(parents=True)",
        "os.open(p, os.O_CREAT, 420)",
        "path.open('wb')",
        "open(p, 'a')",
        "path.touch()",
    ]
    assert makes_files("\n".join(wide)) == wide
    assert (
        makes_files("path.open('rb')\nopen(p, 'wb', opener=private)\nos.open(p, os.O_RDONLY)\npath.mkdir(mode=448)")
        == []
    )


SECRET_JOB = JobSpec(command=("train.py", "--api-key=abcdefgh"), env={"A_TOKEN": "abcdefgh"})


def test_i18_p9_secrets_that_are_damaged_or_gone_stop_what_would_start(tmp_path: Path) -> None:
    run = RunDir.create(SECRET_JOB, home=tmp_path)
    assert run.whole_spec() == SECRET_JOB
    assert RunDir(run.path).spec.env == {"A_TOKEN": "***"}
    path = run.path / "secrets.json"
    kept = path.read_bytes()
    assert b"abcdefgh" not in repr(decoding.decode(kept, kind=Secrets)).encode()
    path.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(InfrastructureError, match="cannot read") as damaged:
        run.whole_spec()
    assert "abcdefgh" not in str(damaged.value)
    path.unlink()
    with pytest.raises(InfrastructureError, match="the value at /env/A_TOKEN"):
        run.whole_spec()


def test_i18_p9_a_job_without_secrets_has_no_such_file(tmp_path: Path) -> None:
    spec = JobSpec(command=("train.py",), env={"LR": "1"})
    run = RunDir.create(spec, home=tmp_path)
    assert not (run.path / "secrets.json").exists()
    assert run.whole_spec() == spec


def test_i18_p9_doctor_says_who_can_read_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path))
    assert doctor.modes().state == "pass"
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o755)
    assert doctor.modes().state == "warn"
    assert "chmod -R go=" in (doctor.modes().next or "")
    home()
    assert doctor.modes().state == "pass"
