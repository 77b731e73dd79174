"""Runs that could not be begun, or could not go on: why, and what to do about it, is in the outcome, in the explanation and in the state of the run."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.explain import explain_run
from rankfall.kube.errors import Forbidden
from rankfall.model import InfrastructureError
from rankfall.render.verdict import next_commands, render_verdict
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import sparing
from rankfall.supervisor.supervise import supervise
from supervisor.conftest import Bench

SAID = 'leases is forbidden: User "anna" cannot create resource "leases" in the namespace "train"'
NEXT = "request this right from the cluster's administrator"


class Closed(LocalBackend):
    """A cluster whose account may do nothing."""

    def hold(self, run_dir: Any, *, attempts: int, lost: Any) -> None:
        raise Forbidden(SAID, status=403, hint=NEXT)


class Stuck(LocalBackend):
    """A cluster in which nothing of an ended attempt goes."""

    def clear(self, plan: Any, *, cancellation: Any = None) -> None:
        for age in range(20):
            cancellation.say(f"removing job here/x, for {15 * age} s: pod x-0 on node n3 should have ended 5 s ago")
        raise InfrastructureError("attempt 1 of x is still going: pod x-0 on node n3", hint="bring node n3 back")


def test_i19_p9_why_a_run_could_not_be_begun_is_its_verdict(bench: Bench) -> None:
    run = bench.run_dir(bench.spec())
    outcome = supervise(run, backend=Closed(), on_event=bench.events.append)
    assert (outcome.state, outcome.code, outcome.exit_origin, outcome.attempts) == ("failed", 69, "rankfall", 0)
    explained = explain_run(run).verdict
    assert outcome.verdict == explained
    assert (explained.state, explained.attempt, explained.cause.slug) == ("failed", None, "container_config")
    shown = " ".join(render_verdict(explained).split())
    for text in (SAID, NEXT, "failed", "no attempt was started"):
        assert text in shown
    assert next_commands(explained) == (f"rankfall status {run.id}", f"rankfall why {run.id} -o json")
    with run.reader() as reader:
        reason = reader.run().reason or ""
    assert SAID in reason
    assert NEXT in reason
    # Whoever asks again is told the same.
    assert supervise(run, backend=Closed()) == outcome


def test_i19_p9_a_run_that_was_cancelled_before_it_began_is_not_called_running(bench: Bench) -> None:
    run = bench.run_dir(bench.spec())
    control = Control()
    control.cancel("enough")
    assert supervise(run, control=control).state == "cancelled"
    control.close()
    explained = explain_run(run).verdict
    assert (explained.state, explained.cause.slug) == ("cancelled", "cancelled")


def test_i19_p9_an_attempt_that_could_not_follow_is_not_said_to_have_been_started(bench: Bench) -> None:
    code = "from rankfall_inside import Retryable\nraise Retryable('dataset server') if rank else SystemExit(0)"
    run = bench.run_dir(bench.spec(code, policies={"max_restarts": 3}))
    outcome = supervise(run, backend=Stuck(), on_event=bench.events.append)
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.verdict is not None
    shown = " ".join(render_verdict(outcome.verdict).split())
    assert "started again" not in shown
    assert "attempt 2 could not be planned: attempt 1 of x is still going" in shown
    assert "bring node n3 back" in shown
    assert len(bench.texts("waiting")) == 1


@pytest.mark.parametrize("subjects", [1, 2])
def test_i19_p9_a_wait_of_five_minutes_is_told_a_few_times(subjects: int) -> None:
    now, said = [0.0], list[str]()
    say = sparing(said.append, clock=lambda: now[0])
    for second in range(0, 301, 15):
        now[0] = float(second)
        say(f"removing job {0 if second < 150 else subjects - 1}, for {second} s: pod")
    assert said[0] == "removing job 0, for 0 s: pod"
    assert len(said) <= 4 * subjects
