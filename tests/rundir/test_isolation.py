"""A reader that fails costs what it read: named, saved with a bound, and nothing else."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rankfall.model import StoreError
from rankfall.rundir import reader_guard
from rankfall.rundir.reader_guard import ReaderGuard


def fail(error: Exception) -> None:
    raise error


def nested(depth: int) -> None:
    nested(depth + 1)


def test_what_a_reader_gives_is_given() -> None:
    guard = ReaderGuard()
    assert guard.read(lambda: 7, otherwise=0, what="stream", where="a.log") == 7
    assert guard.problems == guard.take_new() == []


def test_an_exception_becomes_a_problem_with_a_copy_of_the_bytes(tmp_path: Path) -> None:
    guard = ReaderGuard(tmp_path)
    data = b"x" * (reader_guard.MAX_COPY + 10)
    found = guard.read(
        lambda: fail(ValueError("too long")), otherwise=None, what="stream", where="logs/a.log", data=data
    )
    assert found is None
    (text,) = guard.problems
    assert text.startswith("logs/a.log: the reader of this stream failed and skipped the data (ValueError: too long)")
    assert guard.take_new() == [text]
    assert guard.take_new() == []
    (entry,) = (tmp_path / "problems").glob("*.json")
    saved = json.loads(entry.read_bytes())
    assert (saved["what"], saved["where"], saved["error"]) == ("stream", "logs/a.log", "ValueError: too long")
    assert "in fail" in saved["trace"]
    copy = entry.with_suffix(".bytes")
    assert copy.read_bytes() == data[: reader_guard.MAX_COPY]
    assert f"problems/{copy.name}" in text
    assert {stat.S_IMODE(path.stat().st_mode) for path in (entry, copy)} == {0o600}
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


def test_a_stack_without_end_is_a_problem_with_a_short_trace(tmp_path: Path) -> None:
    guard = ReaderGuard(tmp_path)
    guard.read(lambda: nested(0), otherwise=None, what="record", where="r.json", data=lambda: b"[[[")
    (text,) = guard.problems
    assert "RecursionError" in text
    (entry,) = (tmp_path / "problems").glob("*.json")
    assert len(entry.read_bytes()) < 6000
    assert entry.with_suffix(".bytes").read_bytes() == b"[[["


def test_the_same_failure_is_kept_once_and_all_are_bounded(tmp_path: Path) -> None:
    guard = ReaderGuard(tmp_path)
    for number in [0, 0, *range(reader_guard.MAX_PROBLEMS + 20)]:
        guard.read(lambda: fail(ValueError()), otherwise=None, what="stream", where=f"{number}.log", data=b"x")
    assert len(guard.problems) == len(guard.take_new()) == reader_guard.MAX_PROBLEMS
    assert len(list((tmp_path / "problems").glob("*.bytes"))) == reader_guard.MAX_SAVED


def test_errors_of_our_own_pass_through() -> None:
    with pytest.raises(StoreError):
        ReaderGuard().read(lambda: fail(StoreError("full")), otherwise=None, what="stream", where="a")


def test_a_run_directory_that_takes_nothing_costs_only_the_copy(tmp_path: Path) -> None:
    (tmp_path / "problems").write_text("a file in the way")
    guard = ReaderGuard(tmp_path)
    guard.read(lambda: fail(ValueError("odd")), otherwise=None, what="stream", where="a", data=lambda: fail(OSError()))
    assert guard.problems == ["a: the reader of this stream failed and skipped the data (ValueError: odd)"]


def test_a_copy_is_never_written_through_a_link(tmp_path: Path) -> None:
    guard = ReaderGuard(tmp_path)
    guard.read(lambda: fail(ValueError()), otherwise=None, what="stream", where="a", data=b"first")
    (copy,) = (tmp_path / "problems").glob("*.bytes")
    copy.unlink()
    copy.symlink_to(tmp_path / "elsewhere")
    other = ReaderGuard(tmp_path)
    other.read(lambda: fail(ValueError()), otherwise=None, what="stream", where="a", data=b"second")
    assert not (tmp_path / "elsewhere").exists()
    assert "are stored in" not in other.problems[0]


def test_bytes_that_were_not_classified_are_one_entry_that_grows(tmp_path: Path) -> None:
    guard = ReaderGuard(tmp_path)
    guard.skipped("logs/a.log", 10, 20, because="too slow")
    guard.skipped("logs/a.log", 10, 90, because="too slow")
    assert guard.problems == ["logs/a.log: bytes 10 to 90 were stored but not classified: too slow"]
    assert len(guard.take_new()) == 1
    (entry,) = (tmp_path / "problems").iterdir()
    saved = json.loads(entry.read_bytes())
    assert (saved["from_byte"], saved["to_byte"]) == (10, 90)
