"""One attempt observed from its directory: records, streams, counters, locks."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
import uuid
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest

from rankfall.evidence.attempt import evidence_set
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.readers.kernel_log import read_kernel
from rankfall.model import JobSpec
from rankfall.render.summary import summary
from rankfall.rundir import RunDir
from rankfall.rundir.streams.content import lock_is_free
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.flyte_errors import document

NOW = time.time_ns()
ROW = struct.Struct("<QQqQB7x")


class Scene:
    """A run directory written by hand, as wrapper and hook would write it."""

    def __init__(self, home: Path) -> None:
        self.spec = JobSpec(command=("train.py",), nnodes=2, nproc_per_node=2)
        self.run = RunDir.create(self.spec, home=home)
        self.run.records_dir.mkdir(parents=True, exist_ok=True)
        for slot in range(2):
            self.folder(slot).mkdir(parents=True)
            self.run.stream_dir(1, "worker", slot, 0).mkdir(parents=True)

    def folder(self, slot: int) -> Path:
        return self.run.slot_dir(1, "worker", slot)

    def record(self, kind: str, slot: int, *, at: float = 0.0, mtime: float | None = None, **fields) -> None:
        stamp = NOW + round(at * 1e9)
        data = {"schema": "rankfall.record/1", "id": uuid.uuid4().hex, "kind": kind, "run": self.run.id, "attempt": 1}
        data |= {"slot": slot, "role": "worker", "node": f"node{slot}", "at_ns": stamp, "writer": "wrapper"} | fields
        path = self.run.records_dir / f"{kind}-a1-worker-{slot}-{data['id']}.json"
        path.write_text(json.dumps(data))
        written = stamp if mtime is None else NOW + round(mtime * 1e9)
        os.utime(path, ns=(written, written))

    def start(self, rank: int, *, writer: str = "hook", **fields) -> None:
        slot = rank // 2
        self.record(
            "start", slot, rank=rank, local_rank=rank % 2, group_rank=slot, pid=1000 + rank, ordinal=rank % 2,
            local_world_size=2, world_size=4, writer=writer, **fields,
        )  # fmt: skip

    def end(self, rank: int, at: float, **info) -> None:
        self.record("end", rank // 2, at=at, pid=1000 + rank, rank=rank, exit={"how": "pidfd", **info})

    def error(self, rank: int, text: str, at: float, **fields) -> None:
        kind, _, message = text.partition(": ")
        error = {"types": [kind], "chain": [message], "message": message, "raised_ns": NOW + round(at * 1e9)}
        self.record("error", rank // 2, at=at, pid=1000 + rank, rank=rank, writer="hook", error=error, **fields)

    def lines(self, slot: int, name: str, text: bytes, at: float) -> None:
        path = self.run.stream_dir(1, "worker", slot, 0) / f"{name}.log"
        offset = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(text)
        index = path.with_suffix(".idx")
        with index.open("ab") as file:
            if not file.tell():
                file.write(b"RFIDX1\0\0")
            file.write(ROW.pack(offset, 0, NOW + round(at * 1e9), 0, 1))

    def begin(self) -> None:
        for slot in range(2):
            self.record("slot_start", slot)
        for rank in range(4):
            self.start(rank)

    def finish(self, *codes: int, oom: int = 0) -> None:
        for slot, code in enumerate(codes):
            self.record("slot_end", slot, at=9, exit={"code": code}, oom_kills=oom)

    def observer(self) -> AttemptObserver:
        return AttemptObserver(self.run, spec=self.spec, attempt=1)

    def verdict(self):
        observer = self.observer()
        observer.poll(NOW)
        return diagnose(observer.case()).verdict


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    made.begin()
    return made


def test_records_and_ends_make_facts_and_a_verdict(scene):
    scene.error(3, "ValueError: bad", at=1)
    for rank in (0, 1, 2):
        scene.error(rank, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=1.2)
        scene.end(rank, 2, code=1)
    scene.end(3, 1.5, code=1)
    scene.finish(1, 1)
    observer = scene.observer()
    delta = observer.poll(NOW)
    assert len([r for r in delta.records if r.kind == "start"]) == 4
    assert delta.failures >= 4
    assert observer.poll(NOW).changed is False
    case = observer.case()
    assert case.ended
    assert not case.succeeded
    assert {r.rank: r.exit_code for r in case.ranks} == dict.fromkeys(range(4), 1)
    verdict = diagnose(case).verdict
    assert (verdict.rank, verdict.slot, verdict.node, verdict.cause.confidence) == (3, 1, "node1", "proven")


def test_success_needs_every_slot(scene):
    for rank in range(4):
        scene.end(rank, 1, code=0)
    scene.finish(0)
    observer = scene.observer()
    observer.poll(NOW)
    assert not observer.case().succeeded
    scene.record("slot_end", 1, exit={"code": 0})
    observer.poll(NOW)
    assert observer.case().succeeded


def test_incremental_and_afterwards_see_the_same(scene):
    live = scene.observer()
    live.poll(NOW)
    scene.lines(1, "1.err", b"Traceback (most recent call last):\n  File", at=0.5)
    live.poll(NOW)
    scene.lines(1, "1.err", b' "t.py", line 1, in f\nKeyError: 3\n', at=0.6)
    live.poll(NOW)
    scene.end(3, 1, code=1)
    scene.finish(1, 1)
    live.poll(NOW)
    after = scene.observer()
    after.poll(NOW)
    assert {e.id for e in live.case().evidence} == {e.id for e in after.case().evidence}
    verdict = diagnose(after.case()).verdict
    assert (verdict.rank, verdict.decisive.where) == (3, "logs/attempt-1/worker-1/0/1.err.log:3")


def test_bytes_of_a_process_belong_to_its_rank(scene):
    scene.lines(0, "1.out", b"hello\n", at=1)
    scene.lines(0, "slot.out", b"hello\n", at=1)
    observer = scene.observer()
    observer.poll(NOW)
    rows = {row.stream.rpartition("/")[2]: row.rank for row in observer.streams()}
    assert rows == {"1.out.log": 1, "slot.out.log": None}


def test_errors_s28_the_counter_of_the_slot_confirms_a_kill(scene):
    scene.end(2, 1, signal=9)
    scene.finish(1, 1, oom=1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.slug) == (2, "host_oom")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Out of memory: Killed process 1002 (python3) total-vm:1kB", ("node_oom", "elsewhere")),
        (
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/job,task=python3,pid=1002,uid=0",
            ("node_oom", "elsewhere"),
        ),
        ("Memory cgroup out of memory: Killed process 1002 (python3) total-vm:1kB", ("host_oom", "no")),
        ("Out of memory: Killed process 999 (chrome) total-vm:1kB", ("host_oom", "no")),
    ],
)
def test_the_kernels_line_says_whose_memory_ran_out_and_not_the_counter(scene, monkeypatch, tmp_path, line, expected):
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    path = tmp_path / "kmsg"
    path.write_text(f"3,3,{(time.time_ns() - boot) // 1000};{line}\n")
    monkeypatch.setattr(evidence_set, "read_kernel", partial(read_kernel, path=path))
    scene.end(2, 1, signal=9)
    scene.finish(1, 1, oom=1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.confidence) == (2, "proven")
    assert (verdict.cause.slug, verdict.retry) == expected


@pytest.mark.parametrize(
    ("counted", "raised", "blamed"),
    [
        (1, False, (None, 1, "host_oom")),
        (0, False, (None, 1, "killed_unknown")),
        (1, True, (2, 1, "user_code_exception")),
    ],
)
def test_errors_s28_the_counter_confirms_a_kill_of_what_had_started_the_ranks(scene, counted, raised, blamed):
    if raised:
        scene.error(2, "KeyError: vocab", at=1)
        scene.end(2, 1.1, code=1)
    for rank in (2, 3)[raised:]:
        scene.end(rank, 1.5, signal=15, ours=True)
    scene.record("slot_end", 1, at=1.4, exit={"signal": 9, "how": "wait"}, oom_kills=counted)
    for rank in (0, 1):
        scene.error(rank, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=2.5)
        scene.end(rank, 2.6, code=1)
    scene.record("slot_end", 0, at=3, exit={"code": 1})
    verdict = scene.verdict()
    assert (verdict.rank, verdict.slot, verdict.cause.slug) == blamed


@pytest.mark.parametrize(
    ("frames", "expected", "shown"),
    [
        ('  File "/job/train.py", line 7 in main\n', (2, "rank_stuck"), "rank 2 stands at train.py:main:7"),
        # It may wait for the ranks that left.
        (
            '  File "/py/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n  File "/job/train.py", line 7 in main\n',
            (None, "unknown"),
            "rank 2 waits in all_reduce at train.py:main:7",
        ),
    ],
)
def test_the_only_rank_that_has_not_ended_shows_where_it_hangs(scene, frames, expected, shown):
    for rank in (0, 1, 3):
        scene.end(rank, 1, code=0)
    stack = f'Stack (most recent call first):\n{frames}  File "/job/train.py", line 9 in <module>\n'
    scene.record("stacks", 1, at=5, pid=1002, rank=2, stacks=stack)
    observer = scene.observer()
    observer.poll(NOW)
    case = observer.case(hung=True)
    verdict = diagnose(case).verdict
    assert (verdict.rank, verdict.cause.slug) == expected
    assert shown in [piece.line for piece in case.evidence]


CHILD = "CalledProcessError: Command 'sort' died with <Signals.SIGKILL: 9>."


@pytest.mark.parametrize(
    ("counted", "text", "slug"),
    [
        (1, CHILD, "host_oom"),
        (1, "BrokenProcessPool: A process in the process pool was terminated abruptly", "host_oom"),
        (0, CHILD, "user_code_exception"),
        (1, "KeyError: vocab", "user_code_exception"),
    ],
)
def test_a_rank_that_ended_because_its_child_was_killed_for_memory_is_out_of_memory(scene, counted, text, slug):
    scene.error(2, text, at=1)
    scene.end(2, 1.2, code=1)
    for rank in (0, 1, 3):
        scene.error(rank, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=1.3)
        scene.end(rank, 2, code=1)
    scene.finish(1, 1, oom=counted)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.slug) == (2, slug)


def test_a_line_about_a_child_that_was_killed_is_not_the_end_of_its_rank(scene):
    scene.lines(1, "0.out", f"retried after {CHILD}\n".encode(), at=0.5)
    scene.error(2, "KeyError: vocab", at=1)
    for rank in range(4):
        scene.end(rank, 1.2, code=1)
    scene.finish(1, 1, oom=1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.slug) == (2, "user_code_exception")


def test_errors_s18_a_signal_to_the_slot_explains_its_ranks(scene):
    scene.record("kill", 1, at=1, pid=77, exit={"signal": 15, "how": "received", "sender_pid": 4, "sender": "kubelet"})
    for rank in (2, 3):
        scene.end(rank, 1.1, signal=15)
    scene.finish(1, 1)
    verdict = scene.verdict()
    assert (verdict.cause.slug, verdict.slot, verdict.rank) == ("external_signal", 1, None)
    assert "kubelet" in verdict.decisive.line


def test_errors_s22_torchruns_own_stop_is_not_a_foreign_signal(scene):
    scene.error(0, "ValueError: bad", at=1)
    scene.end(0, 1.1, code=1)
    scene.lines(0, "slot.err", b"W1 api.py:1] Sending process 1001 closing signal SIGTERM\n", at=1.2)
    scene.end(1, 1.3, signal=15)
    scene.finish(1, 1)
    observer = scene.observer()
    observer.poll(NOW)
    assert {r.rank: r.killed_by for r in observer.ranks()}[1] == "agent"


def test_errors_s24_records_of_another_run_or_attempt_are_ignored(scene):
    scene.record("error", 0, pid=1000, rank=0, error={"types": ["MemoryError"]}, run="other-000000")
    scene.record("error", 0, pid=1000, rank=0, error={"types": ["MemoryError"]}, attempt=2)
    scene.error(1, "ValueError: bad", at=1)
    scene.end(1, 2, code=1)
    scene.finish(1, 1)
    assert scene.verdict().rank == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"id": 3, "kind": "error"}', b"\xff", b"x" * ((1 << 20) + 1)])
def test_errors_s14_a_damaged_record_is_missing_evidence_and_no_crash(scene, data):
    (scene.run.records_dir / "error-a1-worker-0-bad.json").write_bytes(data)
    scene.error(1, "ValueError: bad", at=1)
    scene.end(1, 2, code=1)
    scene.finish(1, 1)
    verdict = scene.verdict()
    assert verdict.rank == 1
    assert any("error-a1-worker-0-bad.json" in text for text in verdict.missing)


def test_a_clock_that_is_off_is_noticed_and_its_times_are_told_by_ours(tmp_path):
    scene = Scene(tmp_path)
    scene.record("slot_start", 0)
    scene.record("slot_start", 1, at=-90, mtime=0)
    for rank in range(2):
        scene.start(rank)
    for rank in (2, 3):
        scene.start(rank, at=-90, mtime=0)
    scene.error(0, "ValueError: first by this machine's clock", at=1)
    scene.error(2, "KeyError: later, with a clock that is 90 s behind", at=-85, mtime=5)
    for rank in range(4):
        scene.end(rank, 6, code=1)
    scene.finish(1, 1)
    observer = scene.observer()
    observer.poll(NOW)
    verdict = diagnose(observer.case()).verdict
    assert any("the clock of slot 1 is 90 s behind" in words for words in verdict.missing)
    # 5 s by this machine's clock, so the other was first, and the two are shown as they were.
    times = {e.rank: (e.at, e.uncertainty_s) for e in verdict.evidence if e.source == "record"}
    assert (verdict.rank, verdict.cause.confidence) == (0, "proven")
    later = datetime.fromisoformat(times[2][0]) - datetime.fromisoformat(times[0][0])
    assert abs(later.total_seconds() - 4) <= times[2][1] < 0.5


def test_a_wrapper_that_is_gone_without_an_end_is_a_lost_slot(scene):
    held = os.open(scene.folder(1) / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    observer = scene.observer()
    observer.poll(NOW)
    assert observer.slots()[1].state == "running"
    os.close(held)
    observer.poll(NOW)
    assert observer.slots()[1].state == "lost"
    scene.record("slot_end", 0, exit={"code": 1})
    observer.poll(NOW)
    verdict = diagnose(observer.case()).verdict
    assert (verdict.scope, verdict.slot, verdict.cause.slug) == ("slot", 1, "killed_unknown")


def test_a_lock_that_is_not_there_is_not_free(tmp_path):
    assert not lock_is_free(tmp_path / "lock")


def test_steps_count_as_life_and_reach_the_facts(scene):
    folder = scene.folder(0) / "progress"
    folder.mkdir(exist_ok=True)
    (folder / "1.json").write_text('{"step": 41, "phase": "step"}')
    (folder / "9.json").write_text("{torn")
    observer = scene.observer()
    observer.poll(NOW)
    assert {r.rank: r.step for r in observer.ranks()}[1] == 41
    assert observer.last_activity >= (folder / "1.json").stat().st_mtime_ns


def test_errors_s26_virtual_local_ranks_are_still_told_apart(tmp_path):
    scene = Scene(tmp_path)
    for rank in range(4):
        slot = rank // 2
        scene.record(
            "start", slot, rank=rank, local_rank=0, group_rank=slot, pid=1000 + rank, ordinal=rank % 2,
            local_world_size=2, writer="hook",
        )  # fmt: skip
    observer = scene.observer()
    observer.poll(NOW)
    assert [r.local_rank for r in observer.ranks()] == [0, 1, 0, 1]


def test_the_wrappers_view_replaces_nothing_that_the_hook_said(scene):
    scene.start(0, writer="wrapper")
    observer = scene.observer()
    observer.poll(NOW)
    assert [r.hook for r in observer.ranks() if r.rank == 0] == ["loaded"]


def test_absent_hooks_are_missing_evidence(tmp_path):
    scene = Scene(tmp_path)
    for rank in range(4):
        scene.start(rank, writer="wrapper")
        scene.end(rank, 1, code=1)
    scene.finish(1, 1)
    assert any("hook was not loaded" in text for text in scene.verdict().missing)


KMSG = (
    "6,1,{old};Memory cgroup out of memory: Killed process 1002 (python3) total-vm:1kB\n",
    "12,2,{new};Memory cgroup out of memory: Killed process 1003 (python3) forged by a job\n",
    "3,3,{new};Memory cgroup out of memory: Killed process 1002 (python3) total-vm:1kB, anon-rss:2kB\n",
)


@pytest.mark.parametrize("number", range(3))
def test_only_new_lines_of_the_kernel_itself_count(tmp_path, number):
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    new = (time.time_ns() - boot) // 1000
    path = tmp_path / "kmsg"
    path.write_text(KMSG[number].format(old=new - 10_000_000, new=new))
    lines, problem = read_kernel(default_catalogue(), since=time.time_ns() - 5 * 10**9, path=path)
    assert problem is None
    assert [(line.pid, line.hit.signature.slug) for line in lines] == ([(1002, "host_oom")] if number == 2 else [])


def test_a_kernel_log_that_may_not_be_read_is_said(tmp_path):
    lines, problem = read_kernel(default_catalogue(), since=0, path=tmp_path / "nothing")
    assert lines == []
    assert "kernel log" in problem


def test_an_exit_that_somebody_caught_is_no_cause(scene):
    ask = {"types": ["SystemExit"], "chain": ["3"], "exit_code": 3}
    scene.record("error", 0, pid=1000, rank=0, writer="hook", error=ask)
    scene.record("error", 1, pid=1002, rank=2, writer="hook", error=ask)
    scene.end(0, 2, code=0)
    scene.end(2, 2, code=3)
    scene.finish(1, 1)
    observer = scene.observer()
    observer.poll(NOW)
    assert [e.rank for e in observer.case().evidence if e.source == "record"] == [2]


def test_errors_s37_records_of_a_thousand_ranks_with_much_to_say_are_read_and_bounded(tmp_path):
    ranks, each = 1024, 20_000
    scene = Scene(tmp_path)
    scene.spec = JobSpec(command=("train.py",), nnodes=ranks // 2, nproc_per_node=2)
    for slot in range(ranks // 2):
        scene.record("slot_start", slot)
        for rank in (2 * slot, 2 * slot + 1):
            scene.start(rank)
            late = 0.0 if rank == 700 else 5.0
            text = "ValueError: bad sample" if rank == 700 else "RuntimeError: Connection closed by peer [10.0.0.1]:5"
            scene.error(rank, text + " " + "x" * each, at=1 + late)
            scene.end(rank, 2 + late, code=1)
        scene.record("slot_end", slot, at=9, exit={"code": 1})
    observer = scene.observer()
    observer.poll(NOW)
    case = observer.case()
    assert len(case.ranks) == ranks
    # What is kept of a record is bounded, however much it says.
    assert max(len(piece.line) for piece in case.evidence) < each // 2
    verdict = diagnose(case).verdict
    assert (verdict.rank, verdict.cause.slug) == (700, "user_code_exception")
    assert len(json.dumps(msgspec.to_builtins(verdict))) < 1_000_000


def test_errors_s5_a_record_that_comes_after_everything_has_ended_is_still_the_answer(scene):
    for rank in (0, 1, 3):
        scene.error(rank, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=1.2)
    for rank in range(4):
        scene.end(rank, 2, code=1)
    scene.finish(1, 1)
    observer = scene.observer()
    observer.poll(NOW)
    before = diagnose(observer.case()).verdict
    assert before.cause.slug != "user_code_exception"
    scene.error(2, "KeyError: 'vocab'", at=1, mtime=7)
    assert observer.poll(NOW).changed
    after = diagnose(observer.case()).verdict
    assert (after.rank, after.cause.slug, after.cause.confidence) == (2, "user_code_exception", "proven")
    assert {item.rank for item in after.consequences} == {0, 1, 3}


def test_errors_s17_of_a_slot_that_only_says_failed_the_records_are_still_read(scene):
    # The slot ended before anybody looked, and its end says no more than that something in it failed.
    scene.error(2, "FileNotFoundError: no such shard", at=1)
    scene.finish(0, 1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.slot) == (2, 1)
    assert verdict.decisive is not None
    assert "no such shard" in verdict.decisive.line


def test_errors_s8_error_files_of_flyte_speak_where_nobody_else_did(scene):
    scene.finish(1, 1)
    folder = scene.run.records_dir / "errors"
    folder.mkdir()
    (folder / "error-1.pb").write_bytes(document("ValueError: bad thing", at=NOW + 2 * 10**9))
    (folder / "error-2.pb").write_bytes(b"\x0a\x09")
    observer = scene.observer()
    observer.poll(NOW)
    verdict = diagnose(observer.case()).verdict
    assert (verdict.rank, verdict.decisive.line) == (None, "ValueError: bad thing")
    assert any("error-2.pb is damaged" in text for text in verdict.missing)
    scene.error(3, "KeyError: 'vocab'", 1.0)
    observer.poll(NOW)
    verdict = diagnose(observer.case()).verdict
    assert (verdict.rank, verdict.decisive.line) == (3, "KeyError: 'vocab'")


def test_errors_s8_records_of_a_newer_writer_are_read_as_far_as_understood_and_said(scene):
    scene.error(3, "ValueError: bad thing", 1.0, schema="rankfall.record/2", colour="blue", more={"deep": [1]})
    scene.record("novelty", 1, schema="rankfall.record/2")
    observer = scene.observer()
    observer.poll(NOW)
    verdict = diagnose(observer.case()).verdict
    assert (verdict.rank, verdict.decisive.line) == (3, "ValueError: bad thing")
    assert any("unknown fields are ignored" in text for text in verdict.missing)
    assert any("newer than this reader, and was not understood" in text for text in verdict.missing)


@pytest.mark.parametrize(
    ("out", "err", "expected"),
    [
        (b"step 5 loss 0.2\n", b"ERROR: 3 of 8 shards are damaged\nbye\n", "ERROR: 3 of 8 shards are damaged"),
        # stderr first, then stdout; without such a line the code alone is shown.
        (b"FATAL: no shard left\n", b"run.sh: cannot open lock\n", "run.sh: cannot open lock"),
        (b"FATAL: no shard left\n", b"step 5\n", "FATAL: no shard left"),
        (b"step 5\n", b"WARNING: failed to read the cache, retry\n", None),
        (b"x" * 9_000 + b"error: inside a long line\n", b"", None),
    ],
)
def test_the_last_error_of_a_rank_that_ended_with_a_code_is_the_telling_line(scene, out, err, expected):
    """Other ranks lose it; one of them prints an error as well, and rank 0 ends with success."""
    scene.lines(1, "1.out", out, at=1)
    scene.lines(1, "1.err", err, at=1)
    scene.lines(1, "0.err", b"ERROR: cannot go on\n", at=1.3)
    scene.end(3, 1.2, code=3)
    for rank in (1, 2):
        scene.error(rank, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=1.3)
        scene.end(rank, 2, code=1)
    scene.end(0, 2, code=0)
    scene.finish(1, 1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.slug) == (3, "user_exit")
    assert verdict.decisive.line == (expected or "rank 3 (pid 1003) ended: exit code 3")
    assert any(text.startswith("a message of the program") for text in verdict.missing) is (expected is None)


@pytest.mark.parametrize(("ended", "worked", "quoted"), [(9, 1, True), (9, 6, False), (9, 8.9, True), (60, 1, False)])
def test_an_error_long_before_the_end_or_before_further_work_is_not_quoted(scene, ended, worked, quoted):
    """Lines of work at the very end were in a buffer."""
    scene.lines(1, "1.err", b"ERROR: metrics server is away\n", at=3)
    scene.lines(1, "1.err", b"using a file\n", at=3.1)
    scene.lines(1, "1.out", b"step 4 loss 0.3\n", at=0.5)
    scene.lines(1, "1.out", b"step 5 loss 0.2\n", at=worked)
    scene.lines(1, "1.out", b"evaluation\n", at=worked + 0.01)
    scene.end(3, ended, code=3)
    for rank in range(3):
        scene.end(rank, ended + 2, code=0)
    scene.record("slot_end", 0, at=ended + 3, exit={"code": 0})
    scene.record("slot_end", 1, at=ended + 3, exit={"code": 1})
    verdict = scene.verdict()
    assert (verdict.rank, verdict.cause.slug) == (3, "user_exit")
    assert ("metrics server" in verdict.decisive.line) is quoted


def test_a_last_error_explains_no_rank_with_an_exception_or_success(scene):
    for rank in range(4):
        scene.lines(rank // 2, f"{rank % 2}.err", b"ERROR: cannot go on\n", at=1)
        scene.end(rank, 2, code=int(rank == 3))
    scene.error(3, "KeyError: 'width'", at=1)
    scene.finish(0, 1)
    verdict = scene.verdict()
    assert (verdict.rank, verdict.decisive.line) == (3, "KeyError: 'width'")


def test_the_progress_that_only_one_rank_prints_has_its_time(scene):
    scene.lines(0, "0.out", b"step 4 loss 0.3\nstep 5 loss 0.2\n", at=3)
    scene.lines(0, "0.out", b"waiting\n", at=8)
    observer = scene.observer()
    observer.poll(NOW)
    worked = {facts.rank: facts.worked_at for facts in observer.case().ranks}
    assert worked == {0: NOW + 3_000_000_000, 1: None, 2: None, 3: None}


def test_a_success_says_which_ranks_had_raised(scene):
    """As a pipe to tee hides it; a rank that ended with a code of its own, and the text of an error, are none."""
    scene.error(1, "RuntimeError: Connection closed by peer [1.2.3.4]:5", at=0.9)
    scene.error(3, "KeyError: 'width'", at=1)
    scene.error(0, "SystemExit: 0", at=1)
    scene.lines(1, "0.err", b"ValueError: caught\n", at=1)
    for rank in range(4):
        scene.end(rank, 2, code=0)
    scene.finish(0, 0)
    verdict = scene.verdict()
    assert (verdict.state, verdict.cause.slug, verdict.rank) == ("succeeded", "unknown", None)
    assert [(proof.rank, proof.line.partition(":")[0]) for proof in verdict.evidence] == [
        (3, "KeyError"),
        (1, "RuntimeError"),
    ]
    assert summary(verdict).endswith(" succeeded, although rank 3 raised KeyError and 1 other rank raised one too.")
