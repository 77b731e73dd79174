"""Who waits for the hold of a run: a run that has begun outlasts an outage, a standby outlasts the other supervisor, all others are told who it is."""

from __future__ import annotations

import threading

import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.protocol import Cancellation, HeldBy
from rankfall.kube.errors import Unreachable
from rankfall.kube.loop_thread import Abandoned
from rankfall.model import HeldElsewhere, InfrastructureError
from rankfall.supervisor.requests import Control, request_cancel
from rankfall.supervisor.run_events import read_events
from rankfall.supervisor.supervise import supervise
from support.helpers import waits_for
from support.patience import scaled

ALICE = HeldBy(who="alice@laptop pid 7", since="3 min")


class Shared(LocalBackend):
    """Slots of this machine in a run that others may supervise; ``answers`` of the hold come in turn, then it is ours."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)
        self.gone: list[bool] = []
        self.lost = None
        self.blocked = threading.Event()

    def hold(self, run_dir, *, attempts, lost):
        self.lost = lost
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def let_go(self, *, over):
        self.gone.append(over)


class Slow(Shared):
    """A launch that waits for something until its company gives up."""

    def submit(self, plan, *, cancellation: Cancellation):
        cancellation.say("waiting for the earlier job here/train to go: finalizer x/y")
        self.blocked.set()
        while not cancellation.over():
            pass
        raise Abandoned("given up")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("rankfall.supervisor.attended.takeover._LOOK_S", 0.01)
    monkeypatch.setattr("rankfall.supervisor.attended.takeover._AGAIN_S", 0.01)
    monkeypatch.setattr("rankfall.supervisor.attended.takeover._SOON_S", 0.01)


def told(run_dir, kind):
    return [event.text for event in read_events(run_dir.path)[0] if event.kind == kind]


def test_a_standby_says_once_who_supervises_and_takes_over(bench):
    run_dir = bench.run_dir(bench.spec())
    living = HeldBy(who=ALICE.who, since="4 min", alive=True)
    backend = Shared(ALICE, HeldBy(), living, living)
    ready = []
    outcome = supervise(run_dir, backend=backend, standby=True, on_lease=lambda: ready.append(1))
    assert outcome.state == "succeeded"
    assert told(run_dir, "waiting") == [
        "alice@laptop pid 7 supervises this run (for 3 min); this process takes over when that one ends"
    ]
    assert (backend.gone, ready) == ([True], [1])


def test_a_standby_follows_the_attempt_that_goes_on_elsewhere(bench):
    leave = bench.folder / "leave"
    run_dir = bench.run_dir(bench.spec(f"print('hello', rank, flush=True); {waits_for(leave)}"))
    mine = LocalBackend()
    with run_dir.lease() as writer:
        plan = mine.plan(run_dir.spec, run_dir, 1)
        writer.begin_attempt(1, at=1, plan=plan.row())
        mine.submit(plan)
    control = Control()
    seen = []

    def on_event(event):
        seen.append(event.kind)
        if event.kind == "rank":
            control.release()

    outcome = supervise(run_dir, backend=Shared(*[ALICE] * 2000), standby=True, control=control, on_event=on_event)
    control.close()
    assert outcome.state == "running"
    assert seen[:2] == ["waiting", "rank"]
    with run_dir.reader() as reader:
        assert [facts.rank for facts in reader.ranks(1)] != []
    leave.touch()
    assert supervise(run_dir, backend=mine).state == "succeeded"


def test_without_standby_a_living_supervisor_elsewhere_is_named_and_nothing_is_done(bench):
    run_dir = bench.run_dir(bench.spec())
    backend = Shared(ALICE, HeldBy(who=ALICE.who, since="3 min", alive=True))
    with pytest.raises(HeldElsewhere, match="supervised by alice@laptop pid 7"):
        supervise(run_dir, backend=backend)
    assert backend.gone == [False]
    with run_dir.reader() as reader:
        assert (reader.run().state, reader.newest_attempt()) == ("queued", None)


def test_one_that_was_silent_all_the_time_is_followed_without_standby_too(bench):
    run_dir = bench.run_dir(bench.spec())
    assert supervise(run_dir, backend=Shared(ALICE, ALICE)).state == "succeeded"


def test_a_cancel_cannot_reach_a_supervisor_elsewhere_and_says_so(bench):
    run_dir = bench.run_dir(bench.spec())
    request_cancel(run_dir.path)
    with pytest.raises(HeldElsewhere, match="so it can be cancelled only there"):
        supervise(run_dir, backend=Shared(ALICE, HeldBy(who=ALICE.who, since="3 min", alive=True)), standby=True)


def test_a_cancel_of_a_run_whose_supervisor_elsewhere_is_dead_takes_it_over(bench):
    run_dir = bench.run_dir(bench.spec())
    request_cancel(run_dir.path)
    assert supervise(run_dir, backend=Shared(ALICE, ALICE)).state == "cancelled"


def test_a_standby_can_be_left(bench):
    run_dir = bench.run_dir(bench.spec())
    control = Control()
    control.release()
    outcome = supervise(run_dir, backend=Shared(ALICE), standby=True, control=control)
    assert outcome.state == "running"
    control.close()


def test_launch_s12_a_moments_trouble_does_not_cost_a_run_that_has_not_begun(bench):
    run_dir = bench.run_dir(bench.spec())
    outcome = supervise(run_dir, backend=Shared(Unreachable("lost"), Unreachable("lost")))
    assert outcome.state == "succeeded"
    assert told(run_dir, "waiting") == ["the supervisor waits for the cluster: lost"]


def test_a_run_that_has_not_begun_ends_with_the_error_when_it_lasts(bench, monkeypatch):
    monkeypatch.setattr("rankfall.supervisor.attended.takeover._PATIENCE_S", 0.0)
    run_dir = bench.run_dir(bench.spec())
    outcome = supervise(run_dir, backend=Shared(Unreachable("no answer")))
    assert (outcome.state, outcome.code) == ("failed", 69)
    with run_dir.reader() as reader:
        assert reader.run().reason == "the run could not start: no answer"


def test_a_run_that_has_begun_waits_for_the_cluster(bench):
    run_dir = bench.run_dir(bench.spec())
    with run_dir.lease() as writer:
        plan = LocalBackend().plan(run_dir.spec, run_dir, 1)
        writer.begin_attempt(1, at=1, plan=plan.row())
    ready = []
    backend = Shared(Unreachable("no answer"), Unreachable("no answer"))
    outcome = supervise(run_dir, backend=backend, on_lease=lambda: ready.append(1))
    assert outcome.state == "succeeded"
    assert told(run_dir, "waiting") == ["the supervisor waits for the cluster: no answer"]
    assert ready == [1]


def test_what_does_not_pass_by_itself_ends_the_supervisor_and_not_the_run(bench):
    run_dir = bench.run_dir(bench.spec())
    with run_dir.lease() as writer:
        writer.begin_attempt(1, at=1, plan=LocalBackend().plan(run_dir.spec, run_dir, 1).row())
    with pytest.raises(InfrastructureError, match="no right"):
        supervise(run_dir, backend=Shared(InfrastructureError("no right")))
    with run_dir.reader() as reader:
        assert reader.run().ended is None


def test_a_run_that_is_lost_to_another_supervisor_is_let_go_of_and_its_slots_live_on(bench):
    leave = bench.folder / "leave"
    run_dir = bench.run_dir(bench.spec(waits_for(leave)))
    control = Control()
    backend = Shared()

    def on_event(event):
        if event.kind == "rank":
            assert backend.lost is not None
            backend.lost("this run is supervised elsewhere now: by bob")
            control.hand_over()

    outcome = supervise(run_dir, backend=backend, control=control, on_event=on_event)
    control.close()
    assert outcome.state == "running"
    assert backend.gone == [False]
    assert told(run_dir, "released") == ["this run is supervised elsewhere now: by bob"]
    leave.touch()
    assert supervise(run_dir).state == "succeeded"


@pytest.mark.parametrize("wish", ["cancel", "release"])
def test_a_launch_that_waits_says_for_what_and_can_be_left(bench, wish):
    run_dir = bench.run_dir(bench.spec())
    control = Control()
    backend = Slow()

    def ask():
        backend.blocked.wait(scaled(20))
        control.cancel("Ctrl-C") if wish == "cancel" else control.release()

    asking = threading.Thread(target=ask)
    asking.start()
    outcome = supervise(run_dir, backend=backend, control=control)
    asking.join()
    control.close()
    assert outcome.state == ("cancelled" if wish == "cancel" else "running")
    assert told(run_dir, "waiting") == ["waiting for the earlier job here/train to go: finalizer x/y"]
