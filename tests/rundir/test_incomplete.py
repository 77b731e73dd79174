"""What a record lacks is derived in one place from gap records, from ends that nobody recorded, and from the disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Record, Verdict
from rankfall.model.record import Lost
from rankfall.model.verdict import Cause
from rankfall.rundir import RunDir, incomplete, status
from rankfall.rundir.incomplete import PREFIX, as_of_now, disk_trouble, lost_lines, lost_of_run, waiting

NS = 10**9
T0 = 1_800_000_000 * NS


def gap(slot: int, lost: Lost | None, *, attempt: int = 1, uid: str | None = None) -> Record:
    return Record(id=f"{slot}{lost}", kind="gap", attempt=attempt, slot=slot, pod_uid=uid, lost=lost)


def test_i19_p4_what_wrappers_counted_is_one_sentence_with_its_bounds():
    found = lost_lines(
        gap(
            slot,
            Lost(
                stream=f"r{slot}", lines=10, bytes=100, after_ns=T0 + slot, before_ns=T0 + 5 * NS, why="No space left"
            ),
        )
        for slot in range(4)
    )
    (one,) = found
    assert (one.lines, one.bytes, one.ranks, one.slots) == (40, 400, (0, 1, 2, 3), (0, 1, 2, 3))
    assert one.text == (
        "40 lines of ranks 0-3 (4 in all) between 2027-01-15T08:00:00.000000000Z and 2027-01-15T08:00:05.000000000Z "
        "of attempt 1 are missing, 400 bytes (No space left)"
    )


def test_i19_p4_a_place_gives_the_bounds_of_what_was_counted_in_the_same_container_only():
    place = Lost(number=1, after_ns=T0, before_ns=T0 + NS)
    counted = Lost(number=1, stream="r2", lines=7, bytes=70)
    (one,) = lost_lines([gap(1, place, uid="u"), gap(1, counted, uid="u")])
    assert (one.lines, one.after, one.before) == (7, "2027-01-15T08:00:00.000000000Z", "2027-01-15T08:00:01.000000000Z")
    sure, maybe = lost_lines([gap(1, place, uid="u"), gap(1, counted, uid="other")])
    assert (sure.lines, sure.after, sure.before, maybe.lines) == (7, None, None, None)
    assert "lines of slot 1 between" in maybe.text
    assert "may be missing; their number is unknown" in maybe.text


def test_i19_p15_logs_that_could_not_be_read_are_counted_and_the_reason_is_said():
    why = "Get https://n1:10250/…: connection refused"
    (one,) = lost_lines(gap(slot, Lost(why=why), uid=f"u{slot}") for slot in range(500))
    assert one.unread == len(one.slots) == 500
    assert one.text == (
        "lines of slots 0-499 (500 in all) between the beginning and the end of attempt 1 may be missing; their number "
        f"is unknown; the logs of 500 pods could not be read to their end ({why})"
    )
    (counted,) = lost_lines(
        [gap(3, Lost(after_ns=T0), uid="u"), gap(3, Lost(stream="all", lines=9, bytes=90), uid="u")]
    )
    assert (counted.lines, counted.unread, counted.ranks) == (9, 1, ())
    assert "9 lines of slot 3 between 2027-01-15T08:00:00.000000000Z and the end" in counted.text


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 9), st.integers(0, 1000), st.booleans()),
        max_size=30,
    )
)
def test_any_counted_lines_are_in_the_sums_of_their_attempts(pieces: list[tuple[int, int, int, int, bool]]) -> None:
    records = [
        gap(slot, Lost(stream=f"r{rank}", lines=lines if known else None, bytes=lines), attempt=attempt)
        for attempt, slot, rank, lines, known in pieces
    ]
    found = lost_lines(records)
    assert lost_lines(reversed(records)) == found
    for attempt in {one[0] for one in pieces}:
        own = [one for one in found if one.attempt == attempt]
        assert sum(one.lines or 0 for one in own) == sum(one[3] for one in pieces if one[0] == attempt and one[4])
        assert sum(one.bytes or 0 for one in own) == sum(one[3] for one in pieces if one[0] == attempt)
        assert all(one.text for one in own)


def put(run_dir: RunDir, name: str, record: Record | bytes) -> None:
    run_dir.records_dir.mkdir(exist_ok=True)
    data = record if isinstance(record, bytes) else msgspec.json.encode(record)
    (run_dir.records_dir / name).write_bytes(data)


def test_i19_p4_status_and_a_stored_verdict_say_what_is_missing_now(run_dir: RunDir) -> None:
    put(run_dir, "gap-a1-worker-0-x.json", gap(0, Lost(stream="slot", lines=1, bytes=9, after_ns=T0, before_ns=T0)))
    put(run_dir, "gap-a1-worker-1-x.json", b"{torn")
    put(run_dir, "gap-a2-worker-0-y.json", gap(0, Lost(after_ns=T0), attempt=2))
    with run_dir.lease() as writer:
        found = status.status(run_dir, writer, now=T0)
    assert [one.attempt for one in found.lost_lines] == [1, 2]
    assert found.incomplete[0].startswith("1 line of slot 0 between 2027-01-15T08:00:00.000000000Z and")
    verdict = Verdict(cause=Cause(slug="unknown", family="unknown", title="", confidence="unknown"), attempt=1)
    verdict = msgspec.structs.replace(verdict, missing=(f"{PREFIX}older", "something else"))
    assert as_of_now(verdict, run_dir).missing == (f"{PREFIX}{found.incomplete[0]}", "something else")
    assert lost_of_run(run_dir, attempt=3) == ()


def test_i19_p4_a_wrapper_of_this_machine_that_recorded_no_end_lost_an_unknown_number(run_dir: RunDir) -> None:
    for slot in (0, 1):
        run_dir.slot_dir(1, "worker", slot).mkdir(parents=True)
    put(run_dir, "slot_end-a1-worker-1-x.json", b"{}")
    assert lost_of_run(run_dir) == ()
    folder = run_dir.slot_dir(1, "worker", 0)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lost_of_run(run_dir) == ()
    (one,) = lost_of_run(run_dir)
    assert (one.slots, one.lines, one.before, one.why) == ((0,), None, None, "the end of its wrapper is not recorded")
    (folder / "end.json").write_text("{}")
    assert lost_of_run(run_dir) == ()


def test_a_cluster_and_a_damaged_run_have_no_wrappers_here(home: Path) -> None:
    spec = JobSpec(name="job", command=("train.py",), backend="job", kubernetes={"image": "x"})
    found = RunDir.create(msgspec.structs.replace(spec), home=home)
    found.slot_dir(1, "worker", 0).mkdir(parents=True)
    (found.slot_dir(1, "worker", 0) / "lock").touch()
    assert lost_of_run(found) == ()
    (found.path / "spec.json").write_text("{")
    assert lost_of_run(RunDir(found.path)) == ()


def test_i19_p4_a_disk_that_takes_nothing_is_said_of_a_run_that_goes_on(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_trouble(run_dir.path) is None
    assert "cannot be reached" in (disk_trouble(run_dir.path / "none") or "")
    real = os.statvfs(run_dir.path)

    def answers(**fields: int) -> None:
        names = ("f_flag", "f_bavail", "f_frsize")
        values = {name: fields.get(name, getattr(real, name)) for name in names}
        monkeypatch.setattr(incomplete.os, "statvfs", lambda _: type("Found", (), values)())

    answers(f_flag=os.ST_RDONLY)
    assert waiting(run_dir, state="running")[0].startswith(f"the file system of {run_dir.path} is read-only")
    answers(f_bavail=1, f_flag=0)
    assert waiting(run_dir, state="running")[0].startswith(f"the file system of {run_dir.path} is full")
    assert waiting(run_dir, state="succeeded") == ()
