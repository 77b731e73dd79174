"""What breaks around the job: a wrapper that is killed, one that never comes up, a disk that is full, a plan that cannot start."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from rankfall.backends.local import processes as slot_processes
from rankfall.model import StoreError
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.records import RecordFolder
from rankfall.supervisor import Control
from support.helpers import wait_until

from .conftest import Bench
from .test_cancel import WAIT, Threaded, until_output


def wrapper_of(run: RunDir, slot: int) -> int:
    return int((run.slot_dir(1, "worker", slot) / "lock").read_bytes().split()[0])


def test_a_killed_wrapper_makes_its_slot_lost_and_its_ranks_are_ended(bench: Bench) -> None:
    code = """
if os.environ["RANKFALL_ATTEMPT"] == "2": sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(600)
"""
    run = bench.run_dir(bench.spec(code, policies={"grace_s": 0.5}))
    supervisor = Threaded(bench, run)
    until_output(run)
    os.kill(wrapper_of(run, 1), signal.SIGKILL)
    outcome = supervisor.join()
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    with run.reader() as reader:
        assert {facts.slot: facts.state for facts in reader.slots(1)} == {0: "ended", 1: "lost"}
        found = reader.diagnosis(1)
    assert found is not None
    assert (found.verdict.slot, found.verdict.cause.slug) == (1, "killed_unknown")
    assert any("ended leftover processes of slot" in text for text in bench.texts("gap")), bench.events


def test_a_run_without_room_for_its_end_is_deleted_before_anything_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfall.rundir.database._make_room", lambda _: False)
    run = bench.run_dir(bench.spec("pass"))
    with pytest.raises(StoreError, match=f"{run.id} could not start and was deleted: .*\n  next: free space there"):
        bench.supervise(run)
    assert not list((bench.home / "runs").iterdir())


def test_a_run_that_may_have_begun_goes_on_without_room_for_a_new_database(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database is damaged, and there is no room for the end in the new one."""
    run = bench.run_dir(bench.spec("pass"))
    (run.path / "slots" / "attempt-1").mkdir()
    run.db_path.write_bytes(b"x" * 5000)
    monkeypatch.setattr("rankfall.rundir.database._make_room", lambda _: False)
    assert bench.supervise(run).state == "succeeded"
    assert list(run.path.glob("run.db.damaged-*"))


def test_a_deaf_wrapper_is_ended_by_force(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.supervisor.stopping.FORCE_AFTER_S", 0.5)
    run = bench.run_dir(bench.spec("print('here', flush=True)\ntime.sleep(600)", policies={"grace_s": 0.5}))
    supervisor = Threaded(bench, run)
    until_output(run)
    os.kill(wrapper_of(run, 0), signal.SIGSTOP)
    supervisor.control.cancel()
    assert supervisor.join().state == "cancelled"


def test_a_wrapper_that_never_comes_up_is_lost_not_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = slot_processes.start

    def broken(argv: Any, **kwargs: Any) -> int | None:
        words = list(argv)
        if kwargs["env"]["RANKFALL_SLOT"] == "1":
            words[3] = "/nowhere"
        return real(words, **kwargs)

    monkeypatch.setattr(slot_processes, "start", broken)
    run, outcome = bench.run("time.sleep(600)", policies={"max_restarts": 0})
    assert outcome.state == "failed"
    with run.reader() as reader:
        lost = {facts.slot: facts for facts in reader.slots(1)}[1]
    assert lost.state == "lost"
    assert lost.where.endswith("worker-1/wrapper.log")


def test_a_slot_that_cannot_be_started_is_the_cause(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("time.sleep(600)", policies={"max_restarts": 0}))
    folder = run.slot_dir(1, "worker", 1)
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")
    outcome = bench.supervise(run)
    folder.unlink()
    assert outcome.state == "failed"
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "container_config"
    assert "could not be started" in (outcome.verdict.decisive.line if outcome.verdict.decisive else "")


def test_a_full_disk_stops_the_record_and_not_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself says that the disk is full, from the first attempt's start until the second one begins."""
    code = """
print("x" * 100)
if os.environ["RANKFALL_ATTEMPT"] == "1" and rank == 1: os.kill(os.getpid(), 9)
"""
    full = threading.Event()
    put_slots, begin_attempt = Writer.put_slots, Writer.begin_attempt

    def put_slots_on_a_full_disk(self: Writer, *args: Any) -> None:
        if not full.is_set():
            full.set()
            # The room that was kept for such a day goes first.
            self._connection.execute("CREATE TABLE eaten (bytes BLOB)")
            self._connection.execute("INSERT INTO eaten VALUES (zeroblob(1000000))")
            pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
            self._connection.execute(f"PRAGMA max_page_count={pages}")
        put_slots(self, *args)

    def begin_with_room_again(self: Writer, *args: Any, **kwargs: Any) -> None:
        if full.is_set():
            self._connection.execute("PRAGMA max_page_count=1000000")
        begin_attempt(self, *args, **kwargs)

    monkeypatch.setattr(Writer, "put_slots", put_slots_on_a_full_disk)
    monkeypatch.setattr(Writer, "begin_attempt", begin_with_room_again)
    run, outcome = bench.run(code)
    assert full.is_set()
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    with run.reader() as reader:
        assert reader.run().state == "succeeded"
        assert any("disk is full" in text for text in reader.run().incomplete)
        found = reader.diagnosis(1)
        assert found is not None
        assert found.verdict.rank == 1


def test_a_store_that_takes_nothing_at_all_leaves_the_run_right(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Writer, *args: Any, **kwargs: Any) -> None:
        raise StoreError("cannot write run.db: the disk is full") from sqlite3.OperationalError("full")

    names = ("set_run", "begin_attempt", "end_attempt", "put_slots", "put_ranks", "put_streams")
    for name in (*names, "add_evidence", "add_verdict", "add_decision", "decision_done"):
        monkeypatch.setattr(Writer, name, full)
    run = bench.run_dir(bench.spec("if os.environ['RANKFALL_ATTEMPT'] == '1' and rank == 1: os.kill(os.getpid(), 9)"))
    outcome = bench.supervise(run, control=Control())
    assert (outcome.state, outcome.code) == ("succeeded", 0)
    assert bench.texts("gap")
    with run.reader() as reader:
        assert any("disk is full" in text for text in reader.run().incomplete)


def test_a_slot_that_ends_on_a_full_disk_is_known_by_its_exit_code(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper's last records, and its end in the slot's own folder, are taken away as if they had found no room."""

    def no_end(found: Any) -> Any:
        return [item for item in found if item.record.kind != "slot_end"]

    real = RecordFolder.poll
    monkeypatch.setattr(RecordFolder, "poll", lambda self: no_end(real(self)))
    monkeypatch.setattr("rankfall.evidence.attempt.observer.read_end", lambda folder: None)
    run, outcome = bench.run("sys.exit(6 if rank == 1 else 0)", policies={"max_restarts": 0})
    assert (outcome.state, outcome.code) == ("failed", 6)
    with run.reader() as reader:
        assert {facts.slot: (facts.state, facts.exit_code) for facts in reader.slots(1)} == {
            0: ("ended", 0),
            1: ("ended", 6),
        }
        assert any("could not record it" in text for text in reader.run().incomplete)


def test_a_slot_that_cannot_come_up_on_a_full_disk_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.supervisor.attempt.end.disk_trouble", lambda folder: f"{folder} is full")
    real = slot_processes.start
    monkeypatch.setattr(slot_processes, "start", lambda argv, **rest: real((*argv[:3], "/nowhere"), **rest))
    _, outcome = bench.run("pass", nnodes=1)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "disk_full"


def test_the_error_of_a_wrapper_that_cannot_start_its_ranks_is_the_cause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = slot_processes.start
    few = ("/bin/sh", "-c", 'ulimit -n 32; exec "$0" "$@"')
    monkeypatch.setattr(slot_processes, "start", lambda argv, **rest: real((*few, *argv), **rest))
    _, outcome = bench.run("pass", nnodes=1, nproc_per_node=16)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.cause.confidence) == ("container_config", "likely")
    assert outcome.verdict.decisive is not None
    assert "ended with OSError: [Errno 24] Too many open files" in outcome.verdict.decisive.line


def test_an_unwritable_story_is_no_reason_to_stop(bench: Bench) -> None:
    run = bench.run_dir(bench.spec("print('fine')"))
    Path(run.path / "events.jsonl").mkdir()
    assert bench.supervise(run).state == "succeeded"


def test_a_run_directory_that_is_gone_is_an_error_with_a_next_step(bench: Bench) -> None:
    with pytest.raises(StoreError) as caught:
        bench.supervise(RunDir(bench.home / "runs" / "absent-000000"))
    assert caught.value.hint


def test_a_slow_start_is_waited_for_when_it_is_stopped(bench: Bench) -> None:
    """A stop that comes before the wrapper listens is told as soon as it does."""
    run = bench.run_dir(bench.spec("time.sleep(600)"))
    supervisor = Threaded(bench, run)
    wait_until((run.slot_dir(1, "worker", 0) / "wrapper.log").exists, timeout=WAIT, what="a start")
    supervisor.control.cancel()
    assert supervisor.join().state == "cancelled"
