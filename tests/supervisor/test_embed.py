"""Lines in the shapes that embedding programs ask for."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankfall import SyncClient
from rankfall.client import SyncRun
from rankfall.model import JobSpec, Role, UsageError
from rankfall.rundir import RunDir
from support.patience import scaled
from support.stream_files import FakeStream, row

SECOND = 1_000_000_000


def made(home: Path) -> tuple[SyncRun, list[FakeStream]]:
    """Two parameter servers without ranks, and two workers of two ranks each, that have printed."""
    roles = (Role(name="ps", nnodes=2, launcher="exec"), Role(name="worker", nnodes=2, nproc_per_node=2))
    run_dir = RunDir.create(JobSpec(name="job", command=("a",), roles=roles), home=home)
    streams = [FakeStream(run_dir.stream_dir(1, "ps", slot) / "slot.out.log") for slot in range(2)]
    workers = [
        FakeStream(run_dir.stream_dir(1, "worker", 2 + rank // 2) / f"{rank % 2}.{kind}.log")
        for rank in range(4)
        for kind in ("out", "err")
    ]
    with run_dir.lease() as writer:
        writer.set_run("running", at=1)
        writer.begin_attempt(1, at=1, plan={})
        writer.put_streams(row(run_dir, found, number // 2) for number, found in enumerate(workers))
    for number, found in enumerate((*streams, *workers)):
        found.write_all(((step + 1) * SECOND, b"%d step %d\n" % (number, step)) for step in range(3))
    return SyncClient(home=home).get(run_dir.id), [*streams, *workers]


def end(run: SyncRun) -> None:
    with run.directory.lease() as writer:
        writer.set_run("succeeded", at=9)


def test_logs_s41_asked_for_each_replica_each_line_comes_once(tmp_path: Path) -> None:
    run, streams = made(tmp_path)
    every = [line for role in ("ps", "worker") for k in range(2) for line in run.log_iter(role, k)]
    assert len(every) == len(set(every)) == len(streams) * 3
    assert list(run.log_iter("ps", 1)) == ["[slot 1] 1 step 0", "[slot 1] 1 step 1", "[slot 1] 1 step 2"]
    assert {line.split("]")[0] for line in run.log_iter("worker", 1)} == {"[rank 2", "[rank 3"}


def test_a_replicas_lines_are_narrowed_as_torchx_does(tmp_path: Path) -> None:
    run, _ = made(tmp_path)
    assert list(run.log_iter("worker", 0, regex="step 1", streams="stderr")) == [
        "[rank 0] 3 step 1",
        "[rank 1] 5 step 1",
    ]
    with pytest.raises(UsageError, match="streams is 'both'"):
        run.log_iter("ps", 0, streams="both")
    with pytest.raises(UsageError, match="lines is -1"):
        run.fetch_logs(lines=-1)
    assert list(run.log_iter("ps", 0, since=2, until=2)) == ["[slot 0] 0 step 1"]
    later = datetime.fromtimestamp(3, UTC)
    assert list(run.log_iter("ps", 0, since=later)) == ["[slot 0] 0 step 2"]
    assert len(list(run.log_iter("ps", 0, streams="stdout"))) == 3
    assert list(run.log_iter("ps", 0, streams="stderr")) == []


@pytest.mark.parametrize(
    ("role", "k", "words"),
    [
        ("trainer", 0, "has no role 'trainer'\n  next: it has: ps, worker"),
        ("worker", 2, "role worker of run .* has no replica 2\n  next: it has replicas 0-1"),
        ("worker", -1, "has no replica -1"),
    ],
)
def test_what_the_job_has_not_is_refused_at_once(tmp_path: Path, role: str, k: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(tmp_path)[0].log_iter(role, k)


def test_a_pattern_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="grep pattern"):
        made(tmp_path)[0].log_iter("ps", 0, regex="(")


def test_a_tail_goes_on_until_the_run_is_over(tmp_path: Path) -> None:
    run, streams = made(tmp_path)
    seen: list[str] = []
    three = threading.Event()

    def read() -> None:
        for line in run.log_iter("ps", 0, should_tail=True):
            seen.append(line)
            if len(seen) == 3:
                three.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert three.wait(scaled(50))
    streams[0].write(b"last \xff", at=9 * SECOND)
    end(run)
    reader.join(scaled(50))
    assert seen[3:] == ["[slot 0] last \\xff"]


def test_the_default_view_is_the_first_and_the_last_rank_and_failures(tmp_path: Path) -> None:
    run, streams = made(tmp_path)
    streams[4].write(b"ValueError: bad\n", at=9 * SECOND)
    end(run)
    for lines in (list(run.fetch_logs(lines=None)), list(run.fetch_logs(stream=True))):
        assert {line.split("]")[0] for line in lines[:-1]} == {"[rank 0", "[rank 3"}
        assert len(lines) == 2 * 2 * 3 + 1
        assert lines[-1] == "[rank 1] ValueError: bad"
    assert list(run.fetch_logs(lines=1)) == ["[rank 1] ValueError: bad"]
