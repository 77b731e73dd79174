"""The run's database: what is written is read, by a reader beside the writer, after a kill, from a full disk and from ruins."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from rankfall.model import (
    Cause,
    Decision,
    Diagnosis,
    Evidence,
    JobSpec,
    RankFacts,
    RankStatus,
    SlotFacts,
    StoreError,
    Verdict,
)
from rankfall.rundir import AttemptRow, RunDir, RunRow, StreamRow, Writer, list_runs
from rankfall.rundir.database_writer import MAX_NOTES
from support.helpers import wait_until
from support.stream_files import opened, row, stream


def piece(number: int, **fields: object) -> Evidence:
    return Evidence(id=str(number), source="log", slug="host_oom", role="primary", trust="job", **fields)  # type: ignore[arg-type]


def diagnosis(slug: str = "host_oom", **fields: object) -> Diagnosis:
    cause = Cause.of(slug, confidence="likely")
    return Diagnosis(verdict=Verdict(cause=cause, **fields), fingerprint=slug)  # type: ignore[arg-type]


def test_what_is_written_is_read_beside_the_writer(run_dir: RunDir, writer: Writer) -> None:
    writer.set_run("starting", at=5)
    writer.set_run("running", reason="all ranks are there", at=6)
    writer.begin_attempt(1, at=7, plan={"slots": [1, 2], "launcher": "torchrun"})
    slots = [SlotFacts(slot=1, role="worker", state="running"), SlotFacts(slot=0, role="worker")]
    ranks = [RankFacts(rank=1, round=0), RankFacts(rank=0, round=1, state="ended", signal=9), RankFacts(rank=0)]
    mapped = row(run_dir, stream(run_dir), 1)
    writer.put_slots(1, slots)
    writer.put_ranks(1, ranks)
    writer.put_streams([mapped])
    assert writer.add_evidence(1, [piece(1, line="\ud800".encode(errors="replace").decode()), piece(2)]) == 2
    assert writer.add_evidence(1, [piece(2), piece(3), piece(3)]) == 1
    with run_dir.reader() as reader:
        for tables in (reader, writer):
            assert tables.run() == RunRow(state="running", reason="all ranks are there", started=5)
            assert tables.attempts() == [
                AttemptRow(attempt=1, started=7, plan={"slots": [1, 2], "launcher": "torchrun"})
            ]
            assert tables.slots(1) == slots[::-1]
            assert tables.ranks(1) == [ranks[2], ranks[0], ranks[1]]
            assert tables.streams() == tables.streams(1) == [mapped]
            assert not any([tables.streams(2), tables.ranks(2), tables.slots(2), tables.evidence(2)])
            assert [found.id for found in tables.evidence(1)] == ["1", "2", "3"]
        writer.put_ranks(1, [RankFacts(rank=0, round=1, state="ended", signal=15)])
        assert [facts.signal for facts in reader.ranks(1)] == [None, None, 15]
        writer.end_attempt(1, at=8, state="failed")
        writer.end_attempt(1, at=9, state="failed")
        assert (reader.attempts()[0].ended, reader.attempts()[0].state) == (8, "failed")
        assert reader.problems == []


def test_a_run_that_ended_may_go_on(run_dir: RunDir, writer: Writer) -> None:
    assert writer.run() == RunRow(state="queued")
    writer.set_run("queued", at=1)
    writer.set_run("running", at=2)
    writer.set_run("failed", reason="budget spent", at=3)
    assert writer.run() == RunRow(state="failed", reason="budget spent", started=2, ended=3)
    writer.set_run("running", at=4)
    assert writer.run() == RunRow(state="running", started=2)


def test_a_verdict_gets_a_version_only_when_it_changes(run_dir: RunDir, writer: Writer) -> None:
    assert writer.diagnosis() is None
    assert writer.add_verdict(1, diagnosis(rank=3)) == 1
    assert writer.add_verdict(1, diagnosis(rank=3)) == 1
    decision = Decision(action="retry", rule="cause_once", because="once")
    assert writer.add_verdict(1, diagnosis(rank=3, decision=decision, version=7)) == 1
    assert writer.add_verdict(1, diagnosis(rank=4)) == 2
    assert writer.add_verdict(2, diagnosis("user_exception", rank=1)) == 1
    assert writer.add_verdict(1, diagnosis(rank=3)) == 3
    assert [(row.attempt, row.version, row.diagnosis.verdict.version) for row in writer.verdicts()] == [
        (1, 1, 1),
        (1, 2, 2),
        (1, 3, 3),
        (2, 1, 1),
    ]
    assert len(writer.verdicts(1)) == 3
    newest = writer.diagnosis()
    assert newest is not None
    assert newest.verdict.cause.slug == "user_exception"
    first = writer.diagnosis(1)
    assert first is not None
    assert (first.verdict.rank, first.verdict.decision) == (3, None)
    assert writer.diagnosis(3) is None


def test_a_decision_is_an_intent_until_it_is_done(run_dir: RunDir, writer: Writer) -> None:
    writer.add_verdict(1, diagnosis())
    number = writer.add_decision(1, Decision(action="retry", rule="cause_once", because="once", left=2))
    other = writer.add_decision(2, Decision(action="stop", rule="cause_no", because="no"))
    with run_dir.reader() as reader:
        assert [(row.id, row.decision.state, row.done_at) for row in reader.decisions()] == [
            (number, "intent", None),
            (other, "intent", None),
        ]
        writer.decision_done(number, at=50)
        writer.decision_done(number, at=60)
        (done,) = reader.decisions(1)
        assert (done.decision.state, done.done_at, done.decision.left) == ("done", 50, 2)
        found = reader.diagnosis()
        assert found is not None
        assert found.verdict.decision == done.decision


def test_ps_and_status_speak_of_the_newest_attempt_and_round(run_dir: RunDir, writer: Writer) -> None:
    writer.set_run("running", at=1_790_000_000_123_456_789)
    for attempt in (1, 2):
        writer.begin_attempt(attempt, at=1, plan={})
        writer.put_slots(attempt, [SlotFacts(slot=0, role="worker", exit_code=attempt, launcher="plain", node="n0")])
    second = 1_000_000_000
    writer.put_ranks(2, [RankFacts(rank=0, round=0, signal=9, state="ended"), RankFacts(rank=1, round=0)])
    writer.put_ranks(
        2, [RankFacts(rank=0, round=1, signal=64, last_line_at=10 * second), RankFacts(rank=1, round=1, signal=9)]
    )
    writer.put_ranks(2, [RankFacts(rank=2, round=1, exit_code=3, last_line_at=99 * second)])
    writer.add_verdict(2, diagnosis(rank=1, node="n1"))
    run_dir.slot_dir(2, "worker", 0).mkdir(parents=True)
    (run_dir.slot_dir(2, "worker", 0) / "lock").write_text("4711 123 boot")
    with run_dir.reader() as reader:
        status = reader.status(now=20 * second)
        short = reader.summary()
    assert status.supervised
    assert (short.run, short.name, short.attempts, short.state) == (run_dir.id, "job", 2, "running")
    assert (short.cause, short.rank, short.node) == ("host_oom", 1, "n1")
    assert short.started == "2026-09-21T14:13:20.123456789Z"
    assert [(s.slot, s.pid, s.exit, s.launcher) for s in status.slots] == [(0, 4711, "2", "plain")]
    assert [(r.rank, r.exit, r.line_age_s) for r in status.ranks] == [
        (0, "signal 64" if "64" in (status.ranks[0].exit or "") else "SIGRTMAX", 10.0),
        (1, "SIGKILL", None),
        (2, "3", 0.0),
    ]


def test_the_age_of_the_last_line_is_read_from_the_index(run_dir: RunDir, writer: Writer) -> None:
    writer.begin_attempt(1, at=1, plan={})
    writer.put_ranks(1, [RankFacts(rank=rank, round=1, last_line_at=5 * 10**9) for rank in range(3)])
    for local, rank, number in ((0, 0, 1), (1, 1, 0), (2, 2, 1)):
        found = stream(run_dir, local)
        found.write(b"x\n", at=(1 if rank == 2 else 8) * 10**9)
        writer.put_streams([msgspec.structs.replace(row(run_dir, found, rank), round=number)])
    ages = [rank.line_age_s for rank in writer_status(run_dir, now=10 * 10**9)]
    assert ages == [2.0, 5.0, 5.0]


def writer_status(run_dir: RunDir, *, now: int) -> tuple[RankStatus, ...]:
    with run_dir.reader() as reader:
        return reader.status(now).ranks


def test_16384_ranks_with_five_pieces_of_evidence_each_are_two_transactions(run_dir: RunDir, writer: Writer) -> None:
    statements: Counter[str] = Counter()
    # One statement by its kind; a transaction is what waits for the disk.
    writer._connection.set_trace_callback(lambda text: statements.update([text.split()[0]]))
    writer.put_ranks(1, [RankFacts(rank=rank, slot=rank // 8, node=f"n{rank // 8}") for rank in range(16384)])
    assert writer.add_evidence(1, (piece(number, rank=number // 5, line="x" * 200) for number in range(81920))) == 81920
    with run_dir.reader() as reader:
        assert len(reader.evidence(1)) == 81920
        assert len(reader.ranks(1)) == 16384
    assert statements["COMMIT"] == 2
    # Of the virtual machine's statements none is more than one for each row.
    assert statements["INSERT"] == 16384 + 81920
    assert sum(statements.values()) < statements["INSERT"] + 20


KILLED = """
import sys
from pathlib import Path
from rankfall.rundir import RunDir
with RunDir(Path(sys.argv[1])).lease() as writer:
    for number in range(10**9):
        writer.begin_attempt(number, at=number, plan={})
        writer.end_attempt(number, at=number, state="done")
        print(number, flush=True)
"""


def test_what_was_written_before_a_sigkill_is_there(run_dir: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, run_dir.path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 20:
            pass
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split(b"\n")
    last = max([int(text) for text in said[:-1] if text], default=20)
    with run_dir.reader() as reader:
        found = reader.attempts()
        assert reader.problems == []
    assert len(found) >= last + 1
    assert all(one.state == "done" for one in found[: last + 1])
    with run_dir.lease() as writer:
        assert writer.attempts() == found


def test_a_finished_run_is_one_file_and_can_be_read_where_nothing_may_be_written(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",)), home=open_folder)
    with run_dir.lease() as writer:
        writer.set_run("succeeded", at=1)
    assert [path.name for path in run_dir.path.glob("run.db*")] == ["run.db"]
    before = {path.name for path in run_dir.path.iterdir()}
    opened(open_folder)
    run_dir.path.chmod(0o555)
    with as_user(), run_dir.reader() as reader:
        assert reader.run().state == "succeeded"
        assert reader.problems == []
    assert {path.name for path in run_dir.path.iterdir()} == before


def test_a_run_that_ended_is_small_also_where_somebody_reads_it(run_dir: RunDir) -> None:
    with contextlib.closing(sqlite3.connect(run_dir.path / "run.db")) as reader:
        with run_dir.lease() as writer:
            assert reader.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
            writer.set_run("succeeded", at=1)
        sizes = {path.name: path.stat().st_size for path in run_dir.path.glob("run.db*")}
        assert sizes.get("run.db-wal", 0) == 0
        assert sum(sizes.values()) < 100_000, sizes
        assert reader.execute("SELECT state FROM run").fetchone() == ("succeeded",)


def test_a_killed_writers_run_in_a_folder_without_write_permission_says_what_may_be_missing(
    open_folder: Path, as_user: Callable[[], AbstractContextManager[None]]
) -> None:
    run_dir = RunDir.create(JobSpec(command=("a",)), home=open_folder)
    with run_dir.lease() as writer:
        writer.set_run("running", at=1)
        writer.close = lambda: None  # type: ignore[method-assign]
    writer._connection.execute("PRAGMA wal_checkpoint")
    copied = open_folder / "copy-000000"
    copied.mkdir()
    for name in ("spec.json", "run.db", "run.db-wal"):
        (copied / name).write_bytes((run_dir.path / name).read_bytes())
    Writer.close(writer)
    copied.chmod(0o555)
    with as_user(), RunDir(copied).reader() as reader:
        assert reader.run().state == "running"
        assert reader.problems == ["run.db is read without its journal: the last moments of the run may be missing"]


def test_a_full_disk_is_said_and_the_note_is_stored_when_there_is_room(run_dir: RunDir, writer: Writer) -> None:
    writer.begin_attempt(1, at=1, plan={})
    pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
    writer._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="the disk is full\n  next: free space"):
        writer.add_evidence(1, (piece(number, line="x" * 4000) for number in range(300)))
    writer.note_incomplete("evidence was lost, " + "long " * 1000)
    writer._connection.execute(f"PRAGMA max_page_count={pages + 100}")
    assert writer.add_evidence(1, [piece(1)]) == 1
    assert writer.run().incomplete[0].startswith("evidence was lost, ")
    for number in range(MAX_NOTES + 50):
        writer.note_incomplete(f"note {number}")
    assert len(writer.run().incomplete) == MAX_NOTES
    assert "more" in writer.run().incomplete[-1]
    with run_dir.reader() as reader:
        assert reader.status(0).incomplete == writer.run().incomplete


def test_an_error_inside_a_call_leaves_nothing_half_written(run_dir: RunDir, writer: Writer) -> None:
    def broken() -> object:
        yield piece(1)
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        writer.add_evidence(1, broken())  # type: ignore[arg-type]
    assert writer.evidence(1) == []
    assert writer.add_evidence(1, [piece(1)]) == 1


def test_a_newer_schema_is_refused_by_writer_and_named_by_reader(run_dir: RunDir) -> None:
    with run_dir.lease():
        pass
    with sqlite3.connect(run_dir.db_path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreError, match="has schema 99; this Rankfall knows 1"), run_dir.lease():
        pass
    with run_dir.reader() as reader:
        assert "schema 99" in reader.problems[0]
        assert reader.run().state == "unknown"


def records(run_dir: RunDir) -> None:
    texts = {
        "start-a1-worker-0-1": {
            "kind": "start",
            "rank": 1,
            "local_rank": 1,
            "slot": 0,
            "role": "worker",
            "ordinal": 4,
            "instance": "0",
            "round": 0,
        },
        "start-a1-worker-1-2": {
            "kind": "start",
            "rank": 2,
            "slot": 1,
            "role": "worker",
            "ordinal": 0,
            "writer": "wrapper",
            "at_ns": 5,
        },
        "end-a1-worker-0-3": {
            "kind": "end",
            "rank": 1,
            "round": 0,
            "writer": "wrapper",
            "exit": {"code": None, "signal": 9},
            "at_ns": 9,
        },
        "end-a1-worker-0-4": {"kind": "end", "rank": 1, "round": 0, "writer": "hook", "exit": {"code": 1}},
        "end-a1-worker-0-5": {"kind": "end", "rank": 7, "round": 0},
        "start-a2-worker-0-6": {"kind": "start", "rank": 0, "slot": 0, "role": "worker", "ordinal": 0, "attempt": 2},
        "error-a1-worker-0-7": {"kind": "error", "rank": 3},
    }
    for name, fields in texts.items():
        (run_dir.records_dir / f"{name}.json").write_text(json.dumps({"id": name, "attempt": 1, **fields}))
    (run_dir.records_dir / "start-a1-worker-0-bad.json").write_text('{"id": 3')
    (run_dir.records_dir / "start-a1-worker-0-dir.json").mkdir()


@pytest.mark.parametrize("ruin", ["missing", "garbage", "torn", "empty tables"])
def test_without_its_database_a_run_tells_what_its_files_tell(run_dir: RunDir, ruin: str) -> None:
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        writer.add_evidence(1, [piece(number, line="x" * 500) for number in range(200)])
    if ruin == "missing":
        run_dir.db_path.unlink()
    elif ruin == "garbage":
        run_dir.db_path.write_bytes(os.urandom(8192))
    elif ruin == "torn":
        os.truncate(run_dir.db_path, 4096)
    else:
        run_dir.db_path.write_bytes(b"")
    records(run_dir)
    ranked, unknown = stream(run_dir, 4), stream(run_dir, 5)
    other = stream(run_dir, 0, slot=1)
    run_dir.slot_dir(1, "worker", 0).mkdir(parents=True)
    run_dir.slot_dir(3, "worker", 10).mkdir(parents=True)
    with run_dir.reader() as reader:
        reader.evidence(1)
        assert reader.problems
        assert [row.attempt for row in reader.attempts()] == [1, 3]
        assert reader.newest_attempt() == 3
        assert reader.slots(1) == [SlotFacts(slot=0, role="worker")]
        found = {facts.rank: facts for facts in reader.ranks(1)}
        assert set(found) == {1, 2}
        assert (found[1].state, found[1].signal, found[1].exit_code, found[1].ended_at) == ("ended", 9, None, 9)
        assert (found[2].state, found[2].hook, found[2].started_at) == ("unknown", "absent", 5)
        mapped = {row.stream: row.rank for row in reader.streams(1)}
        assert mapped == {
            str(ranked.path.relative_to(run_dir.path)): 1,
            str(other.path.relative_to(run_dir.path)): 2,
        }
        assert str(unknown.path.relative_to(run_dir.path)) not in mapped
        assert reader.diagnosis() is None
        assert reader.summary().state == "unknown"
        assert reader.status(0).incomplete


def test_a_database_that_is_no_file_is_said(run_dir: RunDir) -> None:
    run_dir.db_path.mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*run\.db: unable to open"), run_dir.lease():
        pass
    with run_dir.reader() as reader:
        assert "cannot be read" in reader.problems[0]
    assert run_dir.lease_holder() is None


def test_a_damaged_database_is_kept_aside_when_the_run_goes_on(run_dir: RunDir) -> None:
    for _ in range(2):
        run_dir.db_path.write_bytes(b"no database at all" * 1000)
        with run_dir.lease() as writer:
            writer.set_run("running", at=1)
            assert "was damaged" in writer.run().incomplete[0]
    assert sorted(path.name for path in run_dir.path.glob("run.db.damaged*")) == [
        "run.db.damaged-1",
        "run.db.damaged-2",
    ]


def test_a_run_that_was_only_just_made_is_queued(run_dir: RunDir, home: Path) -> None:
    with list_runs(home)[0].reader() as reader:
        assert reader.summary().state in {"queued", "unknown"}
        assert reader.attempts() == []


def test_a_row_that_cannot_be_read_is_named_and_the_others_are_given(run_dir: RunDir, writer: Writer) -> None:
    writer.add_evidence(1, [piece(1), piece(2)])
    writer._connection.execute("UPDATE evidence SET body = '{' WHERE id = '1'")
    writer._connection.execute("INSERT INTO verdicts VALUES (1, 1, '[]')")
    writer._connection.execute("INSERT INTO decisions VALUES (1, 1, '[]', NULL)")
    with run_dir.reader() as reader:
        assert [found.id for found in reader.evidence(1)] == ["2"]
        assert (reader.verdicts(), reader.decisions(), reader.diagnosis()) == ([], [], None)
        assert len(reader.problems) == 3


def test_readers_never_hinder_a_writer_in_another_process(run_dir: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, run_dir.path], stdout=subprocess.DEVNULL) as process:
        counts = []

        def grown() -> bool:
            with run_dir.reader() as reader:
                counts.append(len(reader.attempts()))
                assert not [text for text in reader.problems if "missing" not in text]
            return counts[-1] > 200

        try:
            wait_until(grown, timeout=30, what="200 attempts")
            assert process.poll() is None
        finally:
            process.kill()
    assert counts == sorted(counts)


def test_i18_p2_text_and_numbers_that_no_table_takes_cost_no_record(tmp_path: Path) -> None:
    run = RunDir.create(JobSpec(command=("train.py",)), home=tmp_path)
    with run.lease() as writer:
        writer.begin_attempt(1, at=1, plan={})
        writer.put_ranks(1, [RankFacts(rank=10**30, state="running", node="n\udc80")])
        row = StreamRow(stream="logs/\udcff.log", attempt=1, role="worker", slot=0, instance=0, local="0")
        writer.put_streams([row])
        writer.note_incomplete("a file \udc80 is odd")
        (facts,) = writer.ranks(1)
        assert facts.node == "n?"
        assert [stored.stream for stored in writer.streams(1)] == ["logs/?.log"]
        assert "a file ? is odd" in writer.run().incomplete
