"""Slots that are started again alone: what is of which start, on this machine and in pods."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.pods.instance_folders import Instances
from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.evidence.attempt.record_sources import Starts
from rankfall.evidence.cluster.pod_evidence import PodView
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.marks import OWNER_NAME, Identity
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from support.feeding import CHANNEL, record_line

WORKERS = {"command": ("work",), "nnodes": 2, "launcher": "exec", "restart_scope": "replica"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(JobSpec(**WORKERS), home=tmp_path)


@pytest.fixture
def in_pods(tmp_path: Path) -> RunDir:
    return RunDir.create(JobSpec(backend="job", **WORKERS), home=tmp_path)


def record(run: RunDir, kind: str, *, instance: int | None = None, slot: int = 1, **fields: Any) -> None:
    name = f"{kind}-{slot}-{instance}-{fields.get('pod_uid')}"
    own = {"id": name, "kind": kind, "run": run.id, "attempt": 1, "slot": slot, "role": "worker", **fields}
    row = own | {"at_ns": time.time_ns(), **({} if instance is None else {"instance": str(instance)})}
    (run.records_dir / f"{name}.json").write_text(json.dumps(row))


def pod(uid: str, *, second: int, slot: int = 1, **fields: Any) -> PodFact:
    made = f"2026-11-21T16:00:{second:02d}Z"
    return PodFact(seen_ns=second, name=f"job-1-{uid}", uid=uid, slot=slot, created=made, **fields)


def ended(code: int) -> dict[str, Any]:
    main = ContainerFact(state="terminated", exit_code=code, reason="Error")
    return {"phase": "Failed", "main": main, "log": "complete"}


def write(run: RunDir, *pods: PodFact) -> None:
    writer = JournalWriter(journal_path(run.path, 1))
    for one in pods:
        writer.add(one)
    writer.close()


def test_a_later_start_is_nothing_of_the_one_that_is_looked_at(run: RunDir) -> None:
    observer = AttemptObserver(run, spec=run.spec, attempt=1, launcher="exec")
    record(run, "slot_end", instance=0, exit={"code": 3})
    record(run, "slot_start", instance=1)
    observer.poll(time.time_ns())
    facts = observer.slots()[1]
    assert (facts.instance, facts.state, facts.exit_code) == (0, "ended", 3)
    observer.select_start(1, 1)
    assert (observer.slots()[1].state, observer.slots()[1].exit_code) == ("expected", None)
    assert len(observer.poll(time.time_ns()).records) == 1
    facts = observer.slots()[1]
    assert (facts.instance, facts.started_at is not None, facts.exit_code) == (1, True, None)


def test_who_takes_over_reads_nothing_of_an_earlier_start(run: RunDir) -> None:
    record(run, "slot_end", instance=0, exit={"code": 3})
    old = run.stream_dir(1, "worker", 1, 0)
    old.mkdir(parents=True)
    (old / "slot.err.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    observer = AttemptObserver(run, spec=run.spec, attempt=1, launcher="exec", starts={1: 1})
    delta = observer.poll(time.time_ns())
    assert (delta.records, delta.bytes) == ((), 0)
    assert (observer.slots()[1].instance, observer.slots()[1].state) == (1, "expected")
    assert observer.case(only=1).evidence == ()
    assert AttemptObserver(run, spec=run.spec, attempt=1, launcher="exec").poll(time.time_ns()).bytes > 0


def test_a_pod_that_replaced_another_waits_until_it_is_looked_at(in_pods: RunDir) -> None:
    write(
        in_pods,
        pod("b", second=12, phase="Running", main=ContainerFact(state="running")),
        pod("a", second=1, **ended(7)),
    )
    observer = AttemptObserver(in_pods, spec=in_pods.spec, attempt=1, launcher="exec")
    observer.poll(time.time_ns())
    record(in_pods, "slot_start", pod_uid="b")
    record(in_pods, "slot_end", pod_uid="a", exit={"code": 7})
    observer.poll(time.time_ns())
    facts = observer.slots()[1]
    assert (facts.pod, facts.state, facts.exit_code) == ("job-1-a", "ended", 7)
    assert {piece.slot for piece in observer.case(only=1).evidence} <= {1}
    before = set(observer.evidence_of(1))
    observer.select_start(1, 1)
    observer.poll(time.time_ns())
    facts = observer.slots()[1]
    assert (facts.pod, facts.state, facts.instance) == ("job-1-b", "running", 1)
    assert not before & set(observer.evidence_of(1))


def test_a_pod_that_is_not_there_yet_is_no_slot_of_its_predecessor(in_pods: RunDir) -> None:
    write(in_pods, pod("a", second=1, **ended(7)))
    observer = AttemptObserver(in_pods, spec=in_pods.spec, attempt=1, launcher="exec", starts={1: 1})
    observer.poll(time.time_ns())
    assert (observer.slots()[1].state, observer.slots()[1].pod) == ("expected", None)


def test_the_folder_of_a_start_is_that_of_its_pod_also_where_a_pod_never_ran(in_pods: RunDir) -> None:
    write(in_pods, pod("a", second=1), pod("never", second=2), pod("c", second=3))
    view = PodView(in_pods.path, attempt=1)
    starts = Starts(in_pods, attempt=1, numbers={1: 2}, pods=view)
    view.poll()
    parent = in_pods.stream_dir(1, "worker", 1).parent
    for name, uid in ((0, "a"), (1, "c")):
        (parent / str(name)).mkdir(parents=True)
        (parent / str(name) / OWNER_NAME).write_bytes(msgspec.json.encode(Identity(uid=uid, number=0)))
    assert starts.of_folder(1, parent / "1") == "now"
    assert starts.of_folder(1, parent / "0") == "past"
    assert starts.of_folder(1, parent / "9") == "later"
    assert starts.slot_dir("worker", 1) == in_pods.slot_dir(1, "worker", 1, 1)
    assert starts.slot_dir("worker", 0) == in_pods.slot_dir(1, "worker", 0)


def test_the_progress_of_each_pod_has_a_folder_of_its_own(in_pods: RunDir) -> None:
    instances = Instances(in_pods, attempt=1, role_of=in_pods.spec.role_of, token=CHANNEL)
    for number, uid in enumerate(("a", "b")):
        line = record_line(in_pods.id, 1, number, kind="progress", ordinal=0, step=number, role="worker")
        instances.open(1, uid=uid, number=0).push(b"2026-11-21T16:00:00.000000001Z " + line + b"\n")
    instances.close()
    for number in range(2):
        told = in_pods.slot_dir(1, "worker", 1, number) / "progress" / "0.json"
        assert json.loads(told.read_text())["step"] == number


@given(order=st.permutations(range(4)), looked_at=st.integers(0, 5))
def test_pods_are_numbered_as_they_were_made_in_whatever_order_they_were_seen(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], looked_at: int
) -> None:
    run = RunDir.create(JobSpec(backend="job", **WORKERS), home=tmp_path_factory.mktemp("home"))
    write(run, *(pod(f"u{number}", second=number) for number in order))
    view = PodView(run.path, attempt=1)
    view.select_start(1, looked_at)
    view.poll()
    assert [view.number_of(1, f"u{number}") for number in range(4)] == [0, 1, 2, 3]
    assert view.number_of(0, "u1") is None
    assert view.number_of(1, "stranger") is None
    found = view.pods().get(1)
    assert (found.uid if found else None) == (f"u{looked_at}" if looked_at < 4 else None)


def test_slots_of_a_gang_have_no_starts_to_be_told_apart(tmp_path: Path) -> None:
    run = RunDir.create(JobSpec(command=("work",), nnodes=2), home=tmp_path)
    starts = Starts(run, attempt=1, numbers={}, pods=None)
    assert starts.of_record(Record(id="x", kind="start", slot=1, instance="7")) == "now"
    assert starts.of_folder(1, tmp_path / "7") == "now"
