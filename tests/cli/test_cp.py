"""``code`` and ``cp`` on this machine: a run has the code as it was at the submission, and files go to it and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Runner
from rankfall.backends.payload import code_tree
from rankfall.cli import app
from rankfall.client import Client, SyncClient, complete, create_run
from rankfall.model import JobSpec, NotFound, UsageError, spec_from
from rankfall.rundir import RunDir, list_runs
from rankfall_inside.transfer.tree import Tree
from support.patience import scaled

Cp = Callable[..., tuple[int, str]]

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
    # The prefix may also say that the line came late.
    assert [line.partition("] ")[2] for line in done.stdout.splitlines()] == [
        str(only(folder) / "code" / "sub"),
        "extra",
    ]
    assert (only(folder) / "code" / "__pycache__").is_dir()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--code", "nowhere", "show.py"), "nowhere' is not a folder"),
        (("--code", "project", "none.py"), "does not exist"),
        (("--code", "project", "--cwd", "/tmp", "show.py"), "a path below the code's folder"),
        (("--code", "project", "--cwd", "none", "show.py"), "is not a folder"),
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
        assert "secret -> /etc/passwd: the link points outside the copied files" in done.stderr
    assert list_runs(folder.parent / "home") == []
    assert not list((folder.parent / "home" / "runs").glob(".new*"))


def test_a_home_inside_the_code_is_no_part_of_it(rankfall: Runner, code: Path) -> None:
    done = rankfall("run", "--launcher", "plain", "--code", "project", "show.py", RANKFALL_HOME=str(code / "home"))
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (code / "home" / "runs").iterdir() if not path.name.startswith("."))
    assert names(run / "code") == ["out", "show.py", "word"]


@pytest.fixture
def run(code: Path, home: Path) -> RunDir:
    """A run of this machine with its code, not started."""
    return create_run(complete(spec_from({"command": ["show.py"], "code": str(code)})), home=home)


@pytest.fixture
def cp(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cp:
    """The verb in this process; its code and what it said."""
    monkeypatch.chdir(folder)

    def call(*words: str) -> tuple[int, str]:
        done = app.run(["cp", *words])
        said = capsys.readouterr()
        assert said.out == ""
        return done, said.err

    return call


def test_files_go_to_a_run_and_come_back(cp: Cp, run: RunDir, folder: Path) -> None:
    inside = run.path / "code"
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    (inside / "out").write_text("made")
    assert cp("a", "b", "project", f"{run.id}:in/") == (0, f"rankfall: 4 files, {_size(folder)} bytes sent\n")
    assert names(inside / "in") == ["a", "b", "project"]
    assert cp("-q", f"{run.id}:out", ".") == (0, "")
    assert (folder / "out").read_text() == "made"
    assert cp(f"{run.id[:6]}:in", "results/")[0] == 0
    assert (folder / "results" / "in" / "project" / "word").read_text() == "first"
    assert cp(f"{run.id}:{inside}/in", "plain")[0] == 0
    assert (folder / "plain" / "a").read_text() == "a"
    assert "0 bytes sent, 4 were there already" in cp(f"{run.id}:in", "plain")[1]


def _size(folder: Path) -> int:
    return sum(len((folder / name).read_bytes()) for name in ("a", "b", "project/show.py", "project/word"))


def test_without_code_it_is_the_folder_that_the_job_ran_in(cp: Cp, folder: Path, home: Path) -> None:
    spec = spec_from({"command": ["train.py"], "cwd": str(folder)})
    run = create_run(complete(spec), home=home)
    assert cp(f"{run.id}:train.py", "copy.py")[0] == 0
    assert (folder / "copy.py").read_text() == (folder / "train.py").read_text()


WRONG = [
    (("a", "b"), 2, "one local side and one side in a run"),
    (("a",), 2, "one local side and one side in a run"),
    (("RUN:a", "RUN:b"), 2, "one local side and one side in a run"),
    (("RUN:a", "RUN:b", "c"), 2, "one local side and one side in a run"),
    (("a", "nothing-abcdef:b"), 66, "there is no run"),
    (("none", "RUN:b"), 66, "there is no none"),
    (("a", ":b"), 2, "the name of the run before the colon is missing"),
    (("a", "RUN:../b"), 2, "'..' is not followed"),
    (("a", "RUN:/etc/b"), 2, "is not on the folder of run"),
    (("RUN:none", "x"), 69, "No such file"),
    (("link", "RUN:b"), 2, "points outside the copied files"),
    (("a", "RUN:word/x"), 69, "word"),
    (("--claim", "c", "a", "RUN:b"), 2, "contradict each other"),
    (("--claim", "c", "a", ":b"), 2, "--claim needs --image"),
    (("-n", "x", "a", "RUN:b"), 2, "knows its namespace"),
]


def test_what_cannot_be_copied_is_refused(cp: Cp, run: RunDir, folder: Path) -> None:
    (folder / "a").write_text("a")
    (folder / "link").mkdir()
    (folder / "link" / "out").symlink_to("../../x")
    for words, expected, text in WRONG:
        done, said = cp(*(word.replace("RUN", run.id) for word in words))
        assert done == expected, (words, said)
        assert text in said, (words, said)


def test_a_file_with_a_colon_is_named_by_a_path(cp: Cp, run: RunDir, folder: Path) -> None:
    (folder / "a:b").write_text("colon")
    assert cp("./a:b", f"{run.id}:c:d")[0] == 0
    assert (run.path / "code" / "c:d").read_text() == "colon"


def test_launch_s40_copies_from_python(code: Path, folder: Path, home: Path) -> None:
    client = SyncClient(home=home)
    spec = spec_from({"command": ["show.py"], "launcher": "plain", "code": str(code)})
    run = client.submit(spec, detach=False)
    assert run.wait(timeout=scaled(40)).state == "succeeded"
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


def test_launch_s53_a_run_without_a_volume_has_nothing_to_copy(cp: Cp, folder: Path, home: Path) -> None:
    spec = spec_from({"backend": "job", "command": ["x.py"], "kubernetes": {"image": "i", "namespace": "n"}})
    run = RunDir.create(spec, home=home)
    for words in (("train.py", f"{run.id}:x"), (f"{run.id}:x", "y")):
        done, said = cp(*words)
        assert done == 0
        assert "has no volume (kubernetes.workspace), so there is nothing to copy" in said
    assert SyncClient(home=home).copy_to_workspace(run.id, folder / "train.py", "x") is None
    assert SyncClient(home=home).copy_from_workspace(run.id, "x", folder / "y") is None


def test_a_file_that_changes_while_the_code_is_copied_ends_the_submission(
    code: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(spec: JobSpec, *, skip: Path) -> Tree:
        tree = code_tree(spec, skip=skip)
        (code / "word").write_text("longer than before")
        return tree

    monkeypatch.setattr("rankfall.backends.payload.code_tree", grown)
    with pytest.raises(UsageError, match="changed during the copy"):
        create_run(complete(spec_from({"command": ["show.py"], "code": str(code)})), home=home)
    assert list_runs(home) == []
