"""Lines out of streams: splitting, merging, filters, the last lines. Numbers are those of launch-logs.md section 5."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.model import Cause, Diagnosis, JobSpec, RankFacts, UsageError, Verdict
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.lines import CUT_MARK, MAX_LINE, LineQuery, read_lines
from rankfall.rundir.lines import reader as cursors
from rankfall.rundir.lines.reader import Forward, lines_backward
from support.stream_files import FakeStream, opened, row, stream

pytestmark = pytest.mark.steady

TEXT = st.binary(max_size=40) | st.text(alphabet="ab\n\r\0\f\x0b\u2028\x85", max_size=30).map(str.encode)


def texts(run_dir: RunDir, **query: object) -> list[bytes]:
    return [line.data for line in read_lines(run_dir, LineQuery(**query))]  # type: ignore[arg-type]


def lines_of(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return parts if parts[-1] else parts[:-1]


def put(writer: Writer, run_dir: RunDir, *placed: tuple[FakeStream, int | None]) -> None:
    writer.put_streams(row(run_dir, found, rank) for found, rank in placed)


@given(chunks=st.lists(TEXT, max_size=12), block=st.integers(1, 80))
def test_lines_are_those_of_a_split_on_lf_for_any_bytes_and_chunks(chunks: list[bytes], block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = FakeStream(Path(folder) / "0.out.log")
        found.write_all((1000 + number, chunk) for number, chunk in enumerate(chunks) if chunk)
        cursor = Forward(found.path)
        cursor._block = block
        forward = []
        while spans := cursor.take(final=True):
            for span in spans:
                forward += [(span.at, text) for text in lines_of(span.data)]
        assert [text for _, text in forward] == lines_of(found.data)
        backward = list(lines_backward(found.path, end=len(found.data), block=2048))
        assert [(line.at, line.data) for line in reversed(backward)] == forward
        assert all(found.data[line.offset :].startswith(line.data) for line in backward)


@given(
    pieces=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=12),
    block=st.integers(1, 40),
    limit=st.integers(4, 30),
)
def test_long_lines_are_cut_the_same_forward_and_backward(
    pieces: list[tuple[int, bool]], block: int, limit: int
) -> None:
    data = b"".join(bytes([97 + n % 26]) * size + (b"\n" if end else b"") for n, (size, end) in enumerate(pieces))
    expected = [(text[:limit], len(text) > limit) for text in lines_of(data)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "MAX_LINE", limit)
        patch.setattr(cursors, "MIN_BLOCK", 1)
        found = FakeStream(Path(folder) / "0.out.log")
        found.write(data, at=1)
        cursor = Forward(found.path, block=min(block, limit + 1))
        forward = []
        while spans := cursor.take(final=True):
            for span in spans:
                forward += [(span.data, True)] if span.cut else [(text, False) for text in lines_of(span.data)]
        assert forward == expected
        backward = [(line.data, line.cut) for line in lines_backward(found.path, end=len(data), block=block)]
        assert backward[::-1] == expected
        whole = Forward(found.path, block=min(block, limit + 1), whole=True)
        spans = []
        while more := whole.take(final=True):
            spans += more
        assert b"".join(span.data for span in spans) == data


def test_logs_s34_bytes_that_are_no_text_neither_split_nor_stop(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir)
    odd = b"\xff\xfe bad\0nul \x1b[31mred\x1b[0m \xe2\x80\xa8 sep\x0cfeed\x0bvt\x85nel\x1c"
    found.write(b"before\n" + odd + b"\nafter\n", at=1)
    put(writer, run_dir, (found, 0))
    assert texts(run_dir) == [b"before", odd, b"after"]


def test_logs_s35_a_progress_bar_is_one_line_of_its_rank(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir)
    put(writer, run_dir, (found, 3))
    bar = b"\r".join(b"%3d%%" % n for n in range(0, 101, 10))
    for number, part in enumerate(bar.split(b"\r")):
        found.write((b"\r" if number else b"") + part, at=1000 + number)
    # Unfinished, it is there too, with the time of its beginning.
    (line,) = read_lines(run_dir, LineQuery())
    assert (line.rank, line.data, line.at) == (3, bar, 1000)
    found.write(b"\ndone\n", at=2000)
    assert texts(run_dir, ranks=frozenset({3})) == [bar, b"done"]


def test_logs_s36_a_line_of_1_mib_is_one_line_and_100_mib_are_cut_in_bounded_memory(
    run_dir: RunDir, writer: Writer
) -> None:
    found = stream(run_dir)
    put(writer, run_dir, (found, 0))
    just = b"{" + b"x" * (MAX_LINE - 2) + b"}"
    found.write(just + b"\n", at=1)
    with found.path.open("ab") as file:
        for _ in range(100):
            file.write(b"y" * MAX_LINE)
        file.write(b"\nend\n")
    tracemalloc.start()
    try:
        first, long, end = read_lines(run_dir, LineQuery())
        assert tracemalloc.get_traced_memory()[1] < 12 * MAX_LINE
    finally:
        tracemalloc.stop()
    assert (first.data == just, first.truncated) == (True, False)
    assert long.truncated
    assert long.data == b"y" * MAX_LINE + CUT_MARK
    assert end.data == b"end"
    assert end.offset == found.path.stat().st_size - 4
    assert list(read_lines(run_dir, LineQuery(tail=2))) == [long, end]


def test_logs_s37_blank_and_indented_lines_and_a_last_line_without_lf_stay(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir)
    put(writer, run_dir, (found, 0))
    found.write(b"\n\n  indented\n\ttab \n\nlast", at=1)
    expected = [b"", b"", b"  indented", b"\ttab ", b"", b"last"]
    assert texts(run_dir) == expected
    for count in range(8):
        assert texts(run_dir, tail=count) == expected[len(expected) - min(count, 6) :]


def test_logs_s38_two_ranks_come_out_in_stamp_order(run_dir: RunDir, writer: Writer) -> None:
    one, two = stream(run_dir, 0), stream(run_dir, 0, slot=1)
    put(writer, run_dir, (one, 0), (two, 2))
    one.write_all([(10, b"a\nb\n"), (30, b"d\n"), (30, b"e\n")])
    two.write_all([(20, b"c\n"), (40, b"f\n")])
    assert b"".join(texts(run_dir)) == b"abcdef"
    assert b"".join(texts(run_dir, tail=3)) == b"def"
    assert [line.rank for line in read_lines(run_dir, LineQuery())] == [0, 0, 2, 0, 0, 2]


@given(
    streams=st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.sampled_from([b"x\n", b"y", b"\n", b"zz\nz\n"])), max_size=6),
        min_size=1,
        max_size=4,
    ),
    tail=st.integers(0, 12),
)
@settings(max_examples=60)
def test_the_last_lines_are_the_end_of_all_lines(streams: list[list[tuple[int, bytes]]], tail: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.create(JobSpec(command=("a",)), home=Path(folder))
        for number, chunks in enumerate(streams):
            at = 0
            found = stream(run_dir, number)
            for step, data in chunks:
                at += step
                found.write(data, at=at)
        everything = list(read_lines(run_dir, LineQuery()))
        assert sorted(line.data for line in everything) == sorted(
            text for number in range(len(streams)) for text in lines_of(_path(run_dir, number).read_bytes())
        )
        assert (
            list(read_lines(run_dir, LineQuery(tail=tail)))
            == everything[len(everything) - min(tail, len(everything)) :]
        )


def _path(run_dir: RunDir, local: int) -> Path:
    return run_dir.stream_dir(1, "worker", 0) / f"{local}.out.log"


def test_logs_s46_each_filter_alone_and_together(run_dir: RunDir, writer: Writer) -> None:
    writer.begin_attempt(1, at=1, plan={})
    writer.begin_attempt(2, at=1, plan={})
    old = stream(run_dir, 0)
    old.write(b"first attempt\n", at=5)
    made = {}
    for slot, local, rank in ((0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)):
        for out in (True, False):
            found = made[rank, out] = stream(run_dir, local, slot=slot, attempt=2, out=out)
            found.write(b"%d %s\n" % (rank, b"out" if out else b"err"), at=100 + rank)
            writer.put_streams([row(run_dir, found, rank)])
    none = stream(run_dir, "slot", slot=1, attempt=2)
    none.write(b"launcher\n", at=50)
    assert texts(run_dir, attempt=1) == [b"first attempt"]
    assert texts(run_dir, attempt="all")[0] == b"first attempt"
    assert texts(run_dir)[0] == b"launcher"
    assert texts(run_dir, ranks=frozenset({1})) == [b"1 out", b"1 err"]
    assert texts(run_dir, ranks=frozenset({1}), include_unranked=True) == [b"launcher", b"1 out", b"1 err"]
    assert texts(run_dir, include_unranked=False, streams="err", slots=frozenset({0})) == [b"0 err", b"1 err"]
    assert texts(run_dir, last=True, streams="out") == [b"3 out"]
    assert texts(run_dir, ranks=frozenset({0}), last=True, grep="o[u]t") == [b"0 out", b"3 out"]
    assert texts(run_dir, since=103) == [b"3 out", b"3 err"]
    assert texts(run_dir, since=103, tail=50) == [b"3 out", b"3 err"]
    assert texts(run_dir, since=104) == []
    assert texts(run_dir, failed=True) == []
    writer.put_ranks(
        2,
        [
            RankFacts(rank=1, exit_code=1, state="ended"),
            RankFacts(rank=3, signal=15, state="ended", killed_by="agent"),
            RankFacts(rank=2, exit_code=0, state="ended"),
        ],
    )
    assert texts(run_dir, failed=True) == [b"1 out", b"1 err"]
    cause = Cause.of("host_oom", confidence="likely")
    writer.add_verdict(2, Diagnosis(verdict=Verdict(cause=cause, rank=2), fingerprint="f"))
    assert texts(run_dir, failed=True, streams="out") == [b"1 out", b"2 out"]


def test_the_last_rank_of_an_elastic_job_is_that_of_its_newest_round(home: Path) -> None:
    spec = JobSpec(command=("a",), nnodes=1, nnodes_max=4, nproc_per_node=2, launcher="torchrun")
    run_dir = RunDir.create(spec, home=home)
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        found = [stream(run_dir, local) for local in range(3)]
        put(writer, run_dir, *zip(found, (5, 3, 1), strict=True))
        for rank, one in zip((5, 3, 1), found, strict=True):
            one.write(b"%d\n" % rank, at=1)
        # Nobody knows a rank yet: nothing is shown rather than a wrong one.
        assert texts(run_dir, last=True) == []
        writer.put_ranks(1, [RankFacts(rank=rank, round=0) for rank in range(6)])
        assert texts(run_dir, last=True) == [b"5"]
        writer.put_ranks(1, [RankFacts(rank=rank, round=1) for rank in range(4)])
        assert texts(run_dir, last=True) == [b"3"]
        for name, number, world in (("a", 0, 6), ("b", 1, 2)):
            text = f'{{"id":"{name}","kind":"start","attempt":1,"round":{number},"rank":0,"world_size":{world}}}'
            (run_dir.records_dir / f"start-a1-worker-0-{name}.json").write_text(text)
        assert texts(run_dir, last=True) == [b"1"]


def test_the_last_rank_of_a_job_that_starts_its_ranks_itself_is_told_by_them_and_not_by_the_spec(home: Path) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",), nnodes=2, launcher="exec"), home=home)
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        found = [stream(run_dir, local) for local in range(2)]
        put(writer, run_dir, *zip(found, (1, 7), strict=True))
        for rank, one in zip((1, 7), found, strict=True):
            one.write(b"%d\n" % rank, at=1)
        writer.put_ranks(1, [RankFacts(rank=1)])
        # Two nodes of one rank each, as the spec has it, would make rank 1 the last one.
        assert texts(run_dir, last=True) == []
        record = '{"id":"a","kind":"start","attempt":1,"rank":1,"world_size":8}'
        (run_dir.records_dir / "start-a1-worker-0-a.json").write_text(record)
        assert texts(run_dir, last=True) == [b"7"]


def test_bytes_of_one_stream_may_belong_to_several_ranks(run_dir: RunDir, writer: Writer) -> None:
    found = stream(run_dir)
    found.write(b"none\nzero\nzero\none\n", at=1)
    writer.put_streams([row(run_dir, found, 0, first=5, end=15), row(run_dir, found, 1, first=15)])
    assert [line.rank for line in read_lines(run_dir, LineQuery())] == [None, 0, 0, 1]
    assert texts(run_dir, ranks=frozenset({0})) == [b"zero", b"zero"]
    assert texts(run_dir, ranks=frozenset({1})) == [b"one"]


def test_a_line_without_a_stamp_is_never_the_earliest(run_dir: RunDir, writer: Writer) -> None:
    dated, undated = stream(run_dir, 0), stream(run_dir, 1)
    dated.write(b"dated\n", at=100)
    undated.write(b"undated\n", at=1)
    undated.index.unlink()
    first, last = read_lines(run_dir, LineQuery())
    assert (first.data, last.data, last.at) == (b"dated", b"undated", None)
    assert texts(run_dir, since=50) == [b"dated", b"undated"]
    assert texts(run_dir, tail=1) == [b"undated"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (LineQuery(grep="(?=look)"), "not valid"),
        (LineQuery(grep="["), "not valid"),
        (LineQuery(tail=-1), "negative"),
        (LineQuery(attempt=0), "count attempts from 1"),
    ],
)
def test_a_query_without_sense_is_refused_at_once(run_dir: RunDir, query: LineQuery, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_lines(run_dir, query)


def test_what_cannot_be_read_is_named_and_the_rest_is_given(run_dir: RunDir) -> None:
    gone, there = stream(run_dir, 0), stream(run_dir, 1)
    gone.write(b"gone\n", at=1)
    there.write(b"there\n", at=1)
    gone.path.unlink()
    folder = run_dir.stream_dir(1, "worker", 0) / "2.out.log"
    folder.mkdir()
    problems: list[str] = []
    assert [line.data for line in read_lines(run_dir, LineQuery(), problems=problems)] == [b"there"]
    assert any("only its index" in text for text in problems)
    assert any("2.out.log cannot be read" in text for text in problems)
    problems = []
    assert [line.data for line in read_lines(run_dir, LineQuery(tail=5), problems=problems)] == [b"there"]
    assert any("2.out.log cannot be read" in text for text in problems)


def test_a_folder_that_cannot_be_read_is_named(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",)), home=open_folder)
    stream(run_dir, "slot", slot=0).write(b"hidden\n", at=1)
    stream(run_dir, "slot", slot=1).write(b"shown\n", at=1)
    opened(open_folder)
    run_dir.stream_dir(1, "worker", 0).chmod(0)
    (run_dir.logs_dir / "notes.txt").touch()
    (run_dir.logs_dir / "attempt-1" / "x").mkdir()
    (run_dir.logs_dir / "attempt-1" / "worker-1" / "tmp").mkdir()
    problems: list[str] = []
    with as_user():
        assert [line.data for line in read_lines(run_dir, LineQuery(), problems=problems)] == [b"shown"]
    assert any("worker-0/0 cannot be read: Permission denied" in text for text in problems)


def test_a_pipe_in_the_place_of_a_stream_makes_nobody_wait(run_dir: RunDir) -> None:
    there = stream(run_dir, 0)
    there.write(b"there\n", at=1)
    os.mkfifo(there.path.with_name("1.out.log"))
    os.mkfifo(there.path.with_name("1.out.idx"))
    os.mkfifo(run_dir.records_dir / "start-a1-worker-0-x.json")
    for query in (LineQuery(), LineQuery(tail=3), LineQuery(since=1)):
        problems: list[str] = []
        assert [line.data for line in read_lines(run_dir, query, problems=problems)] == [b"there"]
        assert query.tail is not None or any(
            "1.out.log cannot be read: is not a regular file" in text for text in problems
        )
