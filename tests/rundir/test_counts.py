"""The numbers of ``status``: slots by what became of them, restarts by cause."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import Cause, Decision, Diagnosis, RankFacts, SlotFacts, Verdict
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.status import ENDED, STOPPED, TOLERATED, is_ready, ranks_started, standing

STATES = st.sampled_from(["expected", "running", "ended", "lost", "unknown"])
NOTES = st.sampled_from([None, STOPPED, ENDED, TOLERATED])


@pytest.mark.parametrize(
    ("facts", "note", "expected"),
    [
        ({"state": "ended", "exit_code": 0}, None, "succeeded"),
        ({"state": "ended", "exit_code": 1}, None, "failed"),
        ({"state": "ended", "signal": 9, "killed_by": "foreign"}, None, "failed"),
        ({"state": "ended", "signal": 15, "killed_by": "wrapper"}, None, "stopped"),
        ({"state": "ended", "exit_code": 0, "killed_by": "wrapper"}, None, "stopped"),
        ({"state": "ended", "exit_code": 1}, TOLERATED, "failed"),
        ({"state": "ended", "exit_code": 1}, ENDED, "stopped"),
        ({"state": "lost"}, None, "failed"),
        ({"state": "lost"}, STOPPED, "stopped"),
        ({"state": "expected"}, None, "active"),
    ],
)
def test_a_slot_counts_as_what_became_of_it(facts, note, expected):
    assert standing(SlotFacts(slot=0, **facts), goes_on=True, note=note) == expected


@given(STATES, st.booleans(), NOTES)
def test_no_slot_is_active_in_an_attempt_that_is_over(state, goes_on, note):
    found = standing(SlotFacts(slot=0, state=state), goes_on=goes_on, note=note)
    assert (found == "active") == (goes_on and state not in {"ended", "lost"})


def test_a_slot_is_ready_when_it_runs_its_platform_agrees_and_its_ranks_have_started():
    running = SlotFacts(slot=0, state="running", recorder=True)
    assert [is_ready(running, ranks=ranks, nproc=2) for ranks in (0, 1, 2)] == [False, False, True]
    assert is_ready(running, ranks=0, nproc=None)
    # Where nothing of ours runs in the pod its own word is all there is.
    assert is_ready(msgspec.structs.replace(running, recorder=False, platform_ready=True), ranks=0, nproc=2)
    assert not is_ready(msgspec.structs.replace(running, platform_ready=False), ranks=2, nproc=2)
    assert not is_ready(msgspec.structs.replace(running, state="ended"), ranks=2, nproc=2)


def test_a_rank_that_claimed_twice_is_counted_once():
    sheets = [
        RankFacts(rank=0, slot=0),
        RankFacts(rank=0, slot=0),
        RankFacts(rank=1, slot=0),
        RankFacts(rank=2, slot=1),
    ]
    assert ranks_started(sheets) == {0: 2, 1: 1}


def test_jobapi_s08_status_counts_slots_and_restarts(run_dir: RunDir, writer: Writer):
    writer.set_run("running", at=1)
    for attempt, action in ((1, "retry"), (2, "retry_elsewhere")):
        writer.begin_attempt(attempt, at=1, plan={})
        cause = Cause.of("host_oom" if attempt == 1 else "segfault", confidence="likely")
        writer.add_verdict(attempt, Diagnosis(verdict=Verdict(cause=cause), fingerprint="x"))
        writer.end_attempt(attempt, at=2, state="failed")
        writer.add_decision(attempt, Decision(action=action, rule="cause_yes", because=""))
    with run_dir.reader() as reader:
        # The second is only meant until the third attempt begins.
        assert reader.status(0).restarts.by_cause == {"host_oom": 1}
    writer.begin_attempt(3, at=1, plan={})
    writer.put_slots(
        3,
        [
            SlotFacts(slot=0, role="worker", state="running", launcher="plain", recorder=True),
            SlotFacts(slot=1, role="worker", state="ended", exit_code=0, launcher="plain"),
        ],
    )
    writer.put_ranks(3, [RankFacts(rank=rank, slot=0, round=0, state="running") for rank in (0, 1)])
    with run_dir.reader() as reader:
        status = reader.status(0)
    assert (status.ready, status.active, status.succeeded, status.failed, status.stopped) == (1, 1, 1, 0, 0)
    assert [slot.ready for slot in status.slots] == [True, False]
    assert (status.restarts.count, status.restarts.limit) == (2, run_dir.spec.policies.max_restarts)
    assert status.restarts.by_cause == {"host_oom": 1, "segfault": 1}
    writer.set_run("failed", at=3)
    with run_dir.reader() as reader:
        assert (reader.status(0).ready, reader.status(0).active) == (0, 0)


def test_a_run_without_attempt_counts_nothing(run_dir: RunDir, writer: Writer):
    writer.set_run("queued", at=1)
    with run_dir.reader() as reader:
        status = reader.status(0)
    assert (status.ready, status.active, status.restarts.count, status.restarts.by_cause) == (0, 0, 0, {})
