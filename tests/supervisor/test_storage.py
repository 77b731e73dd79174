"""A disk that takes nothing: it is said again and again, and no event of that time is lost. A run directory may be deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.backends.local.processes import members
from rankfall.model import StoreError
from rankfall.supervisor import attempt_facts, run_events
from rankfall.supervisor.attempt_facts import StorageWatch
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import Event, EventLog, read_events
from rankfall.supervisor.supervise import supervise
from supervisor.conftest import Bench


def test_i19_p4_a_full_disk_is_said_at_once_every_15_s_and_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, trouble = 100.0, None
    monkeypatch.setattr(attempt_facts, "disk_trouble", lambda _: trouble)
    watch = StorageWatch(tmp_path, clock=lambda: now)
    said = []
    for second in range(40):
        trouble = "the disk is full" if 2 <= second < 35 else None
        now += 1
        said.append((second, watch.problem()))
        assert watch.problem() is None
    assert [one for one in said if one[1]] == [
        (2, "the disk is full: output of ranks is lost until there is free space"),
        (17, "the disk is full for 15 s now: output of ranks is lost until there is free space"),
        (32, "the disk is full for 30 s now: output of ranks is lost until there is free space"),
        (35, "storing continues after 33 s; the output of that time is lost"),
    ]


def test_i19_p4_events_without_room_are_shown_at_once_and_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Event] = []
    log = EventLog(tmp_path, seen.append)
    log.say("gap", "first", at=1)
    path = log._path
    path.rename(tmp_path / "kept")
    path.symlink_to("/dev/full")
    monkeypatch.setattr(run_events.os, "ftruncate", lambda *_: None)
    log.say("gap", "second", at=2, slot=3)
    log.say("gap", "third", at=3)
    path.unlink()
    (tmp_path / "kept").rename(path)
    assert [event.text for event in read_events(tmp_path)[0]] == ["first"]
    log.say("gap", "fourth", at=4)
    assert [(event.text, event.data) for event in seen] == [
        ("first", {}),
        ("second", {"slot": 3, "unwritten": True}),
        ("third", {"unwritten": True}),
        ("fourth", {}),
    ]
    assert [(event.text, event.data) for event in read_events(tmp_path)[0]] == [
        ("first", {}),
        ("second", {"slot": 3}),
        ("third", {}),
        ("fourth", {}),
    ]


def test_a_file_of_events_that_is_large_enough_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "MAX_EVENTS_BYTES", 1)
    seen: list[Event] = []
    log = EventLog(tmp_path, seen.append)
    log.say("gap", "first", at=1)
    log.say("gap", "second", at=2)
    assert [event.text for event in read_events(tmp_path)[0]] == ["first"] or read_events(tmp_path)[0] == []
    assert [event.data for event in seen] == [{}, {}]


@pytest.mark.parametrize("then", ["raise ValueError('after it')", "while True: time.sleep(0.01)"])
def test_a_run_whose_directory_is_deleted_ends_with_its_ranks_or_at_a_cancel(bench: Bench, then: str) -> None:
    code = f"""import pathlib, shutil
{bench.waits_for_event("rank")}
if rank == 1: shutil.rmtree(pathlib.Path(os.environ["RANKFALL_RECORD_DIR"]).parent)
{then}"""
    run, control = bench.run_dir(bench.spec(code, policies={"max_restarts": 3})), Control()
    slots = [run.slot_dir(1, "worker", slot) for slot in (0, 1)]

    def see(event: Event) -> None:
        bench.see(event)
        if "was deleted" in event.text and "while" in then:
            control.cancel("a test")

    with pytest.raises(StoreError, match="was deleted during the run, so no record explains its end") as caught:
        supervise(run, on_event=see, control=control)
    assert "without a supervisor" not in caught.value.message
    assert [members(slot) for slot in slots] == [[], []]
    assert len([text for text in bench.texts("gap") if text.endswith("the run ends with its ranks")]) == 1
    assert not run.path.exists()


def test_a_run_directory_that_is_back_is_used_again(bench: Bench) -> None:
    code = f"""import pathlib
{bench.waits_for_event("rank")}
folder = pathlib.Path(os.environ["RANKFALL_RECORD_DIR"]).parent
if rank == 1: folder.rename(folder.with_name("away"))
{bench.waits_for_event("gap")}
if rank == 1: folder.with_name("away").rename(folder)
while not folder.exists(): time.sleep(0.01)
raise SystemExit(3 * rank)"""
    run = bench.run_dir(bench.spec(code))
    assert (bench.supervise(run).state, bench.texts("gap")[0].endswith("the run ends with its ranks")) == (
        "failed",
        True,
    )
