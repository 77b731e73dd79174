"""A JobSet that ends its other roles by itself: known as a stop from the moment on when a whole role had ended badly, never before."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.model import SlotFacts
from rankfall.supervisor.stopping import REASON, jobset_stop


def plan(backend: str = "jobset") -> Plan:
    place = ClusterPlan(
        backend=backend, object="x", context="c", namespace="n", selector="a=b", container="main", token="", bases={}
    )
    return Plan(attempt=1, launcher="plain", slots=(), cluster=place)


def slot(number: int, role: str, **fields: Any) -> SlotFacts:
    return SlotFacts(slot=number, role=role, **{"state": "running", **fields})


def over(number: int, role: str, at: int | None, **fields: Any) -> SlotFacts:
    return slot(number, role, state="ended", ended_at=at, **{"exit_code": 0, **fields})


@pytest.mark.parametrize("backend", ["jobset", "trainjob"])
def test_it_begins_with_the_last_end_of_the_role_that_failed(backend: str) -> None:
    slots = [slot(0, "ps"), over(1, "worker", 5, exit_code=1), over(2, "worker", 9)]
    found = jobset_stop(plan(backend), slots)
    assert found is not None
    assert (found.at_ns, found.reason) == (9, REASON)


@pytest.mark.parametrize(
    "slots",
    [
        [slot(0, "ps"), over(1, "worker", 5, exit_code=1), slot(2, "worker")],
        [slot(0, "ps"), over(1, "worker", 5), over(2, "worker", 9)],
        [slot(0, "ps"), over(1, "worker", 5, exit_code=None, signal=15, killed_by="wrapper")],
        [slot(0, "ps"), slot(1, "worker", state="lost")],
        [over(0, "worker", 5, exit_code=1)],
    ],
)
def test_not_while_a_role_runs_or_has_done_its_work(slots: list[SlotFacts]) -> None:
    assert jobset_stop(plan(), slots) is None


def test_jobs_of_their_own_do_not_end_each_other_and_this_machine_has_no_set() -> None:
    slots = [slot(0, "ps"), over(1, "worker", 5, exit_code=1)]
    assert jobset_stop(plan("job"), slots) is None
    assert jobset_stop(Plan(attempt=1, launcher="plain", slots=()), slots) is None


def test_the_role_that_failed_first_is_the_one() -> None:
    slots = [over(0, "ps", 7, exit_code=None, signal=15, killed_by="foreign"), over(1, "worker", 5, exit_code=1)]
    found = jobset_stop(plan(), slots)
    assert found is not None
    assert found.at_ns == 5
