"""Plans of attempts: a run that has begun waits for a cluster that does not answer, and tells why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankfall.kube.errors import Unreachable
from rankfall.model import InfrastructureError, JobSpec, Refused
from rankfall.store import AttemptRow
from rankfall.supervise.planning import Planner

ROW = AttemptRow(attempt=1, plan={"attempt": 1, "launcher": "plain", "slots": []})


class Backend:
    """Answers in turn; an error is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.cleared = 0

    def clear(self, plan):
        assert plan.attempt == 1
        self.cleared += 1

    def plan(self, spec, run_dir, number, *, exclude):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return (answer, number, tuple(exclude))


class Desk:
    """Everything else that a planner talks to."""

    def __init__(self, backend):
        self.said, self.states, self.notes, self.waits = [], [], [], 0
        self.give_up_after = 99
        ledger = SimpleNamespace(
            set_run=lambda state, **_: self.states.append(state), note=self.notes.append, flush=lambda: None
        )
        self.planner = Planner(
            SimpleNamespace(spec=JobSpec(command=("x",))),
            backend=backend,
            ledger=ledger,
            say=self.said.append,
            control=SimpleNamespace(wait=self.wait),
            over=lambda: self.waits >= self.give_up_after,
        )

    def wait(self, seconds):
        assert seconds > 0
        self.waits += 1


def test_a_later_attempt_waits_for_a_cluster_that_does_not_answer_and_says_so_once():
    backend = Backend(Unreachable("no answer"), Unreachable("no answer"), Unreachable("refused"), "plan")
    desk = Desk(backend)
    assert desk.planner.plan(2, before=ROW, exclude=["n1"]) == ("plan", 2, ("n1",))
    assert desk.said == ["attempt 2 waits: no answer", "attempt 2 waits: refused"]
    assert (desk.waits, desk.states, backend.cleared) == (3, ["restarting", "restarting"], 4)


@pytest.mark.parametrize(
    ("number", "error"),
    [(1, Unreachable("no answer")), (2, Refused("no such field")), (2, Unreachable("bad", tls=True))],
)
def test_what_does_not_pass_by_itself_and_a_first_attempt_end_at_once(number, error):
    desk = Desk(Backend(error))
    assert desk.planner.plan(number, before=ROW if number > 1 else None, exclude=()) is None
    assert desk.planner.refusal == error.message
    assert desk.waits == 0


def test_a_wish_ends_the_wait():
    desk = Desk(Backend(*(Unreachable("no answer") for _ in range(9))))
    desk.give_up_after = 2
    assert desk.planner.plan(2, before=None, exclude=()) is None
    assert desk.waits == 2


def test_what_does_not_go_after_a_cancel_is_said_and_noted():
    class Stuck(Backend):
        def clear(self, plan):
            raise InfrastructureError("pod p is still going")

    desk = Desk(Stuck())
    desk.planner.remove(ROW)
    assert desk.said == desk.notes == ["pod p is still going"]
