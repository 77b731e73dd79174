"""Plans of attempts: a run that has begun waits for a cluster that does not answer, and tells why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankfall.backends.plan import Plan
from rankfall.kube.errors import Unreachable
from rankfall.model import InfrastructureError, JobSpec, Refused
from rankfall.rundir import AttemptRow
from rankfall.rundir.requests import ResizeRequest, append_resize
from rankfall.supervisor.attended.next_attempt import Planner

ROW = AttemptRow(attempt=1, plan={"attempt": 1, "launcher": "plain", "slots": []})


class Backend:
    """Answers in turn; an error is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.cleared = 0
        self.taken = None

    def deleted_externally(self, plan, *, surely):
        assert surely
        return self.taken

    def clear(self, plan, *, cancellation):
        assert plan.attempt == 1
        self.cleared += 1

    def plan(self, spec, run_dir, number, *, nnodes, exclude):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Plan(attempt=number, launcher="plain", slots=(), notes=(answer, *exclude, str(spec.nnodes), str(nnodes)))


class Desk:
    """Everything else that a planner talks to."""

    def __init__(self, backend, folder, **fields):
        self.said, self.states, self.notes, self.waits = [], [], [], 0
        self.give_up_after = 99
        run_store = SimpleNamespace(
            set_run=lambda state, **_: self.states.append(state), note=self.notes.append, flush=lambda: None
        )
        spec = JobSpec(command=("x",), **fields)
        self.planner = Planner(
            SimpleNamespace(spec=spec, whole_spec=lambda: spec, path=folder),
            backend=backend,
            run_store=run_store,
            say=self.said.append,
            control=SimpleNamespace(wait=self.wait),
            over=lambda: self.waits >= self.give_up_after,
        )

    def wait(self, seconds):
        assert seconds > 0
        self.waits += 1


def test_a_later_attempt_waits_for_a_cluster_that_does_not_answer_and_says_so_once(tmp_path):
    backend = Backend(Unreachable("no answer"), Unreachable("no answer"), Unreachable("refused"), "plan")
    desk = Desk(backend, tmp_path)
    plan = desk.planner.plan(2, before=ROW, exclude=lambda: ["n1"])
    assert (plan.attempt, plan.notes) == (2, ("plan", "n1", "1", "None"))
    assert (plan.sizes, plan.changes) == ({"worker": 1}, ())
    assert desk.said == ["attempt 2 waits: no answer", "attempt 2 waits: refused"]
    assert (desk.waits, desk.states, backend.cleared) == (3, ["restarting", "restarting"], 4)


@pytest.mark.parametrize(
    ("number", "error"),
    [(1, Unreachable("no answer")), (2, Refused("no such field")), (2, Unreachable("bad", tls=True))],
)
def test_what_does_not_pass_by_itself_and_a_first_attempt_end_at_once(tmp_path, number, error):
    desk = Desk(Backend(error), tmp_path)
    assert desk.planner.plan(number, before=ROW if number > 1 else None, exclude=tuple) is None
    assert desk.planner.refusal == error.message
    assert desk.waits == 0


def test_i19_p6_no_plan_follows_a_deletion_and_nothing_is_removed(tmp_path):
    backend = Backend("plan")
    backend.taken = "job train-a1 was deleted in the cluster"
    desk = Desk(backend, tmp_path)
    assert desk.planner.plan(2, before=ROW, exclude=tuple) is None
    assert (desk.planner.deleted_externally, backend.cleared) == (backend.taken, 0)


def test_a_wish_ends_the_wait(tmp_path):
    desk = Desk(Backend(*(Unreachable("no answer") for _ in range(9))), tmp_path)
    desk.give_up_after = 2
    assert desk.planner.plan(2, before=None, exclude=tuple) is None
    assert desk.waits == 2


def test_what_does_not_go_after_a_cancel_is_said_and_noted(tmp_path):
    class Stuck(Backend):
        def clear(self, plan, *, cancellation):
            raise InfrastructureError("pod p is still going")

    desk = Desk(Stuck(), tmp_path)
    desk.planner.remove(ROW)
    assert desk.said == desk.notes == ["pod p is still going"]


def test_jobapi_s07_the_next_attempt_has_as_many_nodes_as_are_wished_by_then(tmp_path):
    append_resize(tmp_path, ResizeRequest(role="worker", nodes=3, at=5, by="somebody@here", reason="why not"))
    fixed = Desk(Backend("plan"), tmp_path).planner.plan(2, before=ROW, exclude=tuple)
    assert fixed.notes == ("plan", "3", "None")
    assert [(one.before, one.nodes, one.asked_at, one.by) for one in fixed.changes] == [(1, 3, 5, "somebody@here")]
    within = Desk(Backend("plan"), tmp_path, nnodes=2, nnodes_max=4).planner.plan(1, before=None, exclude=tuple)
    assert within.notes == ("plan", "2", "3")
    assert [(one.before, one.nodes) for one in within.changes] == [(4, 3)]
