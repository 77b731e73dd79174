"""Reading of streams: bounded in bytes and time, in turns; what fails or takes too long is named and costs nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankfall.evidence.attempt import slot_streams
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.readers import stream_reader, tracebacks
from rankfall.evidence.readers.stream_reader import StreamTail
from rankfall.model import JobSpec
from rankfall.rundir import RunDir, reader_guard, records
from rankfall.rundir.reader_guard import LIVE, Budget, ReaderGuard, ReadingTime
from rankfall.rundir.records import RecordFolder
from rankfall.verdict.signatures.catalogue import default_catalogue
from rankfall.verdict.signatures.matcher import Matcher

ERROR = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
PLAIN = b"step 1 loss 2.5\n"
POISON = b"POISON\n"


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that fails on one line."""
    real = tracebacks.TracebackReader.push

    def fails(self: tracebacks.TracebackReader, data: bytes, **named: Any) -> Any:
        if POISON.rstrip() in data:
            raise RuntimeError("poison")
        return real(self, data, **named)

    monkeypatch.setattr(tracebacks.TracebackReader, "push", fails)


def tail_of(tmp_path: Path, data: bytes, *, guard: ReaderGuard | None = None) -> StreamTail:
    path = tmp_path / "0.out.log"
    path.write_bytes(data)
    return StreamTail(path, default_catalogue(), guard=guard)


def places(tail: StreamTail, **named: Any) -> list[tuple[int, int]]:
    """Byte and line of all findings."""
    found, _, _ = tail.poll(**named)
    return [(item.byte, item.line) for item in found]


@pytest.mark.usefixtures("poisoned")
def test_i18_a_reader_that_fails_loses_only_the_lines_around(tmp_path: Path) -> None:
    before, after = PLAIN * 5000 + ERROR, PLAIN * 5000 + ERROR
    guard = ReaderGuard(tmp_path)
    tail = tail_of(tmp_path, before + POISON + after, guard=guard)
    lines = before.count(b"\n")
    assert places(tail, final=True) == [
        (len(before) - len(ERROR), lines),
        (len(before + POISON + after) - len(ERROR), 2 * lines + 1),
    ]
    (problem,) = guard.problems
    assert "the reader of this stream failed" in problem
    (kept,) = (tmp_path / "problems").glob("*.bytes")
    assert POISON in kept.read_bytes()
    assert len(kept.read_bytes()) < reader_guard.MAX_COPY


@pytest.mark.usefixtures("poisoned")
def test_i18_a_reader_that_fails_on_what_waited_goes_on_behind_it(tmp_path: Path) -> None:
    tail = tail_of(tmp_path, PLAIN + POISON.rstrip())
    assert places(tail) == []
    with tail.path.open("ab") as file:
        file.write(b"\n" + ERROR)
    assert places(tail, final=True) == [(len(PLAIN + POISON), 3)]


@pytest.mark.usefixtures("poisoned")
def test_i18_a_stream_that_ends_in_what_a_reader_fails_on_is_finished(tmp_path: Path) -> None:
    guard = ReaderGuard()
    tail = tail_of(tmp_path, ERROR + POISON.rstrip(), guard=guard)
    assert places(tail) == [(0, 1)]
    assert places(tail, final=True) == []
    assert not tail.behind
    assert len(guard.problems) == 1


def test_i18_a_reader_over_its_budget_is_set_aside_and_its_end_is_read(tmp_path: Path) -> None:
    middle = ERROR * (reader_guard.TAIL // len(ERROR) * 3)
    guard = ReaderGuard(tmp_path)
    tail = tail_of(tmp_path, middle + b"KeyError: 'x'\n" + ERROR, guard=guard)
    tail.time.used = 1e9
    found: list[tuple[int, int]] = []
    while True:
        found += places(tail, final=True)
        if not tail.behind:
            break
    size = tail.path.stat().st_size
    assert found[-1] == (size - len(ERROR), middle.count(b"\n") + 2)
    assert found[0][0] >= size - reader_guard.TAIL
    # No part of a line counts as a line.
    assert found[0][0] % len(ERROR) == 0
    (problem,) = guard.problems
    assert f"0.out.log: bytes 0 to {size - reader_guard.TAIL} were stored but not classified" in problem
    (entry,) = (tmp_path / "problems").iterdir()
    saved = json.loads(entry.read_bytes())
    assert (saved["from_byte"], saved["to_byte"]) == (0, size - reader_guard.TAIL)


def test_i18_a_reader_comes_back_when_it_has_time_again(tmp_path: Path) -> None:
    block = PLAIN * (2 * reader_guard.TAIL // len(PLAIN))
    guard = ReaderGuard(tmp_path)
    tail = tail_of(tmp_path, block, guard=guard)
    tail.time.used = 1e9
    assert places(tail) == []
    tail.time.used = 0.0
    with tail.path.open("ab") as file:
        file.write(ERROR)
    assert places(tail) == [(len(block), block.count(b"\n") + 1)]
    tail.time.used = 1e9
    with tail.path.open("ab") as file:
        file.write(block)
    assert places(tail) == []
    assert len(guard.problems) == 1
    assert "in 2 parts" in guard.problems[0]


def test_i18_what_is_passed_over_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "MAX_PASSED", 1 << 20)
    tail = tail_of(tmp_path, b"x" * (4 << 20))
    steps = 0
    while True:
        _, _, count = tail.poll(final=True, hurried=True)
        assert count <= 1 << 20
        steps += 1
        if not tail.behind:
            break
    assert steps == 5


def test_i18_time_of_a_reader_beyond_that_of_ordinary_text() -> None:
    cpu, clock = Clock(), Clock()
    time_of = ReadingTime(cpu=cpu, clock=clock)
    with time_of.measured(LIVE.rate):
        cpu.now += 1.0 + 0.9 * LIVE.burst_s
    assert not time_of.over
    with time_of.measured(3 * LIVE.rate):
        cpu.now += 3.0
    assert not time_of.over
    with time_of.measured(0):
        cpu.now += 1.0
    assert time_of.over
    # Ordinary text is no credit for costly text.
    with time_of.measured(1000 * LIVE.rate):
        cpu.now += 1.0
    assert time_of.over
    clock.now += 1.0 / LIVE.share
    assert not time_of.over


def test_i18_costly_text_is_read_in_small_pieces_and_ordinary_text_in_large_ones() -> None:
    cpu = Clock()
    time_of = ReadingTime(cpu=cpu)

    def pieces(seconds_per_byte: float) -> list[int]:
        sizes = []
        for _ in range(8):
            sizes.append(time_of.piece)
            with time_of.measured(time_of.piece):
                cpu.now += time_of.piece * seconds_per_byte
        return sizes

    few, most = reader_guard.MIN_PIECE, reader_guard.MAX_PIECE
    up = [few * 2**each for each in range(8)]
    assert pieces(1 / LIVE.rate) == [min(each, most) for each in up]
    assert pieces(1 / (1 << 20)) == [max(most // 2**each, few) for each in range(8)]


def test_i18_compiling_the_signatures_is_no_time_of_the_first_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    compiles = Matcher.prepare

    def slow(self: Matcher) -> None:
        if not self._ready:
            clock.now += 10
        compiles(self)

    monkeypatch.setattr(Matcher, "prepare", slow)
    path = tmp_path / "0.out.log"
    path.write_bytes(ERROR + PLAIN * 40_000)
    tail = StreamTail(path, default_catalogue().extended(()))
    tail.time = ReadingTime(LIVE, cpu=clock)
    assert places(tail, final=True) == [(0, 1)]
    assert clock.now == 110.0
    assert tail.time.used == 0


@pytest.mark.parametrize("explained", [False, True], ids=["supervised", "explained"])
def test_i18_an_explanation_reads_whole_what_a_supervisor_sets_aside(
    *, explained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def dear(self: ReadingTime, size: int) -> Iterator[None]:
        yield
        self.used += 0.05

    monkeypatch.setattr(ReadingTime, "measured", dear)
    attempt = Attempt(tmp_path, ranks=1)
    attempt.write("0.out.log", PLAIN * (8 * reader_guard.TAIL // len(PLAIN)))
    if explained:
        attempt.observer.take_time()
    for _ in attempt.polls():
        pass
    assert any("not classified" in text for text in attempt.observer.case().missing) is not explained


def test_i18_a_budget_ends_by_bytes_by_time_and_by_a_request() -> None:
    clock, asked = Clock(), [False]
    made = [Budget(5.0, 100, clock=clock, interrupted=lambda: asked[0]) for _ in range(3)]
    made[0].take(99)
    assert not any(one.spent for one in made)
    made[0].take(1)
    assert [one.spent for one in made] == [True, False, False]
    clock.now += 5.0
    assert made[1].spent
    late = Budget(5.0, clock=clock, interrupted=lambda: asked[0])
    late.take(1 << 40)
    assert not late.spent
    asked[0] = True
    assert late.spent


class Attempt:
    """A run directory of one slot with streams, as the wrapper would write it."""

    def __init__(self, home: Path, *, ranks: int = 4) -> None:
        self.run = RunDir.create(JobSpec(command=("train.py",), nnodes=1, nproc_per_node=ranks), home=home)
        self.run.records_dir.mkdir(parents=True, exist_ok=True)
        self.folder = self.run.stream_dir(1, "worker", 0, 0)
        self.folder.mkdir(parents=True)
        self.observer = AttemptObserver(self.run, spec=self.run.spec, attempt=1)

    def write(self, name: str, data: bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(data)

    def record(self, name: str, data: bytes) -> None:
        (self.run.records_dir / name).write_bytes(data)

    def polls(self) -> Iterator[tuple[int, set[str]]]:
        """Bytes of each poll and the streams that its evidence is of, until there is no more."""
        while True:
            delta = self.observer.poll(time.time_ns())
            yield delta.bytes, {piece.where.split("/")[-1].split(":")[0] for piece in delta.evidence}
            if not delta.bytes and not delta.behind:
                return


def test_i18_one_poll_reads_a_bounded_part_of_all_streams_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = reader_guard.MIN_PIECE
    monkeypatch.setattr(reader_guard, "MAX_PIECE", chunk)
    monkeypatch.setattr("rankfall.evidence.attempt.observer.POLL_BYTES", 2 * chunk)
    # On a busy machine a poll would end by its time, not by its bytes.
    monkeypatch.setattr("rankfall.evidence.attempt.observer.POLL_S", 600.0)
    attempt = Attempt(tmp_path)
    for number in range(3):
        attempt.write(f"{number}.out.log", PLAIN * (4 * chunk // len(PLAIN)))
    attempt.write("3.out.log", ERROR)
    seen = list(attempt.polls())
    assert max(count for count, _ in seen) < 3 * chunk
    assert sum(count for count, _ in seen) == 3 * 4 * chunk + len(ERROR)
    # The fourth stream had its turn at the second poll, long before the others were read to their ends.
    assert [number for number, (_, where) in enumerate(seen) if where] == [1]


def test_i18_at_the_end_reading_has_a_bound_and_names_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(tmp_path)
    monkeypatch.setattr(slot_streams, "END_S", -1000.0)
    monkeypatch.setattr(slot_streams, "TAILS_S", 2000.0)
    attempt.observer.poll(time.time_ns())
    attempt.write("0.out.log", PLAIN * (reader_guard.TAIL // len(PLAIN)) * 8 + ERROR)
    attempt.observer.shorten_grace()
    seen = list(attempt.polls())
    assert any(where for _, where in seen)
    case = attempt.observer.case()
    assert any("were stored but not classified" in text for text in case.missing)


def test_i18_at_the_end_even_the_last_bytes_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.write("0.out.log", ERROR)
    monkeypatch.setattr(slot_streams, "END_S", -1000.0)
    attempt.observer.shorten_grace()
    assert not any(where for _, where in attempt.polls())
    assert any(f"bytes 0 to {len(ERROR)} were stored" in text for text in attempt.observer.case().missing)
    assert len(attempt.observer.take_new_problems()) == 1


def test_i18_no_reading_keeps_a_request_waiting(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write("0.out.log", ERROR)
    attempt.observer.interrupt_by(lambda: True)
    delta = attempt.observer.poll(time.time_ns())
    assert (delta.bytes, delta.behind) == (0, True)
    attempt.observer.interrupt_by(lambda: False)
    assert any(where for _, where in attempt.polls())


def test_i18_each_part_of_an_attempt_may_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.write("0.out.log", ERROR)

    def fails(*_: object, **__: object) -> Any:
        raise RecursionError("deep")

    for target in (
        "rankfall.evidence.attempt.activity.Life.look",
        "rankfall.evidence.attempt.observer.AttemptObserver._poll_slots",
        "rankfall.evidence.attempt.evidence_set.Signals.weigh",
        "rankfall.evidence.attempt.evidence_set.dump_evidence",
        "rankfall.evidence.attempt.evidence_set.single_file_evidence",
        "rankfall.evidence.readers.flyte_errors.FlyteErrorFiles.evidence",
    ):
        monkeypatch.setattr(target, fails)
    assert any(where for _, where in attempt.polls())
    case = attempt.observer.case()
    assert sum("RecursionError: deep" in text for text in case.missing) == 6


def record(number: int, **fields: object) -> bytes:
    named = {"schema": "rankfall.record/1", "id": f"r{number}", "kind": "stacks", "slot": 0, "pid": number}
    return json.dumps(named | fields).encode()


def test_i18_a_record_on_which_its_reader_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.record("start-a.json", record(1, kind="start", rank=0, pid=7))
    attempt.record("start-b.json", record(2, kind="start", rank=1, pid=8))
    real = records.RecordFolder._read

    def fails(self: RecordFolder, name: str) -> Any:
        if name == "start-a.json":
            raise RecursionError("deep")
        return real(self, name)

    monkeypatch.setattr(records.RecordFolder, "_read", fails)
    attempt.observer.poll(time.time_ns())
    assert [facts.rank for facts in attempt.observer.ranks()] == [1]
    assert any("start-a.json: the reader of this record failed" in text for text in attempt.observer.case().missing)
    (kept,) = (attempt.run.path / "problems").glob("*.bytes")
    assert kept.read_bytes() == record(1, kind="start", rank=0, pid=7)


def test_i18_a_record_whose_facts_cannot_be_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(tmp_path)
    attempt.record("start-a.json", record(1, kind="start", rank=0, pid=7))

    def fails(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("rankfall.evidence.facts.Facts.add", fails)
    attempt.observer.poll(time.time_ns())
    assert any("records/start-a.json: the reader" in text for text in attempt.observer.case().missing)


def test_i18_records_are_bounded_in_number_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 10)
    monkeypatch.setattr(records, "RECORDS_A_RANK", 0)
    monkeypatch.setattr(records, "MAX_LARGE_BYTES", 25_000)
    monkeypatch.setattr(records, "LARGE_BYTES_A_RANK", 0)
    for number in range(5):
        (tmp_path / f"stacks-{number}.json").write_bytes(record(number, stacks="x" * 10_000))
    for number in range(5, 15):
        (tmp_path / f"x-{number}.json").write_bytes(record(number))
    folder = RecordFolder(tmp_path, run="r", attempt=1)
    assert len(folder.poll()) == 7
    assert len(folder.problems) == 4
    monkeypatch.setattr(records, "_POLL_S", 0.0)
    slow = RecordFolder(tmp_path, run="r", attempt=1)
    assert slow.poll() == []
    assert slow.behind


@pytest.mark.parametrize(
    "fields", [{"pid": 10**30}, {"rank": 1 << 63}, {"at_ns": -(10**40)}, {"exit": {"code": 1 << 70}}]
)
def test_i18_a_record_with_a_number_that_nothing_has_is_not_used(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "start-a.json").write_bytes(record(1, kind="start", **fields))
    folder = RecordFolder(tmp_path, run="r", attempt=1)
    assert folder.poll() == []
    assert len(folder.problems) == 1


def test_i18_a_stream_whose_name_is_no_utf8_is_named_and_not_read(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.write(os.fsdecode(b"\xff.out.log"), ERROR)
    attempt.write("0.out.log", PLAIN)
    attempt.observer.poll(time.time_ns())
    assert [row.local for row in attempt.observer.streams()] == ["0"]
    assert any("its name is not UTF-8" in text for text in attempt.observer.case().missing)


def test_i18_ordinary_text_is_read_whole_also_when_it_comes_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ordinary text costs nothing beyond its rate; a machine that stands still for a moment would count as cost.
    still = partial(reader_guard.ReadingTime, cpu=lambda: 0.0)
    monkeypatch.setattr("rankfall.evidence.readers.stream_reader.ReadingTime", still)
    attempt = Attempt(tmp_path)
    attempt.write("0.out.log", b"".join(b"step %07d loss 2.3451 lr 1e-4 gpu 71%%\n" % n for n in range(20_000)) * 20)
    attempt.observer.shorten_grace()
    list(attempt.polls())
    assert attempt.observer.case().missing == ()
