"""One slot with one rank, told by its own directory: what is read into it, and when the records must be read after all."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rankfall.evidence.attempt import record_sources
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.attempt.record_sources import SingleRankSlot, stands_alone
from rankfall.model import JobSpec
from rankfall.rundir import RunDir

ME = f"{os.getpid()}"
TICKS = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
IDENTITY = "0 0 0 1 1 0"


class Scene:
    """A slot directory written by hand, as wrapper and hook would write it; the rank is this process."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder / "slots" / "attempt-1" / "worker-0"
        (self.dir / "claims").mkdir(parents=True)
        (self.dir / "lock").write_text("1 1 -\n")

    def claim(self, name: str = "o0", *, pid: str = ME, ticks: str = TICKS, more: str = "", age: float = 0.0) -> None:
        path = self.dir / "claims" / name
        path.write_text(f"{pid} {ticks} {ME} {TICKS} {IDENTITY}{more}\n")
        then = time.time() - age
        os.utime(path, (then, then))

    def hook(self, *, pid: str = ME, number: int = 0, more: str = "") -> None:
        self.claim(f"r{ME}-{TICKS}.{number}", pid=pid, more=more)

    def end(self, **info: object) -> None:
        place = {"run": "job-abc123", "attempt": 1, "role": "worker", "slot": 0}
        record = {"id": "f00", "kind": "slot_end", "writer": "wrapper", "at_ns": time.time_ns(), "exit": info} | place
        (self.dir / "end.json").write_text(json.dumps(record))

    def slot(self, *, hook: bool = True) -> SingleRankSlot:
        place: dict[str, object] = {"run": "job-abc123", "attempt": 1, "role": "worker", "slot": 0, "node": "node0"}
        return SingleRankSlot(self.dir, place=place, hook=hook, patience=2.0)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def kinds(slot: SingleRankSlot) -> list[str]:
    return [item.record.kind for item in slot.poll()]


def over(slot: SingleRankSlot) -> list[str]:
    """What is told with the word that the records must be read; nothing is after it."""
    found = kinds(slot)
    assert slot.over
    assert kinds(slot) == []
    return found


def test_start_and_good_end_come_once_each(scene: Scene) -> None:
    slot = scene.slot()
    assert kinds(slot) == ["slot_start"]
    scene.claim()
    assert kinds(slot) == []
    scene.hook(pid="77")
    (start,) = slot.poll()
    assert (start.record.kind, start.record.rank, start.record.pid, start.record.writer) == ("start", 0, 77, "hook")
    assert start.name == "../slots/attempt-1/worker-0/claims/o0"
    assert kinds(slot) == []
    scene.end(code=0)
    rank, end = slot.poll()
    assert (rank.record.kind, rank.record.pid, end.name) == ("end", 77, "slot_end-a1-worker-0-f00.json")
    assert rank.record.exit is not None
    assert rank.record.exit.code == 0
    assert slot.succeeded
    assert slot.poll() == []


def test_a_slot_that_ended_before_anybody_looked_is_told_whole(scene: Scene) -> None:
    scene.claim()
    scene.hook()
    scene.end(code=0)
    assert kinds(scene.slot()) == ["slot_start", "start", "end", "slot_end"]


@pytest.mark.parametrize("info", [{"code": 1}, {"signal": 9}, {"how": "gone"}])
def test_a_bad_end_is_read_from_the_records(scene: Scene, info: dict[str, object]) -> None:
    scene.claim()
    scene.hook()
    scene.end(**info)
    assert over(scene.slot()) == ["slot_start", "start"]


def test_an_end_without_a_rank_is_read_from_the_records(scene: Scene) -> None:
    scene.end(code=0)
    assert over(scene.slot()) == ["slot_start"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"id": 3}', ""])
def test_a_damaged_end_is_read_from_the_records(scene: Scene, text: str) -> None:
    scene.claim()
    (scene.dir / "end.json").write_text(text)
    assert over(scene.slot()) == ["slot_start"]


def test_a_rank_without_hook_is_told_when_no_hook_can_come_any_more(scene: Scene) -> None:
    scene.claim()
    assert kinds(scene.slot(hook=False)) == ["slot_start", "start"]
    slot = scene.slot()
    assert kinds(slot) == ["slot_start"]
    scene.claim(age=60)
    (start,) = slot.poll()
    assert start.record.writer == "wrapper"
    scene.hook()
    (start,) = slot.poll()
    assert start.record.writer == "hook"


def test_a_second_process_is_read_from_the_records(scene: Scene) -> None:
    scene.claim()
    scene.hook()
    slot = scene.slot()
    assert kinds(slot) == ["slot_start", "start"]
    scene.hook(number=1)
    assert over(slot) == []
    (scene.dir / "claims" / f"r{ME}-{TICKS}.1").unlink()
    scene.claim("o1")
    assert over(scene.slot()) == ["slot_start"]


def test_a_rank_that_the_wrapper_found_may_get_its_hook_later_so_its_records_are_read(scene: Scene) -> None:
    scene.claim(more=" 1")
    assert over(scene.slot()) == ["slot_start"]
    assert kinds(scene.slot(hook=False)) == ["slot_start", "start"]


def test_half_a_claim_is_waited_for(scene: Scene) -> None:
    (scene.dir / "claims" / "o0").write_text("12 34")
    assert kinds(scene.slot()) == ["slot_start"]
    (scene.dir / "claims" / "o0").write_text("")
    assert kinds(scene.slot()) == ["slot_start"]


def test_a_rank_that_is_gone_for_long_while_its_slot_goes_on_is_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.claim(ticks="1")
    scene.hook()
    slot = scene.slot()
    assert kinds(slot) == ["slot_start", "start"]
    later = time.monotonic() + 60
    monkeypatch.setattr(record_sources.time, "monotonic", lambda: later)
    assert over(slot) == []


def test_only_one_rank_under_a_launcher_that_is_known_stands_alone() -> None:
    one = JobSpec(command=("train.py",))
    assert stands_alone(one, "plain")
    assert stands_alone(one, "torchrun")
    assert not stands_alone(one, "exec")
    assert not stands_alone(one, None)
    for fields in ({"nnodes": 2}, {"nproc_per_node": 2}, {"nnodes_max": 2}, {"strategy": "causal"}):
        assert not stands_alone(JobSpec(command=("train.py",), **fields), "plain")  # type: ignore[arg-type]


def test_an_end_that_no_record_tells_is_taken_from_the_slots_own_directory(tmp_path: Path) -> None:
    spec = JobSpec(command=("train.py",), nnodes=2)
    run = RunDir.create(spec, home=tmp_path)
    run.records_dir.mkdir(exist_ok=True)
    for slot in range(2):
        folder = run.slot_dir(1, "worker", slot)
        folder.mkdir(parents=True)
        (folder / "lock").touch()
        place = {"run": run.id, "attempt": 1, "role": "worker", "slot": slot}
        start = {"id": f"s{slot}", "kind": "slot_start", "at_ns": 1} | place
        (run.records_dir / f"slot_start-{slot}.json").write_text(json.dumps(start))
        end = {"id": f"e{slot}", "kind": "slot_end", "exit": {"code": 3}} | place
        # The second one's is of another attempt.
        (folder / "end.json").write_text(json.dumps(end | {"attempt": 1 + slot}))
    observer = AttemptObserver(run, spec=spec, attempt=1)
    observer.poll(time.time_ns())
    assert [(facts.state, facts.exit_code) for facts in observer.slots()] == [("ended", 3), ("lost", None)]


def test_errors_s20_the_rank_is_known_of_a_job_that_fell_and_took_its_records_away_before_anybody_looked(
    tmp_path: Path,
) -> None:
    spec = JobSpec(command=("train.py",))
    run = RunDir.create(spec, home=tmp_path)
    scene = Scene(run.path)
    scene.claim()
    scene.hook()
    scene.end(code=1)
    shutil.rmtree(run.records_dir, ignore_errors=True)
    run.records_dir.touch()
    observer = AttemptObserver(run, spec=spec, attempt=1, launcher="plain", spare_listing=True)
    observer.poll(time.time_ns())
    assert [(facts.rank, facts.slot) for facts in observer.ranks()] == [(0, 0)]
