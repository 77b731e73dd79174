"""Every wrong flag, field, file and target: one clear message, the next step, exit code 2 or 66, no traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.cli.app import run
from support.patience import scaled

# words of the command line -> what the message must hold; {job} is a job file with the content below it.
FLAGS = [
    (["run"], ["nothing to run", "rankfall run train.py"]),
    (["run", "--nnodes", "0", "train.py"], ["--nnodes", "MIN:MAX"]),
    (["run", "--nnodes", "x", "train.py"], ["--nnodes", "MIN:MAX"]),
    (["run", "--nnodes", "4:2", "train.py"], ["--nnodes", "MIN <= MAX"]),
    (["run", "--nproc-per-node", "0", "train.py"], ["--nproc-per-node"]),
    (["run", "--nproc_per_node", "gpu", "train.py"], ["--nproc-per-node", "gpu"]),
    (["run", "--max-restarts", "-1", "train.py"], ["--max-restarts"]),
    (["run", "--nproc", "2", "train.py"], ["--nproc", "--nproc-per-node"]),
    (["run", "--launcher", "mpi", "train.py"], ["$.launcher", "auto, torchrun, plain, exec"]),
    (["run", "--inside", "maybe", "train.py"], ["$.inside", "auto, require, off"]),
    (["run", "--name", "Big Job", "train.py"], ["$.name", "lower-case"]),
    (["run", "--replace", "--request-token", "t", "train.py"], ["--replace", "cluster"]),
    (["run", "--replace", "--backend", "job", "--image", "x", "train.py"], ["--replace", "--request-token"]),
    (["run", "--env", "=1", "train.py"], ["--env", "NAME=VALUE"]),
    (["run", "-e", "NO_SUCH_VARIABLE_HERE", "train.py"], ["NO_SUCH_VARIABLE_HERE"]),
    (["run", "-e", "RANKFALL_RUN=x", "train.py"], ["$.env.RANKFALL_RUN"]),
    (["run", "--hang-timeout", "soon", "train.py"], ["--hang-timeout", "10m"]),
    (["run", "--budget", "nonsense=1", "train.py"], ["--budget", "nonsense"]),
    (["run", "--retryable", "a.B", "--final", "a.B", "train.py"], ["$.policies.retryable", "a.B"]),
    (["run", "--retryable", "a b", "train.py"], ["$.policies.retryable", "'a b' is no name of a class", "as: OSError"]),
    (["run", "--", "python", "x\udcff.py"], ["$.command", "not UTF-8", "rename"]),
    (["run", "--nnodes", "1:2", "--launcher", "plain", "train.py"], ["$.launcher", "auto, torchrun"]),
    (["run", "-m"], ["-m names no module"]),
    (["run", "--all", "--rank", "0", "train.py"], ["--all", "--rank"]),
    (["run", "--rank", "x", "train.py"], ["--rank", "first, last, failed"]),
    (["run", "-o", "xml", "train.py"], ["table", "json", "yaml"]),
    (["run", "absent.py"], ["absent.py", "does not exist"]),
    (["run", "--", "no-such-program-anywhere"], ["no-such-program-anywhere", "PATH"]),
    (["run", "--python", "/no/python", "train.py"], ["$.python"]),
    (["run", "--cwd", "/no/such/folder", "train.py"], ["/no/such/folder"]),
    (["run", "-f", "absent.yaml"], ["absent.yaml", "No such file"]),
    (["submit", "--dry-run", "--nnodes", "-3", "train.py"], ["--nnodes"]),
    (
        ["run", "--nnodes", "2", "--", sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "train.py"],
        ["nnodes", "3", "2"],
    ),
    (["logs", "--tail", "-1"], ["--tail"]),
    (["logs", "--stream", "both"], ["--stream", "stdout", "stderr"]),
    (["logs", "--all", "--rank", "1"], ["--all", "--rank"]),
    (["ps", "extra"], ["extra"]),
    (["ps", "--colour"], ["--colour"]),
    (["wait", "--timeout", "soon"], ["--timeout", "10m"]),
    (["why", "-", "other"], ["- stands alone"]),
    (["config", "schema", "nonsense"], ["nonsense", "doctor, job, kernelline"]),
    (["stauts"], ["stauts", "status"]),
    (["--nonsense"], ["--nonsense"]),
]
FIELDS = [
    ("command: train.py", ["$.command"]),
    ("command: []", ["$.command", "empty"]),
    ("command: [train.py]\nnodes: 2", ["$.nodes", "nnodes"]),
    ("command: [train.py]\nnnodes: two", ["$.nnodes"]),
    ("command: [train.py]\nnnodes: 0", ["$.nnodes"]),
    ("command: [train.py]\nnnodes: 4\nnnodes_max: 2", ["$.nnodes_max"]),
    ("command: [train.py]\nbackend: kubernetes", ["$.backend", "local"]),
    ("command: [train.py]\npolicies: {max_restart: 1}", ["$.policies.max_restart", "max_restarts"]),
    ("command: [train.py]\npolicies: {grace_s: -1}", ["$.policies.grace_s"]),
    ("command: [train.py]\npolicies: 3", ["$.policies"]),
    ("command: [train.py]\nenv: {A: 1}", ["$.env"]),
    ("command: [train.py]\nschema: rankfall.job/2", ["$.schema", "rankfall.job/1"]),
    ("command: [train.py", ["line 1"]),
    ("- a\n- b", ["mapping"]),
    ("", ["mapping"]),
    ("\x00", ["YAML"]),
    ("a: &a [*a]\ncommand: [train.py]", ["$.a"]),
    ("command: [train.py]\nrole: 'a b'", ["$.role"]),
]


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def said(capfd: pytest.CaptureFixture[str]) -> str:
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith(("rankfall: ", "newest run"))
    return err


@pytest.mark.parametrize(("words", "holds"), FLAGS, ids=lambda value: " ".join(value)[:40])
def test_a_wrong_flag_is_refused_with_its_name_and_what_is_allowed(
    words: list[str], holds: list[str], here: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    text = said(capfd)
    for part in holds:
        assert part in text
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize(("content", "holds"), FIELDS, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_wrong_field_is_refused_with_its_path(
    content: str, holds: list[str], here: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").write_text(content)
    assert run(["run", "-f", "job.yaml"]) == 2
    text = said(capfd)
    for part in holds:
        assert part in text
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize("verb", ["status", "logs", "attach", "wait", "cancel", "why"])
def test_a_run_that_does_not_exist_is_66(verb: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "nothing-000000"]) == 66
    assert "nothing-000000" in said(capfd)
    assert run([verb]) == 66
    assert "no run yet" in said(capfd)


def test_an_address_is_no_file(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "s3://bucket/logs/rank0.log"]) == 66
    assert "only files are read: save the text" in said(capfd)


def test_a_job_file_that_cannot_be_a_job_file(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "-f", "."]) == 2
    assert "directory" in said(capfd)
    with (here / "big.yaml").open("wb") as file:
        os.ftruncate(file.fileno(), 1 << 30)
    assert run(["run", "-f", "big.yaml"]) == 2
    assert "MiB" in said(capfd)


def test_a_home_that_cannot_be_used_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("")
    monkeypatch.setenv("RANKFALL_HOME", str(here / "file" / "home"))
    assert run(["run", "train.py"]) == 74
    assert "RANKFALL_HOME" in said(capfd)


def test_log_files_are_explained_with_an_empty_home_that_cannot_be_written(
    home: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (here / "a.log").write_text('Traceback (most recent call last):\n  File "a.py", line 3\nKeyError: 1\n')
    assert run(["why", "a.log"]) == 0
    assert "raised KeyError" in capfd.readouterr().out
    assert run(["ps"]) == 0
    # What makes nothing needs no right to make it.
    assert list(home.iterdir()) == []


def test_a_job_file_is_taken_for_a_program_only_with_the_right_next_step(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").write_text("command: [train.py]\n")
    assert run(["run", "job.yaml"]) == 2
    assert "rankfall run -f job.yaml" in said(capfd)
    (here / "job.toml").write_text('command = ["train.py"]\n')
    assert run(["run", "-f", "job.toml"]) == 2
    assert "TOML is not read" in said(capfd)


def test_an_empty_notify_section_is_answered_with_an_example_that_is_valid(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").write_text("command: [train.py]\n")
    assert run(["config", "notify", "-f", "job.yaml"]) == 2
    (here / "job.yaml").write_text("command: [train.py]\n" + said(capfd).partition("as: ")[2])
    assert run(["config", "notify", "-f", "job.yaml"]) == 0
    capfd.readouterr()
    (here / "config.toml").touch()
    monkeypatch.setenv("RANKFALL_CONFIG", str(here / "config.toml"))
    assert run(["config", "notify"]) == 2
    (here / "config.toml").write_text(said(capfd).partition("as: ")[2])
    capfd.readouterr()
    assert run(["config", "notify"]) == 0


def test_a_home_of_another_version_is_refused(home: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "layout").write_text("99\n")
    assert run(["ps"]) == 74
    assert "layout '99'" in said(capfd)


def test_a_defect_is_one_line_and_a_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankfall.cli.commands.runs.list_runs", lambda home: 1 / 0)
    monkeypatch.setattr("tempfile.tempdir", str(here))
    assert run(["ps"]) == 74
    text = said(capfd)
    assert "ZeroDivisionError" in text
    assert len(text.strip().split("\n")) == 2
    assert "1 / 0" in next(here.glob("rankfall-*.txt")).read_text()
    monkeypatch.setenv("RANKFALL_DEBUG", "1")
    assert run(["ps"]) == 74
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words", [["run", "--no-such-flag"], ["submit"], ["wait", "no-such-run"], ["attach", "no-such-run"]]
)
def test_a_refused_start_and_a_failed_wait_say_whose_code_it_is(
    here: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    code = run(words)
    assert capfd.readouterr().err.splitlines()[-1] == f"rankfall-exit: rankfall {code}"
    run(["status", "no-such-run"])
    assert "rankfall-exit" not in capfd.readouterr().err


def test_i19_p13_a_home_without_room_for_the_code_is_no_fault_of_the_code(tmp_path):
    code, home = tmp_path / "code", tmp_path / "home"
    code.mkdir()
    (code / "train.py").write_text("#" * 300_000)
    # A file of 64 KiB at most is what a home without room looks like to who copies there.
    words = f'ulimit -f 64; exec "{sys.executable}" -m rankfall run --code "{code}" -- train.py'
    done = subprocess.run(
        ["bash", "-c", words],
        env=os.environ | {"RANKFALL_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )
    assert done.returncode == 74
    assert f"cannot copy the code: {home}" in done.stderr
    assert f"next: make room in {home}, or set RANKFALL_HOME to a folder on another disk\n" in done.stderr


def test_too_many_open_files_are_no_defect(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(home: Path) -> list[object]:
        raise OSError(errno.EMFILE, "Too many open files", str(home))

    monkeypatch.setattr("rankfall.cli.commands.runs.list_runs", refuse)
    assert run(["ps"]) == 74
    assert (
        said(capfd) == "rankfall: too many open files\n  next: raise the limit of open files, as with ulimit -n 1024\n"
    )


def in_shell(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", words],
        cwd=folder,
        env=os.environ | {"RANKFALL_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("files", [10, 12])
def test_a_low_limit_of_open_files_is_named_as_such(tmp_path: Path, files: int) -> None:
    (tmp_path / "train.py").write_text("")
    words = f'ulimit -n {files}; exec "{sys.executable}" -m rankfall run --launcher plain train.py'
    done = in_shell(tmp_path, words)
    assert done.returncode == 74, done.stderr
    assert "too many open files" in done.stderr.lower()
    assert "  next: raise the limit of open files, as with ulimit -n 1024\n" in done.stderr
    assert "defect" not in done.stderr
    assert "permissions" not in done.stderr


@pytest.mark.parametrize("words", [["why", ""], ["report", ""], ["why", "a.log", ""]])
def test_an_empty_argument_is_not_the_current_folder(
    here: Path, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert "rankfall: an argument is empty\n  next: quotes around an unset variable" in said(capfd)


@pytest.mark.parametrize(("verb", "code"), [("ps", 74), ("why", 74), ("doctor", 0)])
def test_what_only_prints_fails_with_a_closed_stdout(tmp_path: Path, verb: str, code: int) -> None:
    (tmp_path / "a.log").write_text("KeyError: 1\n")
    words = f'exec "{sys.executable}" -m rankfall {verb} {"a.log" if verb == "why" else ""} >&-'
    done = in_shell(tmp_path, words)
    assert ("cannot write to stdout: it is closed" in done.stderr) == (code == 74)


@pytest.mark.parametrize("words", [["run", "--launcher", "plain", "/train.py"], ["submit", "/job.yaml"], ["doctor"]])
def test_a_current_folder_that_was_deleted_is_named_and_no_defect(
    here: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(words) == 2
    text = capfd.readouterr().err
    assert "rankfall: the current folder no longer exists\n  next: cd to a folder that exists" in text
    assert "defect" not in text


@pytest.mark.parametrize(
    ("limit", "words", "code"),
    [
        (("-f", "100"), "a file may have at most ", 74),
        (("-f", "100000"), "", 0),
    ],
)
def test_a_limit_of_file_sizes_is_named_before_anything_is_created(
    here: Path, limit: tuple[str, str], words: str, code: int
) -> None:
    job = (sys.executable, "-m", "rankfall", "run", "--launcher", "plain", "true")
    done = subprocess.run(
        ["sh", "-c", f'ulimit {" ".join(limit)}; exec "$@"', "sh", *job],
        cwd=here,
        capture_output=True,
        timeout=scaled(50),
        check=False,
    )
    said = done.stderr.decode()
    assert (done.returncode, words in said, "ulimit -f unlimited" in said) == (code, True, bool(words)), said
    assert "prune" not in said


def test_too_little_memory_for_rankfall_is_no_defect(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("rankfall.cli.app._invoke", fail)
    assert run(["run", "true"]) == 74
    assert "Rankfall itself has not enough memory\n" in capfd.readouterr().err
