"""A disk that takes nothing: it is said again and again, and no event of that time is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.supervisor import attempt_facts, run_events
from rankfall.supervisor.attempt_facts import StorageWatch
from rankfall.supervisor.run_events import Event, EventLog, read_events


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
