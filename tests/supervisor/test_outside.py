"""A suspension by a queue or by somebody else in the cluster: no failure, no budget, however long; a failure from before it stays one."""

from __future__ import annotations

import time

import msgspec
import pytest

from rankfall.backends.kubernetes.workload import suspension_state
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.backends.protocol import SuspensionState
from rankfall.client import Run
from rankfall.model import JobSpec, SlotFacts
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import Stop, mark_stop
from rankfall.supervisor.external_suspension import WHO, ExternalRelease, ExternalSuspension
from rankfall.supervisor.requests import SuspensionRequest, append_suspension_request, read_suspension
from rankfall.supervisor.supervise import supervise

S = 1_000_000_000
PLACE = ClusterPlan(
    backend="job",
    object="x-a1",
    namespace="n",
    context="c",
    selector="a=b",
    container="main",
    token="t",  # noqa: S106
    bases={"worker": 0},
)
PLAN = Plan(attempt=1, launcher="exec", slots=(), cluster=PLACE)
BAD = {("slot", 0, None)}


class Asked:
    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.count = 0

    def suspension_state(self, plan):
        self.count += 1
        return self.answers.pop(0)


def slot(at: int, number: int = 0) -> SlotFacts:
    return SlotFacts(slot=number, role="worker", state="ended", signal=15, ended_at=at)


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    return RunDir.create(JobSpec(command=("x",)), home=tmp_path / "home")


def suspension(run_dir):
    return read_suspension(run_dir.path, initially=False)


def hold(run_dir, *answers, plan=PLAN) -> tuple[ExternalSuspension, Asked]:
    asked = Asked(*answers)
    return ExternalSuspension(run_dir, plan=plan, backend=asked), asked


def test_launch_s10_a_suspension_that_nobody_here_asked_for_is_one_all_the_same(run_dir):
    watch, asked = hold(run_dir, SuspensionState(state="held", since=100 * S))
    made = watch.began([slot(101 * S)], [], bad=BAD, last=False)
    assert made is not None
    assert made.text == f"suspended by {WHO}"
    found = suspension(run_dir)
    assert found.outside
    # Whoever takes over this attempt comes to the same end.
    assert found.stops(1, [slot(101 * S)], [], bad=BAD)
    assert asked.count == 1


def test_a_failure_from_before_stays_one_and_clocks_may_differ_by_seconds(run_dir):
    watch, _ = hold(run_dir, SuspensionState(state="held", since=200 * S), SuspensionState(state="held", since=102 * S))
    assert watch.began([slot(100 * S)], [], bad=BAD, last=True) is None
    assert not suspension(run_dir).suspended
    assert watch.began([slot(100 * S)], [], bad=BAD, last=True) is not None
    assert suspension(run_dir).stops(1, [slot(100 * S)], [], bad=BAD)


def test_before_the_server_has_said_since_when_it_is_asked_again(run_dir):
    watch, asked = hold(run_dir, SuspensionState(state="held"), SuspensionState(state="held"))
    assert watch.began([slot(100 * S)], [], bad=BAD, last=False) is None
    assert watch.began([slot(100 * S)], [], bad=BAD, last=False) is None
    assert asked.count == 1
    assert watch.began([slot(100 * S)], [], bad=BAD, last=True) is not None


@pytest.mark.parametrize("answer", [None, SuspensionState(state="free"), SuspensionState(state="gone")])
def test_what_is_not_suspended_falls_as_always(run_dir, answer):
    watch, _ = hold(run_dir, answer)
    assert watch.began([slot(1)], [], bad=BAD, last=True) is None
    assert not suspension(run_dir).requests


def test_our_own_stop_and_a_run_on_this_machine_are_never_asked_about(run_dir):
    mark_stop(run_dir.path, 1, Stop(at_ns=1, reason="x"))
    watch, asked = hold(run_dir)
    assert watch.began([slot(2)], [], bad=BAD, last=True) is None
    here, also = hold(run_dir, plan=msgspec.structs.replace(PLAN, cluster=None))
    assert here.began([slot(2)], [], bad=BAD, last=True) is None
    assert here.waits() is None
    assert asked.count + also.count == 0


def test_an_attempt_that_waits_says_for_whom(run_dir):
    watch, asked = hold(run_dir, SuspensionState(state="held", queue="team"), SuspensionState(state="held"))
    assert watch.waits() == "waits for queue team to admit it"
    assert watch.waits() is None
    watch._waits_due = 0.0
    assert watch.waits() == f"is suspended by {WHO}"
    assert asked.count == 2


@pytest.mark.parametrize(
    ("answer", "says", "ended"),
    [
        (None, "waits", False),
        (SuspensionState(state="held"), "waits", False),
        (SuspensionState(state="gone"), "gone", False),
        (SuspensionState(state="free"), "released", True),
        (SuspensionState(state="held", queue="team"), "released", True),
    ],
)
def test_launch_s10_it_ends_when_it_is_released_or_a_queue_can_admit_the_next_attempt(run_dir, answer, says, ended):
    watch, _ = hold(run_dir, SuspensionState(state="held", since=S))
    watch.began([slot(2 * S)], [], bad=BAD, last=True)
    release = ExternalRelease(run_dir, backend=Asked(answer))
    assert release.ended(PLAN) == says
    assert suspension(run_dir).suspended is not ended
    # The cluster is not asked again at once.
    assert release.ended(PLAN) == "waits"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SuspensionState(state="held")),
        ({"spec": {"suspend": False}}, SuspensionState(state="free")),
        ({"metadata": {"uid": "v"}}, SuspensionState(state="gone")),
        ({"metadata": {"uid": "u", "deletionTimestamp": "now"}}, SuspensionState(state="gone")),
        (
            {"metadata": {"uid": "u", "labels": {"kueue.x-k8s.io/queue-name": "q"}}},
            SuspensionState(state="held", queue="q"),
        ),
        (
            {"status": {"conditions": [{"type": "Complete", "status": "True"}]}},
            SuspensionState(state="free"),
        ),
        (
            {
                "status": {
                    "conditions": [
                        7,
                        {"type": "Suspended", "status": "True", "lastTransitionTime": "1970-01-01T00:00:09Z"},
                    ]
                }
            },
            SuspensionState(state="held", since=9 * S),
        ),
        (
            {"status": {"conditions": [{"type": "Suspended", "status": "True", "lastTransitionTime": "soon"}]}},
            SuspensionState(state="held"),
        ),
    ],
)
def test_what_a_workload_says_of_itself(fields, expected):
    item = {"kind": "Job", "metadata": {"uid": "u"}, "spec": {"suspend": True}, **fields}
    assert suspension_state(item, uid="u") == expected


class Suspends(ExternalSuspension):
    """Says of every fall that somebody suspended the job, and of every attempt that a queue holds it."""

    def began(self, slots, ranks, *, bad, last):
        if not bad:
            return None
        made = SuspensionRequest(what="suspend", at=1, by=WHO, outside=True)
        append_suspension_request(self._run_dir.path, made)
        return made

    def waits(self):
        return "waits for queue team to admit it"


TERMINATED = "if os.environ['RANKFALL_ATTEMPT'] == '1': os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)"


@pytest.mark.parametrize("ended", ["released", "gone"])
def test_launch_s10_the_run_goes_on_in_a_new_attempt_without_a_budget_or_ends_as_deleted(bench, monkeypatch, ended):
    monkeypatch.setattr("rankfall.supervisor.attempt.monitor.ExternalSuspension", Suspends)
    looks = []

    def end(self, plan):
        looks.append(plan.attempt)
        if len(looks) < 3:
            return "waits"
        if ended == "released":
            append_suspension_request(
                self._run_dir.path, SuspensionRequest(what="resume", at=time.time_ns(), by=WHO, outside=True)
            )
        return ended

    monkeypatch.setattr(ExternalRelease, "ended", end)
    run_dir, outcome = bench.run(TERMINATED, policies={"max_restarts": 0})
    assert looks[:3] == [1, 1, 1]
    assert f"suspended by {WHO}; to continue: rankfall resume {run_dir.id}" in bench.texts("suspended")
    with run_dir.reader() as reader:
        assert reader.attempts()[0].state == "suspended"
        assert reader.diagnosis(1) is None
    if ended == "gone":
        assert (outcome.state, outcome.attempts) == ("deleted", 1)
    else:
        assert (outcome.state, outcome.attempts) == ("succeeded", 2)


def test_an_attempt_that_a_queue_holds_is_queued(bench, monkeypatch):
    monkeypatch.setattr("rankfall.supervisor.attempt.monitor.ExternalSuspension", Suspends)
    monkeypatch.setattr("rankfall.supervisor.attempt.view._WAIT_FIRST_NS", 0)
    states = []

    def on_event(event):
        if event.kind == "waiting":
            states.append(event.text)

    run_dir = bench.run_dir(bench.spec())
    outcome = supervise(run_dir, on_event=on_event)
    assert outcome.state == "succeeded"
    assert states[0].startswith("waits for queue team to admit it (for ")


def test_a_user_who_suspends_makes_a_suspension_from_outside_their_own(run_dir):
    append_suspension_request(run_dir.path, SuspensionRequest(what="suspend", at=1, by=WHO, outside=True))
    assert Run(run_dir)._hold("suspend", "mine")
    assert not suspension(run_dir).outside
    assert suspension(run_dir).suspended
    assert Run(run_dir)._hold("suspend", "again")
    assert len(suspension(run_dir).requests) == 2
