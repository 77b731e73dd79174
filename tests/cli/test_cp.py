"""``code`` and ``cp`` on this machine: a run has the code as it was at the submission, and files go to it and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.conftest import Runner
from rankfall.client import Client, SyncClient
from rankfall.model import NotFound, UsageError, spec_from
from rankfall.store import RunDir, list_runs

SHOW = "import os, pathlib; print(os.getcwd()); print(pathlib.Path('word').read_text()); pathlib.Path('out').write_text('made')"


@pytest.fixture
def code(folder: Path) -> Path:
    path = folder / "project"
    (path / "__pycache__").mkdir(parents=True)
    (path / "show.py").write_text(SHOW)
    (path / "word").write_text("first")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def only(folder: Path) -> Path:
    (run,) = list_runs(folder.parent / "home")
    return run.path


def test_launch_s13_a_run_has_its_own_code_and_an_edit_changes_nothing(
    rankfall: Runner, code: Path, folder: Path
) -> None:
    made = rankfall("submit", "--launcher", "plain", "--suspend", "--code", "project", "show.py")
    assert made.returncode == 0, made.stderr
    run = made.stdout.strip()
    (code / "word").write_text("second")
    assert rankfall("resume", run).returncode == 0
    assert rankfall("wait", run).returncode == 0
    lines = rankfall("logs", run, "--no-prefix").stdout.splitlines()
    assert lines == [str(only(folder) / "code"), "first"]
    assert names(only(folder) / "code") == ["out", "show.py", "word"]
    assert not (code / "out").exists()


def test_launch_s50_an_extra_folder_lies_on_top(rankfall: Runner, code: Path, folder: Path) -> None:
    (folder / "extra" / "sub").mkdir(parents=True)
    (folder / "extra" / "word").write_text("extra")
    (folder / "extra" / "sub" / "go.py").write_text(SHOW.replace("'word'", "'../word'"))
    done = rankfall(
        "run",
        "--launcher",
        "plain",
        "--code",
        "project",
        "--code",
        "extra",
        "--code-exclude",
        "*.pyc",
        "--cwd",
        "sub",
        "go.py",
    )
    assert done.returncode == 0, done.stderr
    assert [line.removeprefix("[rank 0] ") for line in done.stdout.splitlines()] == [
        str(only(folder) / "code" / "sub"),
        "extra",
    ]
    assert (only(folder) / "code" / "__pycache__").is_dir()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--code", "nowhere", "show.py"), "nowhere' is no folder"),
        (("--code", "project", "none.py"), "does not exist"),
        (("--code", "project", "--cwd", "/tmp", "show.py"), "a path below the code's folder"),
        (("--code", "project", "--cwd", "none", "show.py"), "is no folder"),
        (("--code", "", "show.py"), "a part that is empty"),
    ],
)
def test_code_that_cannot_work_is_refused_before_anything_is_created(
    rankfall: Runner, code: Path, folder: Path, words: tuple[str, ...], text: str
) -> None:
    done = rankfall("run", *words)
    assert done.returncode == 2
    assert text in done.stderr
    assert list_runs(folder.parent / "home") == []


def test_code_with_a_link_that_leads_out_is_refused_by_name(rankfall: Runner, code: Path, folder: Path) -> None:
    (code / "secret").symlink_to("/etc/passwd")
    for verb in ("run", "submit"):
        done = rankfall(verb, "--code", "project", "show.py")
        assert done.returncode == 2
        assert "secret -> /etc/passwd: the link points out" in done.stderr
    assert list_runs(folder.parent / "home") == []
    assert not list((folder.parent / "home" / "runs").glob(".new*"))


def test_a_home_inside_the_code_is_no_part_of_it(rankfall: Runner, code: Path) -> None:
    done = rankfall("run", "--launcher", "plain", "--code", "project", "show.py", RANKFALL_HOME=str(code / "home"))
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (code / "home" / "runs").iterdir() if not path.name.startswith("."))
    assert names(run / "code") == ["out", "show.py", "word"]


def test_files_go_to_a_run_and_come_back(rankfall: Runner, code: Path, folder: Path) -> None:
    assert rankfall("run", "--launcher", "plain", "--code", "project", "show.py").returncode == 0
    run = only(folder).name
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    done = rankfall("cp", "a", "b", "project", f"{run}:in/")
    assert done.returncode == 0, done.stderr
    assert "4 files" in done.stderr
    assert names(only(folder) / "code" / "in") == ["a", "b", "project"]
    assert rankfall("cp", "-q", f"{run}:out", ".").returncode == 0
    assert (folder / "out").read_text() == "made"
    assert rankfall("cp", f"{run[:5]}:in", "results/").returncode == 0
    assert (folder / "results" / "in" / "project" / "word").read_text() == "first"
    assert rankfall("cp", f"{run}:{only(folder)}/code/in", "plain").returncode == 0
    assert (folder / "plain" / "a").read_text() == "a"
    again = rankfall("cp", f"{run}:in", "plain")
    assert "0 bytes sent, 4 were there already" in again.stderr


def test_without_code_it_is_the_folder_that_the_job_ran_in(rankfall: Runner, folder: Path) -> None:
    assert rankfall("run", "--launcher", "plain", "train.py").returncode == 0
    assert rankfall("cp", f"{only(folder).name}:train.py", "copy.py").returncode == 0
    assert (folder / "copy.py").read_text() == (folder / "train.py").read_text()


WRONG = [
    (("a", "b"), 2, "one side here and one side there"),
    (("a",), 2, "one side here and one side there"),
    (("RUN:a", "RUN:b"), 2, "one side here and one side there"),
    (("RUN:a", "RUN:b", "c"), 2, "one side here and one side there"),
    (("a", "nothing-abcdef:b"), 66, "there is no run"),
    (("none", "RUN:b"), 66, "there is no none"),
    (("a", ":b"), 2, "no run is named"),
    (("a", "RUN:../b"), 2, "'..' is not followed"),
    (("a", "RUN:/etc/b"), 2, "does not lie on the folder of run"),
    (("RUN:none", "x"), 69, "No such file"),
    (("link", "RUN:b"), 2, "points out of what is copied"),
    (("a", "RUN:word/x"), 69, "word"),
    (("--claim", "c", "a", "RUN:b"), 2, "contradict each other"),
    (("--claim", "c", "a", ":b"), 2, "--claim needs --image"),
    (("-n", "x", "a", "RUN:b"), 2, "knows its namespace"),
]


def test_what_cannot_be_copied_is_refused(rankfall: Runner, code: Path, folder: Path) -> None:
    assert rankfall("run", "--launcher", "plain", "--code", "project", "show.py").returncode == 0
    (folder / "a").write_text("a")
    (folder / "link").mkdir()
    (folder / "link" / "out").symlink_to("../../x")
    for words, code_, text in WRONG:
        done = rankfall("cp", *(word.replace("RUN", only(folder).name) for word in words))
        assert done.returncode == code_, (words, done.stderr)
        assert text in done.stderr, (words, done.stderr)


def test_a_file_with_a_colon_is_named_by_a_path(rankfall: Runner, code: Path, folder: Path) -> None:
    assert rankfall("run", "--launcher", "plain", "--code", "project", "show.py").returncode == 0
    (folder / "a:b").write_text("colon")
    assert rankfall("cp", "./a:b", f"{only(folder).name}:c:d").returncode == 0
    assert (only(folder) / "code" / "c:d").read_text() == "colon"


def test_launch_s40_copies_from_python(code: Path, folder: Path, home: Path) -> None:
    client = SyncClient(home=home)
    spec = spec_from({"command": ["show.py"], "launcher": "plain", "code": str(code)})
    run = client.submit(spec, detach=False)
    assert run.wait(timeout=40).state == "succeeded"
    (folder / "a").write_text("abc")
    done = client.copy_to_workspace(run, folder / "a", "in/a")
    assert done is not None
    assert (done.files, done.sent) == (1, 3)
    back = client.copy_from_workspace(run.id, "in/a", folder / "back")
    assert back is not None
    assert (folder / "back").read_text() == "abc"
    assert client.copy_from_workspace(run, "in/a", folder / "back", exclude=["x"]).same == 1  # type: ignore[union-attr]
    with pytest.raises(NotFound):
        client.copy_to_workspace(run, [folder / "none"], "in/")
    with pytest.raises(UsageError):
        asyncio.run(Client(home=home).copy_from_workspace(run.id, "../x", folder / "x"))


def test_launch_s53_a_run_without_a_volume_has_nothing_to_copy(rankfall: Runner, folder: Path, home: Path) -> None:
    spec = spec_from({"backend": "job", "command": ["x.py"], "kubernetes": {"image": "i", "namespace": "n"}})
    run = RunDir.create(spec, home=home)
    for words in (("train.py", f"{run.id}:x"), (f"{run.id}:x", "y")):
        done = rankfall("cp", *words)
        assert done.returncode == 0
        assert "has no volume (kubernetes.workspace), so there is nothing to copy" in done.stderr
        assert done.stdout == ""
    assert SyncClient(home=home).copy_to_workspace(run.id, folder / "train.py", "x") is None
    assert SyncClient(home=home).copy_from_workspace(run.id, "x", folder / "y") is None
