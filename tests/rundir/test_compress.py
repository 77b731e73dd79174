"""Compressing the streams of a run: what is compressed, when it is not, and that no reader sees a difference."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers.stream_reader import StreamTail
from rankfall.rundir import RunDir, StreamAppender, Writer
from rankfall.rundir.lines import LineQuery, LineTail, read_lines
from rankfall.rundir.lines.derived_files import write_derived
from rankfall.rundir.streams import writer as compress
from rankfall.rundir.streams.files import position
from rankfall.rundir.streams.writer import MARK, SMALLEST, compress_run, unfinished_compressions
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.stream_files import FakeStream, row, stream

_SECOND = 1_000_000_000


def files(run_dir: RunDir) -> list[str]:
    return sorted(path.name for path in run_dir.logs_dir.rglob("*") if path.is_file())


CHUNKS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 9), st.lists(st.sampled_from([b"a", b"\n", b"err\n", b"\0"]), min_size=1)
    ),
    max_size=12,
)


@given(
    chunks=CHUNKS,
    tail=st.none() | st.integers(0, 5),
    since=st.none() | st.integers(0, 9),
    grep=st.none() | st.just("err"),
)
def test_every_answer_is_that_of_the_raw_streams(
    chunks: list[tuple[int, int, list[bytes]]], tail: int | None, since: int | None, grep: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder) / "runs" / "x-000000")
        streams = [stream(run_dir, local) for local in range(4)]
        for local, at, parts in sorted(chunks, key=lambda chunk: chunk[1]):
            streams[local].write(b"".join(parts), at=at)
        query = LineQuery(attempt="all", tail=tail, since=since, grep=grep)
        before = list(read_lines(run_dir, query))
        live = list(LineTail(run_dir, query).drain())
        places = [[position(one.path, byte) for byte in range(len(one.data) + 1)] for one in streams]
        assert compress_run(run_dir, smallest=1) == []
        assert not any(one.path.exists() and one.data for one in streams)
        assert list(read_lines(run_dir, query)) == before
        assert list(LineTail(run_dir, query).drain()) == live
        assert [[position(one.path, byte) for byte in range(len(one.data) + 1)] for one in streams] == places


def test_only_large_streams_are_compressed(run_dir: RunDir) -> None:
    stream(run_dir, 0).write(b"a\n" * (SMALLEST // 2), at=1)
    stream(run_dir, 1).write(b"a\n" * (SMALLEST // 2 - 1), at=1)
    assert compress_run(run_dir) == []
    assert files(run_dir) == ["0.out.idx", "0.out.log.zst", "1.out.idx", "1.out.log"]
    assert not (run_dir.path / MARK).exists()
    assert compress_run(run_dir) == []


def test_signatures_are_found_in_a_compressed_stream(run_dir: RunDir) -> None:
    found = stream(run_dir, 0)
    found.write(b"step\n" * 500_000, at=1)
    found.write(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", at=2)
    raw = StreamTail(found.path, default_catalogue())
    expected = raw.poll(final=True)
    assert expected[0]
    assert compress_run(run_dir) == []
    packed = StreamTail(found.path, default_catalogue())
    assert packed.poll(final=True) == expected
    assert packed.problem is None


def test_a_reader_in_the_middle_goes_on_over_the_change(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir, 0)
    writer.begin_attempt(1, at=1, plan={})
    writer.put_streams([row(run_dir, found, 0)])
    found.data = b"".join(b"%08d\n" % number for number in range(200_000))
    found.path.write_bytes(found.data)
    follower = LineTail(run_dir, LineQuery(), clock=lambda: 100 * _SECOND)
    lines = follower.poll(limit=1000)
    assert compress_run(run_dir, smallest=1) == []
    lines += follower.drain()
    assert [line.data for line in lines] == [b"%08d" % number for number in range(200_000)]
    assert follower.problems == []


def test_the_files_for_reading_are_the_same_from_both_forms(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir, 0)
    found.write(b"a\n" * 1000, at=1)
    assert write_derived(run_dir) == []
    before = (run_dir.path / "log-allranks_0.out").read_bytes()
    assert compress_run(run_dir, smallest=1) == []
    assert write_derived(run_dir) == []
    assert (run_dir.path / "log-allranks_0.out").read_bytes() == before


def test_a_damaged_compressed_stream_is_named(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir, 0)
    found.write(b"a\n" * 1000, at=1)
    compress_run(run_dir, smallest=1)
    file = found.path.with_name("0.out.log.zst")
    data = bytearray(file.read_bytes())
    data[8] ^= 0xFF
    file.write_bytes(data)
    problems: list[str] = []
    assert list(read_lines(run_dir, LineQuery(attempt="all"), problems=problems)) == []
    assert len(problems) == 1
    assert "damaged" in problems[0]
    tail = StreamTail(found.path, default_catalogue())
    tail.poll(final=True)
    assert tail.problem is not None
    file.write_bytes(b"junk")
    tail.poll(final=True)
    assert "damaged" in (tail.problem or "")


def test_a_full_disk_leaves_the_raw_streams_and_the_next_run_ends_it(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stream(run_dir, 0), stream(run_dir, 1)
    first.write(b"a\n" * 1000, at=1)
    second.write(b"b\n" * 1000, at=1)

    def full(source: int, target: int) -> int:
        os.write(target, b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(compress, "pack", full)
        problems = compress_run(run_dir, smallest=1)
    assert problems == ["compressing of streams stopped: No space left on device"]
    assert files(run_dir) == ["0.out.idx", "0.out.log", "1.out.idx", "1.out.log"]
    home = run_dir.path.parent.parent
    other = RunDir(run_dir.path.with_name("other-000000"))
    assert unfinished_compressions(home, but=other) == [run_dir.path]
    assert unfinished_compressions(home, but=run_dir) == []
    assert compress_run(run_dir, smallest=1) == []
    assert unfinished_compressions(home, but=other) == []
    assert files(run_dir) == ["0.out.idx", "0.out.log.zst", "1.out.idx", "1.out.log.zst"]


def test_half_a_file_of_a_killed_process_is_no_stream_and_is_overwritten(run_dir: RunDir) -> None:
    found = stream(run_dir, 0)
    found.write(b"a\n" * 1000, at=1)
    half = found.path.with_name(".0.out.log.zst.half")
    half.write_bytes(b"x" * 100_000)
    (run_dir.path / MARK).touch()
    assert len(list(read_lines(run_dir, LineQuery(attempt="all")))) == 1000
    assert compress_run(run_dir, smallest=1) == []
    assert files(run_dir) == ["0.out.idx", "0.out.log.zst"]


def test_a_mark_without_anything_to_do_goes(run_dir: RunDir) -> None:
    (run_dir.path / MARK).touch()
    assert compress_run(run_dir) == []
    assert not (run_dir.path / MARK).exists()


def test_a_home_without_runs_has_none_left_halfway(tmp_path: Path) -> None:
    assert unfinished_compressions(tmp_path, but=RunDir(tmp_path / "x")) == []


def test_an_open_stream_is_told_and_left(run_dir: RunDir) -> None:
    found = stream(run_dir, 0)
    found.write(b"a\n", at=1)
    with found.path.open("ab"):
        assert compress_run(run_dir, smallest=1) == [
            "logs/attempt-1/worker-0/0/0.out.log is not compressed: a process still has it open for writing"
        ]
    assert files(run_dir) == ["0.out.idx", "0.out.log"]


def test_what_is_appended_later_follows_what_was_compressed(run_dir: RunDir) -> None:
    found = stream(run_dir, "r3")
    found.write(b"one\n", at=1)
    assert compress_run(run_dir, smallest=1) == []
    appender = StreamAppender(found.path.with_suffix(""))
    appender.write(b"two\n", 2)
    appender.close()
    assert files(run_dir) == ["r3.out.idx", "r3.out.log"]
    assert [(line.at, line.data) for line in read_lines(run_dir, LineQuery(attempt="all"))] == [
        (1, b"one"),
        (2, b"two"),
    ]


def test_an_index_without_either_form_is_a_stream_that_is_gone(run_dir: RunDir, writer: Writer) -> None:
    found: FakeStream = stream(run_dir, 0)
    found.write(b"a\n", at=1)
    compress_run(run_dir, smallest=1)
    problems: list[str] = []
    list(read_lines(run_dir, LineQuery(attempt="all"), problems=problems))
    assert problems == []
    found.path.with_name("0.out.log.zst").unlink()
    list(read_lines(run_dir, LineQuery(attempt="all"), problems=problems))
    assert "the stream no longer exists" in problems[0]
