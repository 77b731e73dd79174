"""Files derived from the streams. Numbers are those of launch-logs.md section 5."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rankfall.model import JobSpec, StoreError
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.lines.derived_files import ALL_RANKS, rank_log, write_derived
from support.stream_files import row, stream


def read(run_dir: RunDir, name: str) -> bytes:
    return (run_dir.path / name).read_bytes()


def test_logs_s42_the_file_of_all_ranks_has_every_line_of_every_rank(run_dir: RunDir, writer: Writer) -> None:
    for rank in range(4):
        for attempt in (1, 2):
            out = stream(run_dir, rank % 2, slot=rank // 2, attempt=attempt)
            err = stream(run_dir, rank % 2, slot=rank // 2, attempt=attempt, out=False)
            writer.put_streams([row(run_dir, out, rank), row(run_dir, err, rank)])
            for number in range(100):
                out.write(b"%d:%d:%d\n" % (attempt, rank, number), at=number * 10 + rank)
                err.write(b"%d:%d:%d err\n" % (attempt, rank, number), at=number * 10 + rank)
    stream(run_dir, "slot", slot=1).write(b"launcher\nsecond\n", at=0)
    assert write_derived(run_dir) == []
    (found,) = run_dir.path.glob("log*.out")
    lines = found.read_bytes().splitlines()
    assert lines[0] == b"[attempt 1]"
    assert lines[1] in {b"[slot 1] launcher", b"[rank 0] 1:0:0"}
    assert len(lines) == 4 * 2 * 2 * 100 + 2 + 2
    second = lines.index(b"[attempt 2]")
    assert all(line.split()[-1].startswith((b"1:", b"launcher", b"second", b"err")) for line in lines[1:second])
    assert len(lines) - second - 1 == 4 * 2 * 100
    for rank in range(4):
        mine = [line for line in lines if line.startswith(b"[rank %d] " % rank)]
        expected = [
            b"[rank %d] %d:%d:%d%s" % (rank, attempt, rank, number, kind)
            for attempt in (1, 2)
            for number in range(100)
            for kind in (b"", b" err")
        ]
        assert mine == expected
        assert read(run_dir, rank_log(rank)) == re.sub(rb"(?m)^\[rank \d\] ", b"", b"\n".join(mine)) + b"\n"
    assert rank_log(7) == "rank-00007.log"


def test_unfinished_and_odd_lines_stay_whole_and_are_not_glued(run_dir: RunDir, writer: Writer) -> None:
    one, two = stream(run_dir, 0), stream(run_dir, 1)
    later = stream(run_dir, 0, attempt=2)
    writer.put_streams([row(run_dir, one, 0), row(run_dir, two, 1), row(run_dir, later, 0)])
    one.write(b"a\r\0\xff\x0c\nhalf", at=1)
    two.write(b"\nb\n", at=2)
    later.write(b"again", at=1)
    assert write_derived(run_dir) == []
    assert (
        read(run_dir, ALL_RANKS)
        == b"[attempt 1]\n[rank 0] a\r\0\xff\x0c\n[rank 0] half\n[rank 1] \n[rank 1] b\n[attempt 2]\n[rank 0] again\n"
    )
    assert read(run_dir, rank_log(0)) == b"a\r\0\xff\x0c\nhalf\nagain\n"
    assert read(run_dir, rank_log(1)) == b"\nb\n"


def test_a_stream_of_several_ranks_is_divided(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir)
    found.write(b"none\nzero\nzero\none", at=1)
    writer.put_streams([row(run_dir, found, 0, first=5, end=15), row(run_dir, found, 1, first=15)])
    write_derived(run_dir)
    assert read(run_dir, rank_log(0)) == b"zero\nzero\n"
    assert read(run_dir, rank_log(1)) == b"one\n"
    assert read(run_dir, ALL_RANKS) == b"[attempt 1]\n[slot 0] none\n[rank 0] zero\n[rank 0] zero\n[rank 1] one\n"


def test_a_line_of_40_mib_is_whole_and_memory_is_bounded(run_dir: RunDir, writer: Writer) -> None:
    found, other = stream(run_dir, 0), stream(run_dir, 1)
    writer.put_streams([row(run_dir, found, 0), row(run_dir, other, 1)])
    other.write(b"between\n", at=2)
    with found.path.open("ab") as file:
        for _ in range(40):
            file.write(b"y" * (1 << 20))
        file.write(b"\nend\n")
    found.index.write_bytes(b"")
    tracemalloc.start()
    try:
        write_derived(run_dir)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert read(run_dir, rank_log(0)) == found.path.read_bytes()
    assert (
        read(run_dir, ALL_RANKS)
        == b"[attempt 1]\n[rank 1] between\n[rank 0] " + b"y" * (40 << 20) + b"\n[rank 0] end\n"
    )


def test_many_ranks_need_few_open_files(run_dir: RunDir, writer: Writer) -> None:
    for local in range(250):
        found = stream(run_dir, local)
        found.write_all([(1, b"first\n"), (2, b"second\n")])
        writer.put_streams([row(run_dir, found, local)])
    write_derived(run_dir)
    assert len(list(run_dir.path.glob("rank-*.log"))) == 250
    assert read(run_dir, rank_log(249)) == b"first\nsecond\n"


def test_they_replace_earlier_ones_whole_and_leave_nothing_beside(run_dir: RunDir, writer: Writer) -> None:
    write_derived(run_dir)
    assert read(run_dir, ALL_RANKS) == b""
    stream(run_dir, "slot").write(b"x\n", at=1)
    write_derived(run_dir)
    write_derived(run_dir)
    assert read(run_dir, ALL_RANKS) == b"[attempt 1]\n[slot 0] x\n"
    assert not list(run_dir.path.glob(".*"))


def test_a_directory_that_cannot_be_written_is_said(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",)), home=open_folder)
    run_dir.path.chmod(0o555)
    with as_user(), pytest.raises(StoreError, match=r"cannot write the derived logs in .*\n  next: "):
        write_derived(run_dir)
