"""What a verdict says of times holds for lines of known times, however they were read: live, afterwards, after a kill, from Loki."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.readers.stream_reader import Index
from rankfall.model import Case
from rankfall.rundir import StreamAppender
from rankfall.rundir.cluster.log_routes import StampParser, stamp_text
from rankfall.rundir.streams.files import MAGIC, ROW, IndexReader
from rankfall.rundir.streams.writer import STAMP_RUNTIME, Mark
from rankfall.verdict.diagnose import diagnose
from rankfall_inside.delivery.stream_files import Sink
from support.loki_world import BEGAN, World

NS = 1_000_000_000
MS = 1_000_000
# Of each slot its lines with their stamps; a slot is one pod with one rank.
Log = list[tuple[int, str]]
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()"]
ERROR = "ValueError: bad sample %d"


@st.composite
def logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two pods, each of which prints for a while and raises at its end."""
    found = []
    for slot in range(2):
        at = BEGAN + draw(st.integers(0, 8 * NS))
        lines = []
        pauses = st.one_of(st.just(0), st.integers(0, 90 * MS), st.integers(0, 3 * NS))
        texts = [f"step {n}" for n in range(draw(st.integers(0, 12)))] + [*TRACEBACK, ERROR % slot]
        for text in texts:
            at += draw(pauses)
            lines.append((at, text))
        found.append(lines)
    return found[0], found[1]


def body(slot: int, lines: Log) -> bytes:
    return b"".join(f"{stamp_text(at)} [rank {slot}] {text}\n".encode() for at, text in lines)


def live(world: World, slot: int, lines: Log, cut: float) -> None:
    """Each line when it comes, some of them together."""
    log = opened(world, slot)
    log.live = True
    size = max(1, round(cut * 4))
    for first in range(0, len(lines), size):
        log.push(body(slot, lines[first : first + size]))


def afterwards(world: World, slot: int, lines: Log, cut: float) -> None:
    """In pieces that come to an end anywhere."""
    log, text = opened(world, slot), body(slot, lines)
    log.push(text[: round(cut * len(text))])
    log.push(text[round(cut * len(text)) :])


def after_a_kill(world: World, slot: int, lines: Log, cut: float) -> None:
    """Some lines live, the rest by another process that asks from the cursor's second on."""
    count = round(cut * len(lines))
    live(world, slot, lines[:count], cut)
    log = opened(world, slot)
    since = log.cursor.since or 0
    log.push(body(slot, [(at, text) for at, text in lines if at >= since * NS]))


def from_loki(world: World, slot: int, lines: Log, cut: float) -> None:
    """Some lines from the API, the rest from Loki when the pod is gone."""
    count = round(cut * len(lines))
    world.pod(slot=slot, uid=f"uid-{slot}", log="lost")
    log = opened(world, slot)
    log.push(body(slot, lines[:count]))
    log.lose()
    log.cursor.closed = "lost"
    log.cursor.commit({})
    for at, text in lines:
        world.loki.add(at, f"[rank {slot}] {text}", pod=f"job-{slot}-abcde")
    world.take()


@contextlib.contextmanager
def world_in(home: Path) -> Iterator[World]:
    """A world whose logs are closed at its end: thousands of examples must not leave their files open."""
    world = World(home)
    with contextlib.ExitStack() as world.logs:
        yield world


def opened(world: World, slot: int) -> InstanceLog:
    log = world.instances().open(slot, uid=f"uid-{slot}", number=0)
    world.logs.callback(log.close)
    log.opened()
    return log


def record(world: World, kind: str, slot: int, at: int, **fields: Any) -> None:
    """As the slot's wrapper writes it."""
    data = {"schema": "rankfall.record/1", "id": uuid.uuid4().hex, "kind": kind, "run": world.run.id, "attempt": 1}
    data |= {"slot": slot, "role": "worker", "node": f"node{slot}", "at_ns": at, "writer": "wrapper"} | fields
    path = world.run.records_dir / f"{kind}-a1-worker-{slot}-{data['id']}.json"
    path.write_text(json.dumps(data))
    os.utime(path, ns=(at, at))


def case_of(world: World, both: tuple[Log, Log]) -> Case:
    world.run.records_dir.mkdir(exist_ok=True)
    for slot, lines in enumerate(both):
        record(world, "slot_start", slot, BEGAN)
        record(world, "slot_end", slot, lines[-1][0] + NS, exit={"code": 1})
    observer = AttemptObserver(world.run, spec=world.run.spec, attempt=1)
    while (delta := observer.poll(BEGAN + 3600 * NS)).bytes or delta.behind:
        pass
    return observer.case()


def stamps_of(both: tuple[Log, Log]) -> dict[tuple[int, int], int]:
    """When the line came that begins at a byte of a slot's stream."""
    found = {}
    for slot, lines in enumerate(both):
        byte = 0
        for at, text in lines:
            found[slot, byte] = at
            byte += len(text) + 1
    return found


def holds(case: Case, both: tuple[Log, Log]) -> None:
    """Each time of a line, and each order that is claimed."""
    stamps = stamps_of(both)
    pieces = [one for one in case.evidence if one.source == "log"]
    assert {one.slot for one in pieces} == {0, 1}
    for one in pieces:
        assert one.slot is not None
        assert one.order is not None
        if one.at is not None:
            assert one.uncertainty is not None
            assert abs(one.at - stamps[one.slot, one.order]) <= round(one.uncertainty * NS)
    verdict = diagnose(case).verdict
    first, second = both[0][-1][0], both[1][-1][0]
    assert verdict.slot in {0, 1}
    assert verdict.cause.slug == "user_code_exception"
    stated, uncertainty = verdict.time.at, verdict.time.uncertainty_s
    if stated is not None:
        assert uncertainty is not None
        assert abs(nanoseconds(stated) - (first, second)[verdict.slot]) <= round(uncertainty * NS)
    if any("failed later" in one.rejected for one in verdict.alternatives):
        assert first < second if verdict.slot == 0 else second < first


def nanoseconds(text: str) -> int:
    at, start = StampParser().split(text.encode() + b" ")
    assert start
    assert at is not None
    return at


@pytest.fixture(params=[1, 2048], ids=["chunks", "lines"])
def taken(request, monkeypatch):
    """How lines are taken, as a few at once are or by the chunk."""
    monkeypatch.setattr("rankfall.collect.pods.instance_log.LEAST", request.param)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("way", [live, afterwards, after_a_kill, from_loki])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(both=logs(), cut=st.floats(0, 1))
def test_i19_p1_each_time_that_is_stated_holds(way, both, cut, tmp_path_factory):
    with world_in(tmp_path_factory.mktemp("home")) as world:
        for slot, lines in enumerate(both):
            way(world, slot, lines, cut)
        holds(case_of(world, both), both)


@pytest.mark.parametrize("way", [live, afterwards, after_a_kill])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(both=logs(), cut=st.floats(0, 1))
def test_i19_p1_times_of_a_run_directory_of_an_earlier_version_hold(way, both, cut, tmp_path_factory, monkeypatch):
    """Of each piece it has the stamp of the first line only."""
    write = StreamAppender.write_marked

    def as_before(self: StreamAppender, data: bytes, marks: list[Mark], *, lines: int | None = None) -> None:
        write(self, data, [(*mark[:3], 0) for mark in marks[:1]], lines=lines)

    with world_in(tmp_path_factory.mktemp("home")) as world:
        with monkeypatch.context() as patch:
            patch.setattr(StreamAppender, "write_marked", as_before)
            for slot, lines in enumerate(both):
                way(world, slot, lines, cut)
        holds(case_of(world, both), both)


def test_i19_p1_a_pod_that_failed_first_is_named_although_its_log_begins_later(tmp_path):
    early = [(BEGAN + 15 * NS, text) for text in [*TRACEBACK, ERROR % 0]]
    late = [(BEGAN + n * NS, f"step {n}") for n in range(22)] + [
        (BEGAN + 22 * NS, text) for text in [*TRACEBACK, ERROR % 1]
    ]
    with world_in(tmp_path) as world:
        for slot, lines in enumerate((early, late)):
            afterwards(world, slot, lines, 1.0)
        case = case_of(world, (early, late))
    holds(case, (early, late))
    verdict = diagnose(case).verdict
    assert verdict.slot == 0
    assert verdict.time.uncertainty_s == pytest.approx(0.05)
    assert [one.rejected for one in verdict.alternatives] == ["failed later, by more than the clocks' uncertainty"]


def test_i19_p1_a_line_without_a_stamp_came_between_its_neighbours(tmp_path):
    log = InstanceLog(tmp_path, on_record=lambda _line, _at: False, now=lambda: BEGAN)
    log.opened()
    log.push(b"torn\n" + body(0, [(BEGAN, "a")]))
    log.push(b"glued to it\n" + body(0, [(BEGAN + NS, "b")]) + b"torn\n" + body(0, [(BEGAN + 2 * NS, "c")]))
    log.close()
    slot, rank = Index(tmp_path / "slot.out.idx"), Index(tmp_path / "r0.out.idx")
    slot.grow()
    rank.grow()
    # The first one came at any time, the others behind a line that has a stamp, and before the newest one.
    assert [slot.when(byte) for byte in (0, 5, 17)] == [None, (BEGAN, BEGAN + 2 * NS), (BEGAN, BEGAN + 2 * NS)]
    assert [rank.when(byte) for byte in (0, 2, 4)] == [(at, at) for at in (BEGAN, BEGAN + NS, BEGAN + 2 * NS)]


@pytest.mark.parametrize("row", [(BEGAN, BEGAN + NS), (BEGAN, -5), (BEGAN, BEGAN - NS), (BEGAN, 0)])
def test_i19_p1_an_index_that_is_damaged_or_ends_says_nothing_of_when(tmp_path, row):
    (tmp_path / "r0.out.idx").write_bytes(MAGIC + ROW.pack(0, 0, *row, STAMP_RUNTIME))
    index = Index(tmp_path / "r0.out.idx")
    assert index.last_stamp() == BEGAN
    assert index.when(0) is None
    (tmp_path / "cursor.jsonl").write_bytes(b'{"last":5}\n{"last":%d}\n{"la' % (BEGAN + NS))
    assert index.when(0) == (BEGAN, BEGAN + NS)
    (tmp_path / "cursor.jsonl").write_bytes(b"no row\n")
    assert index.when(0) is None
    assert IndexReader(tmp_path / "r0.out.log").last_stamp() == BEGAN


@pytest.mark.parametrize("make", [StreamAppender, lambda base: Sink(str(base))], ids=["appender", "wrapper"])
def test_i19_p1_whoever_reads_bytes_finds_their_row(make, tmp_path, monkeypatch):
    """A reader that comes right behind the bytes would else give them the stamp of the piece before."""
    found = []
    write = os.write

    def then_look(fd: int, data: bytes) -> int:
        done = write(fd, data)
        if bytes(data).startswith(b"line"):
            index = Index(tmp_path / "0.out.idx")
            index.grow()
            found.append(index.when((tmp_path / "0.out.log").stat().st_size - 1))
        return done

    monkeypatch.setattr(os, "write", then_look)
    stream = make(tmp_path / "0.out")
    stream.write(b"line 1\n", BEGAN)
    stream.write(b"line 2\n", BEGAN + 7 * NS)
    stream.close()
    assert found == [(BEGAN, BEGAN), (BEGAN + 7 * NS, BEGAN + 7 * NS)]
