"""How a slot stands, by the journal of its pod: what a supervisor waits for, and what it gives up."""

from __future__ import annotations

import pytest

from rankfall.backends.cluster.backend import ClusterBackend
from rankfall.backends.protocol import Plan, SlotPlan
from rankfall.model import JobSpec
from rankfall.observe.cluster.journal import JournalWriter, journal_path
from rankfall.observe.cluster.podfacts import ContainerFact, PodFact
from rankfall.store import RunDir

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
    slot = SlotPlan(
        slot=0,
        role="worker",
        node="",
        argv=(),
        env={},
        cwd="",
        slot_dir=str(run.slot_dir(1, "worker", 0)),
        stream_dir=str(run.stream_dir(1, "worker", 0)),
    )
    plan = Plan(attempt=1, launcher="exec", slots=(slot,))
    if fields is not None:
        writer = JournalWriter(journal_path(run.path, 1))
        writer.add(PodFact(seen_ns=1, name="job-0", uid="u", slot=0, **fields))
        writer.close()
    backend = ClusterBackend()
    assert backend.life(plan, 0) == life
    assert backend.alive(plan, 0) is (life in {"starting", "running"})
