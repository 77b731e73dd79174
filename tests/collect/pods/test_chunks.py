"""A chunk taken apart as a whole: by one rank's head, by any head, and line by line, always with the same outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall.collect.pods import chunks
from rankfall.collect.pods.chunks import SplitChunk, Splitter
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.rundir.cluster.log_routes import StampParser

pytestmark = pytest.mark.steady

NS = 1_000_000_000
SECOND = 1_795_401_518
STAMP = b"2026-11-23T02:38:38"
HEAD = b"%b.000000001Z [rank 3] " % STAMP

# One second before, the same, one and two after, over midnight, and what is none.
seconds = st.sampled_from(
    [
        STAMP,
        b"2026-11-23T02:38:39",
        b"2026-11-23T02:38:40",
        b"2026-11-23T02:38:37",
        b"2026-11-22T23:59:59",
        b"2026-11-23T00:00:00",
        b"2026-11-23T24:00:00",
        b"2026-11-23T02:38:60",
        b"2026-02-30T02:38:38",
    ]
)
fractions = st.one_of(
    st.integers(0, NS - 1).map(lambda n: b".%09d" % n),
    st.sampled_from([b".12345678", b".1234567890", b".5", b"", b".12345678x", b",123456789"]),
)
zones = st.sampled_from([b"Z ", b"+00:00 ", b"+02:00 ", b"Z", b"Z\t"])
tags = st.sampled_from(
    [
        b"[rank 3] ",
        b"[rank 4] ",
        b"[rank 03] ",
        b"[rank ?] ",
        b"",
        b"[rank 12345678] ",
        b"[rank 3]x",
        b"[rank ",
        b"[rank -1] ",
    ]
)
odd = st.builds(lambda *parts: b"".join(parts), seconds, fractions, zones, tags)
texts = st.one_of(
    st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"").replace(b"\x1e", b"")),
    # Text that looks like what stands in front of a line.
    st.just(HEAD),
    odd,
    st.sampled_from([b"", b"\r", b"same", b"[rank 3] ", b"Z [rank 3] ", b"\x1erankfall/1 TOKEN data", b"\x1e"]),
)
heads = st.integers(0, NS - 1).map(lambda n: b"%b.%09dZ [rank 3] " % (STAMP, n))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Lines that mostly are of one rank and second, as a busy rank's are; now and then of two seconds, or anything."""
    usual = draw(
        st.sampled_from([heads, heads, st.one_of(heads, heads, heads, odd), st.one_of(heads, odd, st.just(b""))])
    )
    lines = draw(st.lists(st.builds(bytes.__add__, usual, texts), min_size=1, max_size=12))
    if draw(st.booleans()):
        # The second changes once.
        at, later = draw(st.integers(0, len(lines))), draw(seconds)
        lines[at:] = [later + line[len(STAMP) :] if line.startswith(STAMP) else line for line in lines[at:]]
    return b"\n".join([*lines, b""])


def read(folder: Path, pieces: list[bytes]) -> tuple[dict[str, bytes], list[object]]:
    """All that a reading leaves: files of the streams, and what the cursor knows."""
    log = InstanceLog(folder, on_record=lambda line, _at: len(line) > len("?rankfall/1 TOKEN"), now=lambda: SECOND * NS)
    log.opened()
    for piece in pieces:
        log.push(piece)
    log.finish()
    cursor = log.cursor
    known: list[object] = [
        cursor.lines,
        cursor.last,
        cursor.since,
        dict(cursor.sizes),
        sorted(cursor.taken_last()),
        log.held(),
    ]
    log.close()
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in {".log", ".idx"}}, known


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies(), more=bodies(), data=st.data())
def test_every_way_to_take_a_chunk_apart_stores_the_same(tmp_path_factory, monkeypatch, body, more, data):
    whole = body + more
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = {}
    for way in ("alike", "mixed", "lines"):
        with monkeypatch.context() as patch:
            patch.setattr("rankfall.collect.pods.instance_log.LEAST", 1)
            if way != "alike":
                patch.setattr(Splitter, "_alike", lambda _self, _data: None)
            if way == "lines":
                patch.setattr(Splitter, "split", lambda _self, _data: None)
            found[way] = read(tmp_path_factory.mktemp(way), pieces)
    assert found["alike"] == found["lines"]
    assert found["mixed"] == found["lines"]


@settings(max_examples=500, deadline=None)
@given(body=bodies())
def test_what_one_head_takes_is_what_any_head_takes(body):
    alike, mixed = Splitter(StampParser())._alike(body), Splitter(StampParser())._mixed(body)
    if alike is not None and mixed is not None:
        assert alike == mixed


@pytest.fixture
def alone(monkeypatch):
    """A splitter that has the way of one rank only."""
    monkeypatch.setattr(Splitter, "_mixed", lambda _self, _data: None)
    return Splitter(StampParser())


def test_a_chunk_of_one_rank_and_second_is_taken_by_its_head(alone):
    body = b"".join(b"%b.%09dZ [rank 7] line %d\n" % (STAMP, number, number) for number in range(3))
    assert alone.split(body) == SplitChunk(
        3,
        {b"7": b"line 0\nline 1\nline 2\n"},
        {b"7": 3},
        {b"7": [(0, 0, SECOND * NS, SECOND * NS + 2)]},
        SECOND * NS + 2,
        SECOND,
        SECOND,
    )


def test_a_chunk_of_two_seconds_is_taken_too_unless_the_clock_was_set_back(alone):
    later = b"2026-11-23T02:38:39"
    taken = alone.split(b"%b.000000005Z [rank ?] a\n%b.000000004Z [rank ?] b\n" % (STAMP, later))
    assert taken is not None
    assert (taken.lines, taken.pieces, taken.high, taken.low) == (2, {b"?": b"a\nb\n"}, SECOND + 1, SECOND)
    # A kubelet may read a file twice: each line is compared with those before it.
    assert alone.split(b"%b.000000005Z [rank ?] a\n%b.000000004Z [rank ?] b\n" % (later, STAMP)) is None


@pytest.mark.parametrize(
    "strange",
    [
        HEAD.replace(b"rank 3", b"rank 4"),
        HEAD.replace(b"[rank 3] ", b""),
        HEAD.replace(b"02:38:38", b"02:38:39"),
        HEAD.replace(b".000000001", b".00000001"),
        HEAD.replace(b".000000001", b".0000000001"),
        HEAD.replace(b"Z", b"+00:00"),
        b"",
        b"torn " + HEAD,
    ],
)
def test_one_strange_line_in_the_middle_is_seen(alone, strange):
    """A further head in another line's text does not make up for it."""
    assert alone.split(HEAD + b"a\n" + HEAD + b"b\n" + HEAD + b"c\n") is not None
    assert alone.split(HEAD + HEAD + b"\n" + strange + b"b\n" + HEAD + b"c\n") is None


def test_patterns_of_ranks_are_bounded(alone, monkeypatch):
    monkeypatch.setattr(chunks, "_MOST", 4)
    for rank in range(10):
        assert alone.split(b"%b.000000001Z [rank %d] text\n" % (STAMP, rank)) is not None
        assert len(alone._of_rank) <= 4


def test_records_keep_the_lines_before_and_behind_them_in_chunks(tmp_path, monkeypatch):
    taken: list[bytes] = []

    def record(line: bytes, _at: int | None) -> bool:
        taken.append(line)
        return b"foreign" not in line

    line_by_line: list[int] = []
    lines = InstanceLog._lines
    monkeypatch.setattr(
        InstanceLog,
        "_lines",
        lambda self, some, whole=True: (line_by_line.append(len(some)), lines(self, some, whole=whole)),
    )
    usual = b"".join(b"%b.%09dZ [rank 7] line %d\n" % (STAMP, number, number) for number in range(100))
    records = [b"%b.5Z \x1erankfall/1 TOKEN %d\n" % (STAMP, number) for number in range(2)]
    foreign = b"%b.5Z \x1erankfall/1 foreign\n" % STAMP
    log = InstanceLog(tmp_path, on_record=record, now=lambda: SECOND * NS)
    log.opened()
    after = b"".join(b"%b.6%08dZ [rank 7] line %d\n" % (STAMP, number, number) for number in range(100))
    inside = b"%b.5Z [rank 7] line\n" % STAMP
    log.push(usual + records[0] + inside + records[1] + foreign + after)
    log.close()
    held = log.held()
    # Only from the first record to the last.
    assert line_by_line == [len((records[0] + inside + records[1] + foreign).splitlines())]
    assert [line.split()[-1] for line in taken] == [b"0", b"1", b"foreign"]
    assert log.cursor.lines == 200 + line_by_line[0]
    assert held["slot"][0] == 1
    assert len(list(tmp_path.glob("taken-*.raw"))) == 1
