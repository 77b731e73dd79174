"""Positions, stamps, and indexes that are torn, damaged or absent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import StoreError
from rankfall.rundir import RunDir
from rankfall.rundir.lines import LineQuery, read_lines
from rankfall.rundir.streams.files import IndexReader, position, stamps_backward
from rankfall_inside.delivery.stream_files import INDEX_MAGIC, INDEX_ROW, Sink
from support.stream_files import MAGIC, ROW, FakeStream, stream

pytestmark = pytest.mark.steady

CHUNKS = st.lists(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\0"]), min_size=1, max_size=12).map(b"".join), max_size=10
)


def test_the_format_is_the_wrappers() -> None:
    assert (MAGIC, ROW.format) == (INDEX_MAGIC, INDEX_ROW.format)


@given(chunks=CHUNKS, missing=st.integers(0, 3), torn=st.integers(0, 39))
def test_a_position_is_the_naive_count_whatever_the_index_lacks(chunks: list[bytes], missing: int, torn: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = FakeStream(Path(folder) / "0.out.log")
        found.write_all((n, chunk) for n, chunk in enumerate(chunks))
        size = found.index.stat().st_size
        os.truncate(found.index, max(0, size - missing * ROW.size - torn))
        for byte in range(len(found.data) + 3):
            assert position(found.path, byte) == found.data[:byte].count(b"\n") + 1


@given(chunks=CHUNKS)
def test_a_position_in_the_wrappers_own_files_is_the_naive_count(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "0.out"
        sink = Sink(str(base))
        for chunk in chunks:
            sink.write(chunk)
        sink.close()
        data = b"".join(chunks)
        path = base.with_name("0.out.log")
        assert len(IndexReader(path)) == len(chunks)
        for byte in range(len(data)):
            assert position(path, byte) == data[:byte].count(b"\n") + 1


@given(chunks=CHUNKS, junk=st.binary(min_size=8, max_size=200))
def test_a_damaged_index_costs_no_line(chunks: list[bytes], junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder))
        found = stream(run_dir)
        found.write_all((1, chunk) for chunk in chunks)
        for damaged in (junk, MAGIC + junk):
            found.index.write_bytes(damaged)
            texts = found.data.split(b"\n")
            expected = texts if texts[-1] else texts[:-1]
            assert [line.data for line in read_lines(run_dir, LineQuery())] == expected
            assert [line.data for line in read_lines(run_dir, LineQuery(tail=100))] == expected


def test_rows_are_found_by_byte_and_by_stamp(tmp_path: Path) -> None:
    found = FakeStream(tmp_path / "0.out.log")
    for number in range(2000):
        found.write(b"line %04d\n" % number, at=100 + number // 2)
    index = IndexReader(found.path)
    assert len(index) == 2000
    assert index.find(0) == 0
    assert index.find(15) == 1
    assert index.stamp(10**9) == index.last_stamp() == 1099
    assert index.offset_since(0) == 0
    assert index.offset_since(600) == 10000
    assert index.offset_since(1100) is None
    assert [row.offset for row in stamps_backward(index, 19999)] == list(range(19990, -1, -10))
    assert index.problem is None
    assert position(found.path, 12345) == 1235


def test_an_absent_index_and_one_that_is_just_beginning_give_no_stamps(tmp_path: Path) -> None:
    found = FakeStream(tmp_path / "0.out.log")
    found.write(b"x\n", at=5)
    index = IndexReader(found.path)
    found.index.write_bytes(MAGIC[:3])
    assert (index.stamp(0), index.last_stamp(), index.problem) == (None, None, None)
    found.index.write_bytes(b"something else")
    assert (index.stamp(0), index.problem) == (None, "0.out.idx is not an index")
    found.index.unlink()
    assert index.stamp(0) is None
    assert index.problem is not None
    assert "No such file" in index.problem
    assert position(found.path, 2) == 2


def test_rows_that_cannot_be_true_are_not_believed(tmp_path: Path) -> None:
    found = FakeStream(tmp_path / "0.out.log")
    found.write(b"a\nb\nc\n", at=5)
    for offset, line in ((4, 900), (4, 0), (100, 3)):
        found.index.write_bytes(MAGIC + ROW.pack(offset, line, 5, 0, 1))
        if line:
            assert position(found.path, 5) == 3


def test_a_missing_stream_has_no_position(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*0\.out\.log: No such file"):
        position(tmp_path / "0.out.log", 3)


def test_bytes_after_the_last_row_have_its_stamp(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    found = stream(run_dir)
    found.write(b"one\n", at=5)
    with found.path.open("ab") as file:
        file.write(b"two\n")
    assert [line.at for line in read_lines(run_dir, LineQuery())] == [5, 5]


def test_a_clock_that_steps_back_never_changes_the_order_of_one_stream(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    found = stream(run_dir)
    found.write_all([(100, b"1\n"), (50, b"2\n"), (120, b"3\n")])
    stream(run_dir, 1).write(b"other\n", at=110)
    expected = [b"1", b"2", b"other", b"3"]
    assert [line.data for line in read_lines(run_dir, LineQuery())] == expected
    assert [line.data for line in read_lines(run_dir, LineQuery(tail=2))] == expected[2:]
