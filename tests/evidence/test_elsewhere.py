"""An attempt whose slots are pods: signals after our own stop, clocks of nodes, signs of life, streams named for their rank."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from rankfall.collect.pods.instance_folders import write_progress
from rankfall.evidence.attempt.activity import BUSY_LIMIT_S
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir, StreamAppender
from rankfall.rundir.cluster.clock_bounds import clock_path
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.marks import Stop, mark_stop
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.salvage import streams as salvaged
from rankfall.rundir.streams.files import find_streams

NS = 1_000_000_000
NOW = time.time_ns()


class Scene:
    """The run directory as a feed writes it."""

    def __init__(self, home: Path, *, backend: str = "job") -> None:
        spec = {"command": ["train.py"], "backend": backend, "nnodes": 2, "nproc_per_node": 2}
        if backend != "local":
            spec["kubernetes"] = {"image": "x"}
        self.spec = msgspec.convert(spec, JobSpec)
        self.run = RunDir.create(self.spec, home=home)
        self.run.records_dir.mkdir(parents=True, exist_ok=True)
        self.observer = AttemptObserver(self.run, spec=self.spec, attempt=1)

    def record(self, kind: str, slot: int, at: float, *, written: float | None = None, **fields: object) -> None:
        data = {"id": uuid.uuid4().hex, "kind": kind, "run": self.run.id, "attempt": 1, "role": "worker", "slot": slot}
        path = self.run.records_dir / f"{kind}-a1-worker-{slot}-{data['id']}.json"
        path.write_text(json.dumps(data | {"at_ns": when(at), "writer": "wrapper"} | fields))
        stamp = when(at if written is None else written)
        os.utime(path, ns=(stamp, stamp))

    def signalled(self, slot: int, at: float) -> None:
        self.record("kill", slot, at, exit={"how": "received", "signal": 15})

    def start(self, slot: int, rank: int, ordinal: int, **fields: object) -> None:
        self.record("start", slot, -100, rank=rank, pid=100 + rank, ordinal=ordinal, **fields)

    def progress(self, slot: int, ordinal: int, at: float, **fields: object) -> None:
        folder = self.run.slot_dir(1, "worker", slot) / "progress"
        data = {"id": "x" * 8, "kind": "progress", "ordinal": ordinal, "at_ns": when(at)} | fields
        write_progress(folder, msgspec.convert(data, Record))
        os.utime(folder / f"{ordinal}.json", ns=(when(at), when(at)))

    def clocks(self, **delays: float) -> None:
        path = clock_path(self.run.path, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode({name.removeprefix("s"): round(d * NS) for name, d in delays.items()}))

    def lines(self, slot: int, name: str, text: bytes, at: float) -> None:
        folder = self.run.stream_dir(1, "worker", slot, 0)
        folder.mkdir(parents=True, exist_ok=True)
        file = StreamAppender(folder / name)
        file.write(text, when(at))
        file.close()

    def signals(self, now: float = 0.0) -> list[int | None]:
        self.observer.poll(when(now))
        return sorted(e.slot or 0 for e in self.observer.case().evidence if e.slug == "external_signal")


def when(seconds: float) -> int:
    return NOW + round(seconds * NS)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


# -- signals


def test_a_signal_before_our_stop_is_somebody_elses_and_one_after_it_is_none(scene):
    scene.signalled(0, -5)
    scene.signalled(1, 2)
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="another part failed"))
    assert scene.signals() == [0]


def test_without_a_stop_every_signal_is_somebody_elses(scene):
    scene.signalled(0, -5)
    scene.signalled(1, 2)
    assert scene.signals() == [0, 1]


def test_a_signal_at_the_very_moment_of_our_stop_is_ours(scene):
    scene.signalled(0, 0)
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="done"))
    assert scene.signals() == []


def test_launch_s33_a_clock_that_is_behind_makes_our_signal_nobody_elses(scene):
    scene.signalled(0, -88)
    scene.signalled(1, -88)
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="done"))
    scene.clocks(s0=90.0, s1=0.02)
    assert scene.signals() == [1]


def test_evidence_of_a_signal_is_taken_back_when_it_turns_out_to_be_ours(scene):
    scene.signalled(0, -88)
    assert scene.signals() == [0]
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="done"))
    assert scene.signals() == [0]
    scene.clocks(s0=90.0)
    assert scene.signals() == []


def test_on_this_machine_the_mark_says_nothing(tmp_path):
    scene = Scene(tmp_path, backend="local")
    scene.signalled(0, 2)
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="done"))
    assert scene.signals() == [0]


def test_a_container_that_our_stop_ended_is_not_somebody_elses(scene):
    end = ContainerFact(state="terminated", exit_code=143, reason="Error")
    writer = JournalWriter(journal_path(scene.run.path, 1))
    mark_stop(scene.run.path, 1, Stop(at_ns=when(0), reason="done"))
    for slot in range(2):
        seen = when(3 if slot else -3)
        writer.add(
            PodFact(seen_ns=seen, name=f"p{slot}", uid=f"u{slot}", slot=slot, phase="Failed", main=end, log="complete")
        )
    writer.close()
    scene.observer.poll(when(5))
    assert [s.killed_by for s in scene.observer.slots()] == ["foreign", "wrapper"]


# -- clocks


def test_how_late_a_record_came_says_nothing_of_its_nodes_clock(scene):
    scene.record("slot_start", 0, -100, written=-40)
    scene.observer.poll(when(0))
    assert scene.observer.case().missing == ()


def test_clocks_are_read_when_they_change_not_only_with_a_pod(scene):
    scene.record("slot_start", 0, -100)
    scene.observer.poll(when(0))
    scene.clocks(s0=-90.0)
    scene.observer.poll(when(0))
    assert any("the clock of slot 0 is 90 s ahead" in text for text in scene.observer.case().missing)


@pytest.mark.parametrize("off", [90.0, -90.0, 3600.0])
def test_output_is_life_at_the_time_it_came_by_our_clock(scene, off):
    scene.clocks(s0=-off)
    scene.record("slot_start", 0, -500 + off)
    scene.observer.poll(when(-400))
    scene.lines(0, "r0.out", b"hello\n", -20 + off)
    scene.observer.poll(when(0))
    assert scene.observer.last_activity == when(-20)


def test_a_stamp_of_the_future_is_no_life_to_come(scene):
    scene.record("slot_start", 0, 5000)
    scene.lines(0, "r0.out", b"hello\n", 5000)
    scene.observer.poll(when(0))
    assert scene.observer.last_activity == when(0)


# -- life


@pytest.fixture
def ranks(scene):
    for rank in range(4):
        scene.start(rank // 2, rank, rank % 2)
    return scene


def beat(scene: Scene, at: float, cpu: float, *, step: int = 1, ranks: int = 4) -> None:
    for rank in range(ranks):
        scene.progress(rank // 2, rank % 2, at, step=step, cpu_s=cpu, phase="step")


def test_while_all_ranks_work_that_is_life(ranks):
    for number in range(4):
        beat(ranks, -40 + 10 * number, 9.0 * number)
        ranks.observer.poll(when(-39 + 10 * number))
    assert ranks.observer.last_activity == when(-9)


def test_one_rank_that_stands_still_makes_the_job_stand_still(ranks):
    for number in range(4):
        at = -40 + 10 * number
        beat(ranks, at, 9.0 * number, ranks=3)
        ranks.progress(1, 1, at, step=1, cpu_s=5.0, phase="step")
        ranks.observer.poll(when(at + 1))
    # The step that was new in the first word.
    assert ranks.observer.last_activity == when(-40)


def test_a_word_that_is_old_says_nothing_of_now(ranks):
    beat(ranks, -100, 0.0)
    ranks.observer.poll(when(-99))
    beat(ranks, -90, 9.0)
    ranks.observer.poll(when(-89))
    for now in (-70, -30, 0):
        ranks.observer.poll(when(now))
    assert ranks.observer.last_activity == when(-70)


def test_words_without_a_new_step_are_no_life(ranks):
    for number in range(4):
        beat(ranks, -40 + 10 * number, 1.0)
        ranks.observer.poll(when(-39 + 10 * number))
    assert ranks.observer.last_activity == when(-40)


def test_a_new_step_is_life_and_known_of_its_rank(ranks):
    for number in range(4):
        beat(ranks, -40 + 10 * number, 1.0, step=number)
        ranks.observer.poll(when(-39 + 10 * number))
    assert ranks.observer.last_activity == when(-10)
    assert {(r.rank, r.step) for r in ranks.observer.ranks()} == {(n, 3) for n in range(4)}


def test_work_without_a_word_counts_for_a_bounded_time(ranks):
    last = 0.0
    for number in range(int(BUSY_LIMIT_S) // 20 + 20):
        last = 20.0 * number
        beat(ranks, last, 19.0 * number)
        ranks.observer.poll(when(last))
    assert last > BUSY_LIMIT_S
    assert when(BUSY_LIMIT_S - 25) < ranks.observer.last_activity <= when(BUSY_LIMIT_S)


# -- streams named for their rank


def test_streams_named_for_a_rank_are_that_ranks(scene):
    scene.record("slot_start", 1, -100)
    scene.start(1, 2, 5)
    scene.lines(1, "r2.out", b"Traceback (most recent call last):\nValueError: bad\n", -10)
    scene.lines(1, "r3.out", b"no record told of me\n", -10)
    scene.lines(1, "slot.out", b"of nobody\n", -10)
    scene.observer.poll(when(0))
    rows = {row.local: row for row in scene.observer.streams()}
    assert {name: (row.rank, row.slot, row.instance, row.proof) for name, row in rows.items()} == {
        "r2": (2, 1, 0, "start record of pid 102"),
        "r3": (3, 1, 0, "prefix"),
        "slot": (None, 1, 0, ""),
    }
    (sheet,) = scene.observer.ranks()
    assert sheet.last_line_at == when(-10)


def test_what_a_stream_named_for_a_rank_says_is_said_by_that_rank(scene):
    scene.lines(0, "r1.out", b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", -10)
    scene.record("slot_end", 0, -5, exit={"code": 1})
    scene.observer.poll(when(0))
    found = [e for e in scene.observer.case().evidence if e.slug == "gpu_oom"]
    assert [(e.rank, e.slot, e.at) for e in found] == [(1, 0, when(-10))]


def test_streams_named_for_a_rank_are_found_and_salvaged(scene):
    scene.start(0, 0, 7)
    for name in ("r0.out", "r12.out", "r-1.out", "rx.out", "slot.out", "7.out"):
        scene.lines(0, name, b"x\n", -10)
    found = find_streams(scene.run.logs_dir)
    assert [(name.local, name.rank, name.of_a_rank) for name in found] == [
        ("slot", None, False),
        ("r0", 0, True),
        ("7", None, True),
        ("r12", 12, True),
    ]
    rows = {row.local: (row.rank, row.proof) for row in salvaged(scene.run, 1)}
    assert rows == {"r0": (0, "prefix"), "r12": (12, "prefix"), "7": (0, "record")}


def test_gaps_are_named_and_not_without_end(scene):
    for number in range(40):
        scene.record("gap", 0, -number, notes=[f"gap {number}"])
    scene.observer.poll(when(0))
    assert 0 < len([text for text in scene.observer.case().missing if "gap" in text]) <= 16
