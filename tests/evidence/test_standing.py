"""Folders that are listed again only when they have changed."""

from __future__ import annotations

import os

import pytest

from rankfall.evidence.attempt.activity import Step, StepFolders, read_steps
from rankfall.rundir.streams import files
from rankfall.rundir.streams.files import Standing


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [100.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    return now


def test_a_folder_stands_once_it_was_listed_long_after_its_last_change(tmp_path, clock):
    one, folder = Standing(), str(tmp_path)
    assert not one.stands(folder)
    clock[0] += 2.9
    assert not one.stands(folder), "a second change may have come in the same tick as the one that was seen"
    clock[0] += 0.2
    assert not one.stands(folder), "nobody has listed it since its time of change can be believed"
    assert one.stands(folder)
    clock[0] += 1000.0
    assert one.stands(folder)


@pytest.mark.parametrize("change", ["make", "remove", "rename"])
def test_a_folder_that_changed_does_not_stand(tmp_path, clock, change):
    (tmp_path / "a").touch()
    one, folder = Standing(), str(tmp_path)
    for _ in range(3):
        one.stands(folder)
        clock[0] += 5.0
    assert one.stands(folder)
    if change == "make":
        (tmp_path / "b").touch()
    elif change == "remove":
        (tmp_path / "a").unlink()
    else:
        (tmp_path / "a").rename(tmp_path / "c")
    # As the clock of a file system does, which may tick seldom.
    os.utime(tmp_path, ns=(0, tmp_path.stat().st_mtime_ns + 1))
    assert not one.stands(folder)


def test_what_is_not_there_stands_until_it_comes(tmp_path, clock):
    one, folder = Standing(), str(tmp_path / "late")
    for _ in range(3):
        one.stands(folder)
        clock[0] += 5.0
    assert one.stands(folder)
    (tmp_path / "late").mkdir()
    assert not one.stands(folder)


def test_steps_of_a_slot_elsewhere_are_read_again_when_one_was_replaced(tmp_path, clock, monkeypatch):
    progress = tmp_path / "progress"
    progress.mkdir()
    listed = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: listed.append(folder) or real(folder))
    folders = StepFolders()

    def say(step: int) -> None:
        new = tmp_path / "new"
        new.write_text(f'{{"step": {step}}}')
        new.rename(progress / "0.json")
        os.utime(progress, ns=(0, step))

    def known() -> list[Step]:
        found = folders.read(tmp_path)
        assert found == read_steps(tmp_path)
        listed.pop()
        return found

    assert known() == []
    for step in (1, 2):
        say(step)
        for _ in range(3):
            assert [one.step for one in known()] == [step]
            clock[0] += 5.0
        count = len(listed)
        assert [one.step for one in known()] == [step]
        assert len(listed) == count, "nothing had changed"
