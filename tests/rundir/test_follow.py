"""Live lines: each exactly once, in stamp order within the hold, with ranks that become known late."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.model import JobSpec
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.lines import Line, LineQuery, LineTail, read_lines
from rankfall.rundir.lines.follow import RANK_WAIT_S, TOLERANCE_S
from rankfall.rundir.streams.content import Raw
from support.helpers import wait_until
from support.stream_files import FakeStream, row, stream

S = 1_000_000_000


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = round(now * S)

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += round(seconds * S)


def datas(lines: list[Line]) -> list[bytes]:
    return [line.data for line in lines]


WRITE = st.tuples(st.just("write"), st.integers(0, 2), st.sampled_from([b"a\n", b"b", b"\n", b"c\r\0\nd\n", b"\xff"]))
POLL = st.tuples(st.just("poll"), st.integers(1, 5), st.just(b""))
PASS = st.tuples(st.just("pass"), st.integers(0, 3), st.just(b""))


@given(steps=st.lists(WRITE | POLL | PASS, max_size=40), lag=st.integers(0, 40))
@settings(max_examples=60)
def test_each_line_comes_exactly_once_whatever_the_poll_moments(steps: list[tuple[str, int, bytes]], lag: int) -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.create(JobSpec(command=("a",)), home=Path(folder))
        follower = LineTail(run_dir, LineQuery(), clock=clock, rank_wait=0)
        streams: dict[int, FakeStream] = {}
        seen: list[Line] = []
        for what, number, data in steps:
            if what == "write":
                found = streams.get(number) or stream(run_dir, number)
                streams[number] = found
                found.write(data, at=clock.now - number * lag * S // 10)
            elif what == "poll":
                seen += follower.poll(limit=number)
            else:
                clock.pass_(number / 10)
        seen += follower.drain()
        expected = list(read_lines(run_dir, LineQuery()))
        assert sorted((line.stream, line.offset, line.data) for line in seen) == sorted(
            (line.stream, line.offset, line.data) for line in expected
        )
        for number in streams:
            own = [line.offset for line in seen if line.stream.endswith(f"/{number}.out.log")]
            assert own == sorted(own)
        last = 0
        for line in seen:
            assert line.at is not None
            assert line.late == (line.at < last - TOLERANCE_S * S)
            last = max(last, line.at)


def test_logs_s38_lines_of_two_ranks_are_ordered_within_the_hold_and_later_ones_marked(
    run_dir: RunDir, writer: Writer
) -> None:
    clock = Clock()
    one, two = stream(run_dir, 0), stream(run_dir, 1)
    writer.put_streams([row(run_dir, one, 0), row(run_dir, two, 1)])
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    start = clock.now
    one.write(b"second\n", at=start - S // 20)
    assert follower.poll() == []
    clock.pass_(0.1)
    two.write(b"first\n", at=start - S // 10)
    assert datas(follower.poll()) == [b"first"]
    clock.pass_(0.1)
    assert datas(follower.poll()) == [b"second"]
    two.write(b"not in order\n", at=start - S // 15)
    (near,) = follower.poll()
    assert (near.data, near.late, near.rank) == (b"not in order", False, 1)
    clock.pass_(3)
    one.write(b"third\n", at=clock.now - S)
    assert datas(follower.poll()) == [b"third"]
    two.write(b"too late\n", at=start)
    (late,) = follower.poll()
    assert (late.data, late.late, late.rank) == (b"too late", True, 1)


def test_logs_s39_a_clock_five_minutes_ahead_holds_no_line_longer_than_the_hold(
    run_dir: RunDir, writer: Writer
) -> None:
    clock = Clock()
    found = stream(run_dir, 0)
    writer.put_streams([row(run_dir, found, 0)])
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    found.write(b"from the future\n", at=clock.now + 300 * S)
    assert follower.poll() == []
    clock.pass_(0.2)
    (line,) = follower.poll()
    assert line.at is not None
    assert line.at > clock.now


def test_logs_s25_ranks_known_15_minutes_late_lose_no_line(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    follower = LineTail(run_dir, LineQuery(ranks=frozenset({3})), clock=clock)
    mine, other = stream(run_dir, 1, slot=1), stream(run_dir, 0, slot=1)
    many = [b"%d " % number + b"x" * 1000 for number in range(2000)]
    for _ in range(900):
        clock.pass_(1)
        assert follower.poll() == []
        if many[len(mine.data.split(b"\n")) - 1 :]:
            mine.write(b"\n".join(many) + b"\n", at=clock.now)
            other.write(b"other\n", at=clock.now)
    writer.put_streams([row(run_dir, mine, 3), row(run_dir, other, 2)])
    clock.pass_(1)
    assert [(line.rank, line.data) for line in follower.poll()] == [(3, text) for text in many]


def test_the_last_look_sees_a_rank_that_was_written_down_within_one_tick_of_the_look_before(
    run_dir: RunDir, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    follower = LineTail(run_dir, LineQuery(ranks=frozenset({0})), clock=clock)
    # As two states of the database look within one tick of the file system's clock.
    monkeypatch.setattr(RunDir, "tables_mark", lambda _: "the same")
    mine = stream(run_dir, 0)
    mine.write(b"the only line\n", at=clock.now)
    clock.pass_(1)
    assert follower.poll() == []
    writer.put_streams([row(run_dir, mine, 0)])
    assert datas(list(follower.drain())) == [b"the only line"]


def test_without_a_supervisor_the_ranks_own_records_tell_whose_a_stream_is(run_dir: RunDir) -> None:
    clock = Clock()
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        mapped = stream(run_dir, 0)
        writer.put_streams([row(run_dir, mapped, 5)])
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    for local in (0, 1):
        found = mapped if local == 0 else stream(run_dir, local)
        found.write(b"x\n", at=clock.now)
        text = (
            f'{{"id":"{local}","kind":"start","attempt":1,"role":"worker","slot":0,"ordinal":{local},"rank":{local}}}'
        )
        (run_dir.records_dir / f"start-a1-worker-0-{local}.json").write_text(text)
    clock.pass_(1)
    assert [line.rank for line in follower.poll()] == [5, 1]
    assert [line.rank for line in read_lines(run_dir, LineQuery())] == [5, 1]


def test_an_unfiltered_view_waits_a_while_for_the_rank_and_then_shows_the_line_without(
    run_dir: RunDir, writer: Writer
) -> None:
    clock = Clock()
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    known, unknown, none = stream(run_dir, 0), stream(run_dir, 1), stream(run_dir, "slot")
    for found in (known, unknown, none):
        found.write(b"x\n", at=clock.now)
        # As a supervisor does that sees a stream before the record that names its rank.
        writer.put_streams([row(run_dir, found, None)])
    clock.pass_(0.5)
    # The launcher's own lines wait for nobody.
    assert [line.stream[-12:] for line in follower.poll()] == ["slot.out.log"]
    writer.put_streams([row(run_dir, known, 0)])
    clock.pass_(0.5)
    assert [line.rank for line in follower.poll()] == [0]
    clock.pass_(RANK_WAIT_S)
    (line,) = follower.poll()
    assert (line.rank, line.stream[-9:], line.late) == (None, "1.out.log", False)


def test_the_view_begins_with_the_last_lines_and_goes_on(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    writer.begin_attempt(1, at=1, plan={})
    found = stream(run_dir, 0)
    writer.put_streams([row(run_dir, found, 0)])
    found.write(b"1\n2\n3\nhal", at=clock.now - S)
    follower = LineTail(run_dir, LineQuery(tail=2), clock=clock)
    assert datas(follower.poll()) == [b"2", b"3"]
    found.write(b"f\n4\n", at=clock.now)
    clock.pass_(1)
    assert datas(follower.poll()) == [b"half", b"4"]
    second = stream(run_dir, 0, attempt=2)
    writer.begin_attempt(2, at=2, plan={})
    writer.put_streams([row(run_dir, second, 0)])
    second.write(b"again\n", at=clock.now)
    clock.pass_(1)
    assert [(line.attempt, line.data) for line in follower.poll()] == [(2, b"again")]
    assert list(follower.drain()) == []


def test_a_later_attempt_is_picked_up_and_an_earlier_one_is_not_shown(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    old = stream(run_dir, "slot", attempt=1)
    old.write(b"old\n", at=clock.now)
    writer.begin_attempt(1, at=1, plan={})
    writer.begin_attempt(2, at=2, plan={})
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    assert follower.poll() == []
    for attempt in (2, 3):
        stream(run_dir, "slot", attempt=attempt).write(b"%d\n" % attempt, at=clock.now)
    clock.pass_(1)
    assert datas(follower.poll()) == [b"2", b"3"]


def test_logs_s35_an_unfinished_line_appears_when_the_stream_ends(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    found = stream(run_dir, "slot")
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    found.write(b" 1%\r 2%", at=clock.now)
    clock.pass_(9)
    assert follower.poll() == []
    assert datas(list(follower.drain())) == [b" 1%\r 2%"]


def test_logs_s43_two_viewers_see_the_same_and_leave_the_record_alone(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    found = stream(run_dir, "slot")
    found.write(b"one\ntwo\n", at=clock.now)
    before = {path: path.read_bytes() for path in sorted(run_dir.logs_dir.rglob("*")) if path.is_file()}
    viewers = [LineTail(run_dir, LineQuery(), clock=clock) for _ in range(2)]
    for viewer in viewers:
        viewer.poll()
    clock.pass_(1)
    assert [datas(viewer.poll()) + datas(list(viewer.drain())) for viewer in viewers] == [[b"one", b"two"]] * 2
    assert texts(run_dir) == texts(run_dir) == [b"one", b"two"]
    assert before == {path: path.read_bytes() for path in sorted(run_dir.logs_dir.rglob("*")) if path.is_file()}


def texts(run_dir: RunDir) -> list[bytes]:
    return [line.data for line in read_lines(run_dir, LineQuery())]


WRITER = """
import os, sys
sys.path.insert(0, sys.argv[2])
from rankfall_inside.delivery.stream_files import Sink
sink = Sink(sys.argv[1])
for number in range(2000):
    sink.write(b"line %d\\nha" % number)
    sink.write(b"lf %d\\n" % number)
sink.close()
"""


def test_the_wrappers_own_writer_is_followed_live_and_its_index_is_true(run_dir: RunDir, writer: Writer) -> None:
    folder = run_dir.stream_dir(1, "worker", 0)
    folder.mkdir(parents=True)
    source = Path(__file__).parents[2] / "src"
    follower = LineTail(run_dir, LineQuery(), hold=0.01)
    seen: list[Line] = []
    with subprocess.Popen([sys.executable, "-c", WRITER, folder / "slot.out", source]) as process:

        def ended() -> bool:
            seen.extend(follower.poll())
            return process.poll() is not None

        wait_until(ended, timeout=30, what="the writer's end")
    seen += follower.drain()
    assert process.returncode == 0
    expected = [text for n in range(2000) for text in (b"line %d" % n, b"half %d" % n)]
    assert datas(seen) == expected
    assert texts(run_dir) == expected
    assert all(line.at is not None for line in seen)
    assert not any(line.late for line in seen)


def test_a_stream_that_cannot_be_read_is_named_and_read_on_when_it_can(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    found = stream(run_dir, "slot")
    found.write(b"one\n", at=clock.now)
    hidden = found.path.with_name("hidden")
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    follower.poll()
    clock.pass_(1)
    assert datas(follower.poll()) == [b"one"]
    found.path.rename(hidden)
    follower.poll()
    assert any("cannot be read" in problem for problem in follower.problems)
    hidden.rename(found.path)
    found.write(b"two\n", at=clock.now)
    follower.poll()
    clock.pass_(1)
    assert datas(follower.poll()) == [b"two"]


@pytest.mark.parametrize("out", ["out", "err"])
def test_filters_hold_live_as_they_do_afterwards(run_dir: RunDir, writer: Writer, out: str) -> None:
    clock = Clock()
    query = LineQuery(streams=out, ranks=frozenset({1}), grep="loss", since=clock.now)  # type: ignore[arg-type]
    follower = LineTail(run_dir, query, clock=clock)
    for local in (0, 1):
        for is_out in (True, False):
            found = stream(run_dir, local, out=is_out)
            writer.put_streams([row(run_dir, found, local)])
            found.write_all([(clock.now - 1, b"loss old\n"), (clock.now, b"loss %d\nother\n" % local)])
    follower.poll()
    clock.pass_(1)
    live = follower.poll()
    assert datas(live) == [b"loss 1"]
    assert live == list(read_lines(run_dir, query))


def test_a_line_without_its_end_is_shown_and_not_taken(run_dir: RunDir, writer: Writer) -> None:
    clock = Clock()
    mine, other = stream(run_dir, 0), stream(run_dir, 1)
    writer.put_streams([row(run_dir, mine, 0), row(run_dir, other, 1)])
    follower = LineTail(run_dir, LineQuery(ranks=frozenset({0})), clock=clock)
    mine.write(b"whole\n\r 10%|# |", at=clock.now)
    other.write(b"\r 90%|##|", at=clock.now)
    clock.pass_(1)
    assert datas(follower.poll()) == [b"whole"]
    follower.poll()
    for _ in range(2):
        assert [(line.rank, line.data) for line in follower.unfinished()] == [(0, b"\r 10%|# |")]
    # A bar that is longer than any line, and another one after it.
    mine.write(b"\r 20%|# |" * 300_000, at=clock.now)
    clock.pass_(1)
    [cut] = follower.poll()
    assert cut.truncated
    follower.poll()
    [rest] = follower.unfinished()
    assert rest.data.endswith(b"\r 20%|# |")
    assert len(rest.data) <= 2048
    mine.write(b"\r100%|##|\nlast\n", at=clock.now)
    clock.pass_(1)
    assert datas(follower.poll()) == [b"last"]
    follower.poll()
    assert list(follower.unfinished()) == []


def test_a_growing_bar_is_not_read_again_from_its_begin(
    run_dir: RunDir, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    mine = stream(run_dir, 0)
    writer.put_streams([row(run_dir, mine, 0)])
    follower = LineTail(run_dir, LineQuery(), clock=clock)
    mine.write(b"\r 10%|# |" * 10_000, at=clock.now)
    clock.pass_(1)
    assert follower.poll() == []
    taken: list[int] = []
    read = Raw.read
    monkeypatch.setattr(Raw, "read", lambda self, at, size: (taken.append(size), read(self, at, size))[1])
    for _ in range(50):
        mine.write(b"\r 20%|##|", at=clock.now)
        clock.pass_(1)
        assert follower.poll() == []
    assert sum(taken) == 50 * len(b"\r 20%|##|")
    mine.write(b"\n", at=clock.now)
    clock.pass_(1)
    [line] = follower.poll()
    assert len(line.data) == 9 * 10_050
