"""Records that come as lines: only those of this slot, whole, once; and where instances of containers are kept."""

from __future__ import annotations

import base64
import errno
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.pods import instance_folders
from rankfall.collect.pods.instance_folders import MAX_LINE, Instances, RecordIntake, write_progress
from rankfall.collect.pods.log_gaps import LogOf, gap_record
from rankfall.evidence.attempt.activity import read_steps
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir
from rankfall.rundir.records import RecordFolder
from support.feeding import CHANNEL, record_line

AT = 1_790_000_000_123_456_789


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.progress: list[Record] = []
        self.intake = RecordIntake(
            folder,
            token=CHANNEL,
            run="job-1",
            attempt=1,
            role="worker",
            slot=0,
            uid="uid-0",
            on_progress=self.progress.append,
        )

    def take(self, line: bytes, at: int | None = AT) -> bool:
        return self.intake.take(line, at)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path / "records")


def test_a_record_becomes_a_file_of_the_time_of_its_line(scene):
    assert scene.take(record_line("job-1", 0, 5, rank=3, pid=7))
    assert scene.names == ["start-a1-worker-0-00000000-00000005.json"]
    (found,) = RecordFolder(scene.folder, run="job-1", attempt=1).poll()
    assert (found.record.rank, found.record.pid, found.record.slot, found.mtime) == (3, 7, 0, AT)
    assert scene.intake.refused == 0


def test_what_a_record_leaves_out_is_told_by_whose_log_it_is(scene):
    text = json.dumps({"id": "abcdefgh", "kind": "start"}).encode()
    assert scene.take(b"\x1erankfall/1 t0k3n " + base64.urlsafe_b64encode(text))
    (found,) = RecordFolder(scene.folder, run="job-1", attempt=1).poll()
    own = (found.record.run, found.record.attempt, found.record.role, found.record.slot)
    assert own == ("job-1", 1, "worker", 0)


@pytest.mark.parametrize(
    "line",
    [
        record_line("job-2", 0, 5),
        record_line("job-1", 1, 5),
        record_line("job-1", 0, 5, attempt=2),
        record_line("job-1", 0, 5, role="evaluator"),
    ],
    ids=["run", "slot", "attempt", "role"],
)
def test_a_record_of_another_is_none(scene, line):
    assert not scene.take(line)
    assert (scene.names, scene.intake.refused) == ([], 1)


def test_the_slots_end_is_the_last_word_of_a_log(scene):
    scene.take(record_line("job-1", 0, 5))
    assert not scene.intake.ended
    scene.take(record_line("job-1", 0, 6, kind="slot_end"))
    assert scene.intake.ended


def good() -> bytes:
    return record_line("job-1", 0, 5)


@pytest.mark.parametrize(
    "line",
    [
        record_line("job-1", 0, 5, word="0ther"),
        good()[1:],
        b" " + good(),
        good()[:-7],
        good() + b" more",
        good().replace(b"/1 ", b"/2 "),
        b"\x1erankfall/1 t0k3n ",
        b"\x1erankfall/1 t0k3n \xff\xfe",
        b"\x1erankfall/1 t0k3n " + base64.urlsafe_b64encode(b"[" * 9000),
        b"\x1erankfall/1 t0k3n " + base64.urlsafe_b64encode(b'{"id":"abcdefgh","kind":"nonsense"}'),
        record_line("job-1", 0, 5, kind="../../etc/passwd"),
        record_line("job-1", 0, 5, id="../../../x"),
        record_line("job-1", 0, 5, id="short"),
        record_line("job-1", 0, 5, notes=["x" * MAX_LINE]),
    ],
)
def test_a_line_that_is_no_record_of_ours_stays_a_line(scene, line):
    assert not scene.take(line)
    assert scene.names == []
    assert scene.intake.refused == 1


@given(st.binary(max_size=200))
def test_no_bytes_behind_the_mark_raise(tmp_path_factory, data):
    scene = Scene(tmp_path_factory.mktemp("records"))
    assert not scene.take(b"\x1erankfall/1 t0k3n " + data)
    assert scene.names == []


def test_the_same_record_twice_is_one_file_and_the_first_stands(scene):
    assert scene.take(record_line("job-1", 0, 5, rank=1))
    assert scene.take(record_line("job-1", 0, 5, rank=2), AT + 1)
    (found,) = RecordFolder(scene.folder, run="job-1", attempt=1).poll()
    assert (found.record.rank, found.mtime) == (1, AT)


def test_progress_is_told_and_not_kept(scene):
    assert scene.take(record_line("job-1", 0, 5, kind="progress", ordinal=0, step=9))
    scene.intake.tell_progress()
    assert scene.names == []
    assert [record.step for record in scene.progress] == [9]


def test_a_job_cannot_fill_the_disk_with_records(scene, monkeypatch):
    monkeypatch.setattr(instance_folders, "MAX_RECORDS", 3)
    assert [scene.take(record_line("job-1", 0, n)) for n in range(5)] == [True, True, True, False, False]
    assert (len(scene.names), scene.intake.refused) == (3, 2)


def test_a_record_that_cannot_be_stored_leaves_nothing_behind(scene, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(instance_folders.os, "utime", full)
    with pytest.raises(OSError, match="No space"):
        scene.take(good())
    assert scene.names == []


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_no_message_of_another_program_raises(tmp_path_factory, text):
    scene = Scene(tmp_path_factory.mktemp("records"))
    assert scene.intake.take_message(text) == 0
    assert scene.names == []


def test_a_message_holds_an_error_and_an_end_and_no_more(scene):
    own = {"run": "job-1", "attempt": 1, "slot": 0, "at_ns": AT}
    kinds = ["start", "error", "slot_end", "error", "error"]
    rows = [own | {"kind": kind, "id": f"{n:08d}"} for n, kind in enumerate(kinds)]
    assert scene.intake.take_message("\n".join(json.dumps(row) for row in rows) + "\n{cut") == 2
    found = RecordFolder(scene.folder, run="job-1", attempt=1).poll()
    assert [(item.record.kind, item.mtime) for item in found] == [("error", AT), ("slot_end", AT)]


def test_i32_the_end_of_a_log_in_a_status_holds_records_as_the_log_does(scene):
    """Nothing wrote a message: the kubelet took the last lines, text and records as they were printed."""
    own = {"run": "job-1", "attempt": 1, "slot": 0, "at_ns": AT, "kind": "error", "id": "00000001"}
    line = scene.intake._head + base64.urlsafe_b64encode(json.dumps(own).encode())
    text = f"t of a line\nKeyError: 'x'\n{line.decode()}\n"
    assert scene.intake.take_message(text) == 1
    assert scene.intake.take_message("KeyError: 'x'\n") == 0


def test_the_same_gap_is_one_record():
    log = LogOf(run="job-1", attempt=1, role="worker", slot=4, uid="u", number=2)
    one, again = (gap_record(log, after=AT, before=None) for _ in range(2))
    other = gap_record(log, after=AT, before=AT + 1)
    assert one == again
    assert one.id != other.id
    assert one.notes == (
        "lines of slot 4, restart 2 may be missing: between 2026-09-21T14:13:20.123456789Z and its end of its log",
    )


# -- folders of instances


@pytest.fixture
def run(tmp_path):
    return RunDir.create(JobSpec(name="job", command=("train.py",)), home=tmp_path)


def instances(run: RunDir) -> Instances:
    return Instances(run, attempt=1, role_of=lambda _: "worker", token=CHANNEL)


def folders(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.stream_dir(1, "worker", 0).parent.iterdir())


def test_instances_get_folders_in_order_and_find_them_again(run):
    held = instances(run)
    first = held.open(0, uid="a", number=0)
    assert held.open(0, uid="a", number=0) is first
    held.open(0, uid="a", number=1)
    held.open(0, uid="b", number=0)
    assert folders(run) == ["0", "1", "2"]
    first.push(b"2026-11-21T16:00:00.000000001Z hello\n")
    held.close()
    again = instances(run)
    log = again.open(0, uid="a", number=0)
    assert (log.cursor.lines, folders(run)) == (1, ["0", "1", "2"])
    again.open(0, uid="c", number=0)
    assert folders(run) == ["0", "1", "2", "3"]
    again.drop(0, uid="a", number=0)
    again.drop(0, uid="a", number=0)
    assert again.open(0, uid="a", number=0) is not log
    again.close()


def test_a_full_disk_leaves_no_folder_behind_each_time(run, monkeypatch):
    held = instances(run)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["rankfall.rundir.layout"], "write_file", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                held.open(0, uid="a", number=0)
        assert folders(run) == []
    held.open(0, uid="a", number=0)
    assert folders(run) == ["0"]
    held.close()


def test_a_folder_whose_identity_was_never_written_is_nobodys(run):
    folder = run.stream_dir(1, "worker", 0, 0)
    folder.mkdir(parents=True)
    (folder / "instance.json").write_bytes(b'{"uid":')
    held = instances(run)
    held.open(0, uid="a", number=0)
    held.close()
    assert folders(run) == ["0", "1"]


def test_of_progress_that_came_together_the_newest_of_each_process_is_told(scene):
    for number, (ordinal, step) in enumerate([(0, 1), (1, 7), (0, 2), (0, 3)]):
        assert scene.take(record_line("job-1", 0, number, kind="progress", ordinal=ordinal, step=step))
    assert not scene.progress
    scene.intake.tell_progress()
    scene.intake.tell_progress()
    assert [(record.ordinal, record.step) for record in scene.progress] == [(0, 3), (1, 7)]


def test_progress_that_cannot_be_written_is_told_the_next_time(tmp_path):
    full, told = [OSError(28, "No space left on device")], []

    def tell(record: Record) -> None:
        if full:
            raise full.pop()
        told.append(record.step)

    (tmp_path / "records").mkdir()
    intake = RecordIntake(
        tmp_path / "records", token=CHANNEL, run="job-1", attempt=1, role="worker", slot=0, uid="u", on_progress=tell
    )
    assert intake.take(record_line("job-1", 0, 5, kind="progress", ordinal=0, step=9), AT)
    with pytest.raises(OSError, match="No space"):
        intake.tell_progress()
    intake.tell_progress()
    assert told == [9]


def test_progress_is_read_as_a_hooks_on_this_machine(run, tmp_path):
    folder = tmp_path / "slot" / "progress"
    write_progress(folder, Record(id="x", kind="progress", ordinal=3, step=7, phase="step", at_ns=5, cpu_s=1.5))
    write_progress(folder, Record(id="y", kind="progress", ordinal=3, step=8, phase="step", at_ns=6, cpu_s=2.5))
    write_progress(folder, Record(id="z", kind="progress", step=9))
    (step,) = read_steps(folder.parent)
    assert (step.ordinal, step.step, step.phase, step.cpu_s, step.cpu_at) == (3, 8, "step", 2.5, 6)


def test_a_gap_in_a_log_is_recorded_with_its_bounds(run):
    held = instances(run)
    log = held.open(0, uid="a", number=0)
    log.opened()
    log.push(b"2026-11-21T16:00:00.000000001Z one\n")
    log.opened()
    # Rotated meanwhile.
    log.push(b"2026-11-21T16:00:09.000000005Z nine\n2026-11-21T16:00:09.000000006Z ten\n")
    held.close()
    (found,) = RecordFolder(run.records_dir, run=run.id, attempt=1).poll()
    assert found.record.kind == "gap"
    assert "16:00:00.000000001Z and 2026-11-21T16:00:09.000000005Z" in found.record.notes[0]
    assert log.cursor.gaps == 1
    assert msgspec.json.encode(found.record)
