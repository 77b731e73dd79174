"""S46: the same filters give the same lines live, afterwards, and from compressed streams; and which lines ``level`` picks."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankfall.model import JobSpec, RankFacts, UsageError
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.lines import Line, LineQuery, LineTail, read_lines
from rankfall.rundir.lines.derived_files import ALL_RANKS, AllRanksFile, write_derived
from rankfall.rundir.lines.query import ErrorLines
from rankfall.rundir.streams.writer import compress_run
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.stream_files import FakeStream, row, stream

pytestmark = pytest.mark.steady

SECOND = 1_000_000_000
PIECES = [
    b"step 1 loss 2.0\n",
    b"half a line, ",
    b"\n",
    b"2026-11-21 ERROR lost the node\n",
    b"Traceback (most recent call last):\n",
    b'  File "train.py", line 8, in <module>\n',
    b"KeyError: 'vocab'\n",
    b"During handling of the above exception, another exception occurred:\n",
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    b"\xff\0\r\n",
]
# (stream, seconds since the chunk before, pieces)
CHUNKS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.lists(st.sampled_from(PIECES), min_size=1, max_size=4)),
    max_size=14,
)
NO_FILTER: dict[str, Any] = {"attempt": "all"}
FILTERS = st.fixed_dictionaries(
    {
        "ranks": st.none() | st.frozensets(st.integers(0, 3), max_size=2),
        "last": st.booleans(),
        "failed": st.booleans(),
        "slots": st.none() | st.frozensets(st.integers(0, 1), min_size=1),
        "attempt": st.sampled_from([1, 2, "all"]),
        "streams": st.sampled_from(["all", "out", "err"]),
        "instance": st.none() | st.integers(0, 1),
        "since": st.none() | st.integers(0, 15).map(lambda at: at * SECOND),
        "grep": st.sampled_from([None, "loss", "Error", "^$"]),
        "level": st.sampled_from([None, "error"]),
        "include_unranked": st.sampled_from([None, True, False]),
    }
)


def record(folder: str) -> tuple[RunDir, list[FakeStream]]:
    run_dir = RunDir.create(JobSpec(name="job", command=("a",), nnodes=2, nproc_per_node=2), home=Path(folder))
    streams = [
        stream(run_dir, 0),
        stream(run_dir, 0, out=False),
        stream(run_dir, 1, slot=1),
        stream(run_dir, "slot", slot=1),
        stream(run_dir, 0, attempt=2),
        FakeStream(run_dir.stream_dir(1, "worker", 0, 1) / "r3.out.log"),
    ]
    with run_dir.lease() as writer:
        for attempt in (1, 2):
            writer.begin_attempt(attempt, at=1, plan={})
            failed = RankFacts(rank=attempt, slot=1, state="ended", exit_code=1)
            writer.put_ranks(attempt, [RankFacts(rank=0, slot=0, state="running"), failed])
        writer.put_streams(row(run_dir, streams[number], rank) for number, rank in ((0, 0), (1, 0), (2, 2), (4, 0)))
        # One process was rank 1 first and rank 3 later.
        writer.put_streams([row(run_dir, streams[3], 1, first=20, end=60)])
    return run_dir, streams


def key(line: Line) -> tuple[object, ...]:
    return line.at, line.rank, line.slot, line.attempt, line.stream, line.offset, line.data, line.truncated


def by_stream(lines: list[Line]) -> dict[str, list[tuple[object, ...]]]:
    found: dict[str, list[tuple[object, ...]]] = {}
    for line in lines:
        found.setdefault(line.stream, []).append(key(line))
    return found


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, filters=FILTERS, polls=st.integers(1, 4))
def test_logs_s46_live_and_afterwards_and_compressed_are_the_same_lines(
    chunks: list[tuple[int, int, list[bytes]]], filters: dict[str, Any], polls: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir, streams = record(folder)
        query = LineQuery(**filters)
        now = 0
        live = LineTail(run_dir, query, clock=lambda: now)
        seen: list[Line] = []
        for number, (which, later, pieces) in enumerate(chunks):
            now += later * SECOND
            streams[which].write(b"".join(pieces), at=now)
            if number % polls == 0:
                seen += live.poll(limit=3)
        seen += live.drain()
        afterwards = list(read_lines(run_dir, query))
        assert by_stream(seen) == by_stream(afterwards)
        compress_run(run_dir, smallest=1)
        assert [key(line) for line in read_lines(run_dir, query)] == [key(line) for line in afterwards]


@settings(max_examples=40, deadline=None)
@given(chunks=CHUNKS, filters=FILTERS, tail=st.integers(0, 6))
@example(chunks=[(0, 0, [PIECES[0]]), (2, 0, [PIECES[0]]), (3, 0, [PIECES[0]])], filters=NO_FILTER, tail=1)
@example(chunks=[(0, 0, [PIECES[0]]), (1, 0, [PIECES[0]])], filters=NO_FILTER, tail=1)
def test_logs_s46_the_last_lines_are_the_last_of_all_of_them(
    chunks: list[tuple[int, int, list[bytes]]], filters: dict[str, Any], tail: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir, streams = record(folder)
        now = 0
        for which, later, pieces in chunks:
            now += later * SECOND
            streams[which].write(b"".join([*pieces, b"\n"]), at=now)
        every = list(read_lines(run_dir, LineQuery(**filters)))
        query = LineQuery(**filters, tail=tail)
        last = list(read_lines(run_dir, query))
        assert [key(line) for line in last] == [key(line) for line in every[len(every) - min(tail, len(every)) :]]
        live = LineTail(run_dir, query, clock=lambda: now + 10 * SECOND)
        assert [key(line) for line in live.poll()] == [key(line) for line in last]
        assert list(live.drain()) == []


def texts(lines: Iterable[Line]) -> list[bytes]:
    return [line.data for line in lines]


def test_logs_s46_lines_of_one_stamp_have_one_order_everywhere(home: Path) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",)), home=home)
    # In their order; no name of a stream sorts so.
    places = [
        ("launcher-7/0", "slot.out"),
        ("worker-2/0", "slot.out"),
        ("worker-2/0", "slot.err"),
        ("worker-2/0", "2.out"),
        ("worker-2/0", "2.err"),
        ("worker-2/0", "10.out"),
        ("worker-2/2", "0.out"),
        ("worker-2/10", "0.out"),
        ("worker-10/0", "0.out"),
        ("worker-10/0", "r1.out"),
        ("worker-10/0", "r12.out"),
    ]
    expected = [b"%d" % number for number in range(len(places))]
    last = LineQuery(attempt="all", tail=4)
    live = LineTail(run_dir, LineQuery(attempt="all"), clock=itertools.count(SECOND, SECOND).__next__, hold=60)
    file = AllRanksFile(run_dir, home, clock=itertools.count(SECOND, SECOND).__next__, hold=60)
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        # A follower finds each stream alone, and the last of the order first.
        for number, (folder, local) in reversed(list(enumerate(places))):
            found = FakeStream(run_dir.logs_dir / "attempt-1" / folder / f"{local}.log")
            found.write(b"%d\n" % number, at=1)
            if not local.startswith("slot"):
                writer.put_streams([row(run_dir, found, 20 - number)])
            assert live.poll() == []
            file.advance()
        writer.end_attempt(1, at=2, state="failed")
    assert texts(live.drain()) == expected
    assert texts(read_lines(run_dir, LineQuery(attempt="all"))) == expected
    assert texts(read_lines(run_dir, last)) == expected[-4:]
    assert texts(LineTail(run_dir, last).drain()) == expected[-4:]
    write_derived(run_dir)
    derived = (run_dir.path / ALL_RANKS).read_bytes()
    assert [line.split()[-1] for line in derived.splitlines()[1:]] == expected
    file.advance(final=True)
    assert file.path.read_bytes() == derived
    compress_run(run_dir, smallest=1)
    assert texts(read_lines(run_dir, LineQuery(attempt="all"))) == expected
    assert texts(read_lines(run_dir, last)) == expected[-4:]


@settings(max_examples=40, deadline=None)
@given(chunks=CHUNKS, polls=st.integers(1, 4))
def test_logs_s46_whole_lines_come_live_in_the_order_in_which_they_are_read_afterwards(
    chunks: list[tuple[int, int, list[bytes]]], polls: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir, streams = record(folder)
        now = 0
        live = LineTail(run_dir, LineQuery(attempt="all"), clock=lambda: now)
        seen: list[Line] = []
        for number, (which, later, pieces) in enumerate(chunks):
            now += later * SECOND
            streams[which].write(b"".join([*pieces, b"\n"]), at=now)
            if number % polls == 0:
                seen += live.poll(limit=3)
        seen += live.drain()
        assert list(map(key, seen)) == list(map(key, read_lines(run_dir, LineQuery(attempt="all"))))


def picked(*chunks: bytes) -> list[bytes]:
    errors = ErrorLines(default_catalogue())
    found = []
    for data in chunks:
        found += [data[offset:].split(b"\n")[0] for offset in sorted(errors.pick(data))]
    return found


@given(
    pieces=st.lists(st.sampled_from([piece for piece in PIECES if piece.endswith(b"\n")]), max_size=12),
    cut=st.integers(0, 12),
)
def test_where_chunks_are_cut_picks_no_other_lines(pieces: list[bytes], cut: int) -> None:
    assert picked(b"".join(pieces[:cut]), b"".join(pieces[cut:])) == picked(b"".join(pieces))


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-21 10:00:00,123 ERROR trainer: cannot open",
        b"CRITICAL:root:over",
        b"E1121 10:00:00.123456 77 api.py:7] failed",
        b'{"level": "error", "msg": "no"}',
        b"ts=1 level=fatal msg=gone",
        b"[rank1]: ValueError: bad",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        b"Segmentation fault (core dumped)",
    ],
)
def test_a_line_that_a_level_or_a_signature_marks_is_an_error_line(line: bytes) -> None:
    assert picked(b"step 1\n" + line + b"\nstep 2\n") == [line]


@pytest.mark.parametrize(
    "line", [b"step 1 error_rate 0.1", b"INFO all is well", b"level=info", b"no errors so far", b""]
)
def test_an_ordinary_line_is_none(line: bytes) -> None:
    assert picked(line + b"\n") == []


def test_a_traceback_is_whole_also_over_chunks_and_ends_with_its_words() -> None:
    block = [b"[default1]:Traceback (most recent call last):", b'[default1]:  File "a.py", line 1', b"my.Odd"]
    assert picked(b"fine\n" + block[0] + b"\n", block[1] + b"\n", block[2] + b"\nfine\n") == block


def test_the_users_signatures_count(run_dir: RunDir, writer: Writer) -> None:
    folder = run_dir.path.parent.parent / "signatures"
    folder.mkdir()
    (folder / "own.toml").write_text("[[signature]\n")
    found = stream(run_dir)
    found.write(b"fine\nERROR no\n", at=1)
    problems: list[str] = []
    lines = list(read_lines(run_dir, LineQuery(attempt="all", level="error"), problems=problems))
    assert [line.data for line in lines] == [b"ERROR no"]
    assert any("the user's signatures" in problem for problem in problems)


def test_a_negative_instance_is_refused(run_dir: RunDir) -> None:
    with pytest.raises(UsageError, match="instance -1 is negative"):
        read_lines(run_dir, LineQuery(instance=-1))
