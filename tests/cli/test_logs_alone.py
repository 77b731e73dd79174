"""``rankfall logs`` on a record that the test wrote: what is shown of it, without a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankfall.cli.commands.logs import logs
from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from support.stream_files import FakeStream, row, stream


class Record:
    """A run of two ranks that succeeded."""

    def __init__(self, home: Path) -> None:
        self.run_dir = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=2, nproc_per_node=1), home=home)
        self.streams: list[FakeStream] = []
        with self.run_dir.lease() as writer:
            writer.set_run("running", at=1)
            writer.begin_attempt(1, at=1, plan={})
            for rank in range(2):
                self.streams.append(stream(self.run_dir, 0, slot=rank))
            writer.put_streams(row(self.run_dir, found, rank) for rank, found in enumerate(self.streams))

    def end(self) -> None:
        with self.run_dir.lease() as writer:
            writer.set_run("succeeded", at=9)

    def logs(self, *words: str) -> Result:
        return CliRunner().invoke(logs, [self.run_dir.id, *words])


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path))
    return Record(tmp_path)


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_s45_no_more_bytes_than_asked_for_and_where_the_rest_is(record: Record, follow: tuple[str, ...]) -> None:
    for number in range(20):
        record.streams[number % 2].write(b"step %03d\n" % number, at=number + 1)
    record.end()
    done = record.logs("--max-bytes", "100", *follow)
    assert done.exit_code == 0
    # "[rank 0] step 000" and its end are 18 bytes.
    assert done.stdout.splitlines() == [f"[rank {n % 2}] step {n:03}" for n in range(5)]
    assert (
        f"--max-bytes is reached, so the output ends here; all of it: rankfall logs {record.run_dir.id}" in done.stderr
    )
    whole = record.logs("--max-bytes", "1M", *follow)
    assert whole.stdout.count("\n") == 20
    assert "max-bytes" not in whole.stderr


def test_logs_s45_a_line_that_does_not_fit_is_left_out_whole(record: Record) -> None:
    record.streams[0].write(b"short\n", at=1)
    record.streams[0].write(b"x" * 5000 + b"\n", at=2)
    record.streams[0].write(b"after\n", at=3)
    record.end()
    done = record.logs("--max-bytes", "1K", "--no-prefix")
    assert done.stdout == "short\n"
    assert "--max-bytes is reached" in done.stderr


def test_the_bytes_of_json_are_counted_as_they_are_written(record: Record) -> None:
    for number in range(9):
        record.streams[0].write(b"step %d\n" % number, at=number + 1)
    record.end()
    done = record.logs("--max-bytes", "1000", "-o", "json")
    assert 0 < len(done.stdout) <= 1000
    assert done.stdout.count("\n") < 9


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_s46_only_errors_and_only_some_slots_live_and_afterwards(record: Record, follow: tuple[str, ...]) -> None:
    record.streams[0].write(b"step 1\nTraceback (most recent call last):\n  File x\nmy.Odd\nstep 2\n", at=1)
    record.streams[1].write(b"step 1\n2026 ERROR gone\n", at=2)
    record.end()
    errors = record.logs("--level", "error", *follow).stdout.splitlines()
    assert errors == [
        "[rank 0] Traceback (most recent call last):",
        "[rank 0]   File x",
        "[rank 0] my.Odd",
        "[rank 1] 2026 ERROR gone",
    ]
    assert record.logs("--level", "error", "--slot", "1", *follow).stdout == "[rank 1] 2026 ERROR gone\n"
    assert record.logs("--level", "error", "--tail", "2", *follow).stdout.splitlines() == errors[-2:]
    assert record.logs("--instance", "1", *follow).stdout == ""


def test_a_slot_that_is_none_is_refused(record: Record) -> None:
    done = record.logs("--slot", "first")
    assert "--slot 'first' is no slot" in str(done.exception)
