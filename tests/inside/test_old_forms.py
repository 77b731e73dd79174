"""What old readers find: torchelastic's own class and the protobuf library read the files that a slot writes for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankfall.explain import explain_files
from rankfall.model import JobSpec, SpecError
from rankfall.model.jobspec.check import check_spec
from rankfall_inside.delivery import exit_reports
from support.flyte_errors import parsed

from .conftest import Slot

RAISES = "raise ValueError('bad thing')"


def test_errors_s8_an_old_reader_of_torchelastic_finds_its_error_json(slot: Slot, tmp_path: Path) -> None:
    path = tmp_path / "out" / "error.json"
    assert slot.rank(RAISES, RANKFALL_ERROR_FILE=str(path)).returncode == 1
    # The fields as torch.distributed.elastic.multiprocessing.api.ProcessFailure takes them.
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: bad thing"
    assert int(message["extraInfo"]["timestamp"]) == (slot.one("error").error.raised_ns or 0) // 10**9
    assert "line 1, in <module>" in message["extraInfo"]["py_callstack"]
    assert explain_files([path]).verdict.cause.slug == "user_code_exception"
    assert {p.name for p in path.parent.iterdir()} == {"error.json"}


def test_errors_s8_an_old_reader_of_flyte_finds_a_file_for_each_worker(slot: Slot, tmp_path: Path) -> None:
    assert slot.rank(RAISES, RANKFALL_ERROR_FILE=f"{tmp_path}/out/error-*.pb", RANKFALL_POD="w-1").returncode == 1
    (path,) = (tmp_path / "out").iterdir()
    record = slot.one("error")
    assert path.name == f"error-{record.id}.pb"
    error = parsed(path.read_bytes())
    assert (error.code, error.kind, error.origin, error.worker) == ("USER:ValueError", 0, 1, "w-1")
    assert error.timestamp.seconds * 10**9 + error.timestamp.nanos == record.error.raised_ns
    verdict = explain_files([path]).verdict
    assert (verdict.pod, verdict.cause.slug) == ("w-1", "user_code_exception")


def test_the_first_writer_of_a_name_wins_and_nothing_else_fails(tmp_path: Path) -> None:
    record = {"id": "1", "at_ns": 1, "role": "worker", "slot": 2, "error": {"types": ["a.B"], "mark": "retryable"}}
    path = tmp_path / "error.pb"
    assert exit_reports.write_error_file(str(path), record)
    first = path.read_bytes()
    assert (parsed(first).kind, parsed(first).worker, parsed(first).message) == (1, "worker-2", "a.B")
    assert not exit_reports.write_error_file(str(path), {**record, "error": {"types": ["C"], "message": "x" * 10**6}})
    assert path.read_bytes() == first
    assert not exit_reports.write_error_file("/proc/1/nothing/error.json", record)
    assert not exit_reports.write_error_file("", record)
    assert not exit_reports.write_error_file(str(path), None)


@pytest.mark.torch
@pytest.mark.timeout(120)
def test_errors_s8_torchelastics_own_class_reads_it(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure  # noqa: PLC0415 - loads torch

    path = tmp_path / "error.json"
    exit_reports.write_error_file(
        str(path), {"at_ns": 1_790_000_000 * 10**9, "error": {"types": ["ValueError"], "message": "bad"}}
    )
    found = ProcessFailure(local_rank=0, pid=7, exitcode=1, error_file=str(path))
    assert (found.message["message"], found.timestamp) == ("ValueError: bad", 1_790_000_000)


@pytest.mark.parametrize("path", ["error.json", "/a/../error.pb", "/a/error.txt", "/a*/error.pb", "/a/**.pb"])
def test_files_that_no_old_reader_knows_are_refused(path: str) -> None:
    with pytest.raises(SpecError, match=r"\$\.error_file"):
        check_spec(JobSpec(command=("t.py",), error_file=path))


def test_error_files_need_the_recorder() -> None:
    assert check_spec(JobSpec(command=("t.py",), error_file="/out/error-*.pb"))
    with pytest.raises(SpecError, match="inside: off"):
        check_spec(JobSpec(command=("t.py",), error_file="/out/error.json", inside="off"))
