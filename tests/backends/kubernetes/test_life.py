"""How a slot stands, by the journal of its pod: what a supervisor waits for, and what it gives up."""

from __future__ import annotations

import time

import msgspec
import pytest

from backends.kubernetes.made import slot_of
from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.plan import Plan, SlotPlan
from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.marks import Stop, abandoned, mark_stop
from rankfall.rundir.cluster.pod_facts import Condition, ContainerFact, PodFact

RUNNING = ContainerFact(state="running")
ENDED = ContainerFact(state="terminated", exit_code=0)


@pytest.mark.parametrize(
    ("fields", "life"),
    [
        (None, "absent"),
        ({"phase": "Pending"}, "starting"),
        ({"main": ContainerFact(state="waiting")}, "starting"),
        ({"main": RUNNING}, "running"),
        # Its last words are still being read.
        ({"main": ENDED}, "running"),
        ({"main": ENDED, "log": "complete"}, "ended"),
        ({"main": RUNNING, "gone": True}, "running"),
        ({"main": RUNNING, "gone": True, "log": "lost"}, "dead"),
        ({"phase": "Failed", "log": "none"}, "dead"),
        ({"main": RUNNING, "deleting": "2026-11-21T16:00:00Z"}, "running"),
        # Nobody says that it has ended, and nobody will.
        ({"main": RUNNING, "deleting": "2026-11-21T16:00:00Z", "overdue": True}, "dead"),
    ],
)
def test_how_a_slot_stands(tmp_path, fields, life):
    run = RunDir.create(JobSpec(name="job", command=("train.py",)), home=tmp_path)
    slot = slot_of(run)
    plan = Plan(attempt=1, launcher="exec", slots=(slot,))
    if fields is not None:
        writer = JournalWriter(journal_path(run.path, 1))
        writer.add(PodFact(seen_ns=1, name="job-0", uid="u", slot=0, **fields))
        writer.close()
    backend = ClusterBackend()
    assert backend.life(plan, 0) == life
    assert backend.alive(plan, 0) is (life in {"starting", "running"})


def test_a_slot_that_is_started_again_alone_stands_as_the_pod_of_its_start(tmp_path):
    job = JobSpec(name="job", backend="job", command=("work",), launcher="exec", restart_scope="replica")
    run = RunDir.create(job, home=tmp_path)
    folders = {"slot_dir": str(run.slot_dir(1, "worker", 0)), "stream_dir": str(run.stream_dir(1, "worker", 0))}
    slot = SlotPlan(slot=0, role="worker", node="", argv=(), env={}, cwd="", **folders)
    plan = Plan(attempt=1, launcher="exec", slots=(slot,))
    writer = JournalWriter(journal_path(run.path, 1))
    fell = ContainerFact(state="terminated", exit_code=3)
    stamp = "2026-11-21T16:00:0{}Z".format
    writer.add(
        PodFact(seen_ns=1, name="a", uid="a", slot=0, created=stamp(1), main=fell, phase="Failed", log="complete")
    )
    backend = ClusterBackend()
    again = plan.with_start(0, 1)
    assert (backend.life(plan, 0), backend.life(again, 0)) == ("ended", "absent")
    writer.add(PodFact(seen_ns=2, name="b", uid="b", slot=0, created=stamp(2), main=RUNNING))
    writer.close()
    backend.start_again(again, 0)
    assert backend.life(again, 0) == "running"
    assert again.slots[0].slot_dir == str(run.slot_dir(1, "worker", 0, 1))


def test_a_slot_that_never_had_a_pod_is_given_up_when_its_workload_was_told_to_stop(tmp_path):
    run = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=2), home=tmp_path)
    plan = Plan(attempt=1, launcher="exec", slots=(slot_of(run), msgspec.structs.replace(slot_of(run), slot=1)))
    writer = JournalWriter(journal_path(run.path, 1))
    writer.add(PodFact(seen_ns=1, name="job-0", uid="u", slot=0, main=RUNNING))
    writer.close()
    backend = ClusterBackend()
    backend.end(plan, [0, 1], grace=0.0)
    assert [backend.life(plan, slot) for slot in (0, 1)] == ["running", "absent"]
    mark_stop(run.path, 1, Stop(at_ns=time.time_ns(), reason="4 ranks were not there 20 s after the start"))
    backend.end(plan, [0, 1], grace=0.0)
    assert [backend.life(plan, slot) for slot in (0, 1)] == ["running", "dead"]


def test_i19_p3_a_slot_whose_node_stopped_reporting_is_given_up_when_its_grace_time_is_over(tmp_path):
    run = RunDir.create(JobSpec(name="job", command=("train.py",), nnodes=2), home=tmp_path)
    plan = Plan(attempt=1, launcher="exec", slots=(slot_of(run), msgspec.structs.replace(slot_of(run), slot=1)))
    writer = JournalWriter(journal_path(run.path, 1))
    running = ContainerFact(state="running", ready=True)
    for slot, reason in ((0, "ContainersNotReady"), (1, None)):
        ready = Condition(type="Ready", status="False", reason=reason)
        writer.add(
            PodFact(
                seen_ns=1,
                name=f"job-{slot}",
                uid=f"u{slot}",
                slot=slot,
                phase="Running",
                main=running,
                conditions=(ready,),
            )
        )
    writer.close()
    mark_stop(run.path, 1, Stop(at_ns=time.time_ns(), reason="another part of the job failed"))
    ClusterBackend().end(plan, [0, 1], grace=0.0)
    assert abandoned(run.path, 1) == {1}
