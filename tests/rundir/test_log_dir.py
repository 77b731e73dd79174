"""A folder of the user's with the files of one run: whose it is, and what happens when it cannot be used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rankfall.client import create_run
from rankfall.model import JobSpec, UsageError
from rankfall.rundir import RunDir, list_runs
from rankfall.rundir.lines.derived_files import ALL_RANKS, write_derived
from rankfall.rundir.lines.log_dir import MARK, LogDir, claimed
from support.stream_files import stream

SECOND = "another request"


def made(home: Path, folder: Path, *, request: str | None = None, name: str = "job") -> RunDir:
    return create_run(JobSpec(name=name, command=("a",), log_dir=str(folder)), home=home, request_token=request)


def place(run_dir: RunDir, folder: Path) -> str | None:
    return LogDir(run_dir, folder).finish()


def ready(run_dir: RunDir, text: bytes) -> None:
    stream(run_dir, "r0").write(text, at=1)
    write_derived(run_dir)


def test_logs_s42_a_glob_finds_the_file_of_all_ranks_once(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "train"
    run_dir = made(home, folder)
    ready(run_dir, b"hello\n")
    assert place(run_dir, folder) is None
    (found,) = folder.glob("log*.out")
    assert found.read_bytes() == b"[attempt 1]\n[rank 0] hello\n"
    assert sorted(path.name for path in folder.iterdir()) == [MARK, ALL_RANKS, "rank-00000.log"]
    # Done twice, as after a supervisor's death.
    assert place(run_dir, folder) is None
    assert sorted(path.name for path in folder.iterdir()) == [MARK, ALL_RANKS, "rank-00000.log"]


def test_the_files_are_copies_with_the_modes_of_the_users_umask(home: Path, tmp_path: Path) -> None:
    run_dir = made(home, tmp_path / "logs")
    ready(run_dir, b"hello\n")
    before = os.umask(0o027)
    try:
        assert place(run_dir, tmp_path / "logs") is None
    finally:
        os.umask(before)
    copy = tmp_path / "logs" / "rank-00000.log"
    assert copy.read_bytes() == b"hello\n"
    assert copy.stat().st_mode & 0o777 == 0o640
    assert (run_dir.path / "rank-00000.log").stat().st_mode & 0o777 == 0o600


def test_a_second_run_is_refused_before_it_exists(home: Path, tmp_path: Path) -> None:
    first = made(home, tmp_path / "logs")
    with pytest.raises(UsageError, match=f"has the files of run {first.id}") as found:
        made(home, tmp_path / "logs")
    assert MARK in (found.value.hint or "")
    assert [run.id for run in list_runs(home)] == [first.id]
    (tmp_path / "logs" / MARK).unlink()
    assert made(home, tmp_path / "logs").id != first.id


def test_the_same_request_is_the_same_run_in_the_same_folder(home: Path, tmp_path: Path) -> None:
    first = made(home, tmp_path / "logs", request=SECOND)
    assert made(home, tmp_path / "logs", request=SECOND).id == first.id
    with pytest.raises(UsageError, match="has the files of run"):
        made(home, tmp_path / "logs", request="a third one")
    with pytest.raises(UsageError, match=rf"run {first.id} has this request token, .*: name is"):
        made(home, tmp_path / "logs", request=SECOND, name="other")
    with pytest.raises(UsageError, match="log_dir is"):
        made(home, tmp_path / "elsewhere", request=SECOND)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_client_that_was_killed_while_it_made_a_run_leaves_a_mark_that_says_so(home: Path, tmp_path: Path) -> None:
    tmp_path.joinpath("logs").mkdir()
    tmp_path.joinpath("logs", MARK).write_text("{")
    with pytest.raises(UsageError, match="reserved for a run that was never completely created"):
        made(home, tmp_path / "logs")
    tmp_path.joinpath("logs", MARK).write_text('{"request_token": "another request"}')
    run_dir = made(home, tmp_path / "logs", request=SECOND)
    ready(run_dir, b"a\n")
    assert place(run_dir, tmp_path / "logs") is None


def test_a_run_that_cannot_be_made_leaves_the_folder_free(home: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError), claimed(tmp_path / "logs", request_token=None):
        raise KeyError
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    (open_folder / "file").write_text("")
    with (
        pytest.raises(UsageError, match=r"\$\.log_dir: .*file cannot be used"),
        claimed(open_folder / "file", request_token=None),
    ):
        pass
    (open_folder / "logs").mkdir(mode=0o555)
    with (
        as_user(),
        pytest.raises(UsageError, match="cannot be used"),
        claimed(open_folder / "logs", request_token=None),
    ):
        pass


def test_a_folder_that_is_full_when_the_run_is_made_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, owner: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankfall.rundir.lines.log_dir._write_mark", full)
    with pytest.raises(UsageError, match="No space left"):
        made(home, tmp_path / "logs")


def test_a_folder_that_went_or_was_given_to_another_run_is_told(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    run_dir = made(home, folder)
    ready(run_dir, b"a\n")
    (folder / MARK).unlink()
    made(home, folder)
    assert "belongs to another run now" in (place(run_dir, folder) or "")
    assert list(folder.glob("log*.out")) == []
    shutil.rmtree(folder)
    assert place(run_dir, folder) == f"{folder} cannot be written: No such file or directory"


def test_half_a_copy_never_has_the_name(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"
    run_dir = made(home, folder)
    ready(run_dir, b"a\n")

    def full(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"ha")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert place(run_dir, folder) == f"{folder} cannot be written: No space left on device"
    assert sorted(path.name for path in folder.iterdir()) == [MARK, ALL_RANKS]
