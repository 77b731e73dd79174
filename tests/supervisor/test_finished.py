"""Roles that a new attempt of the gang does not run again."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.model import JobSpec, SlotFacts, Success
from rankfall.model.jobspec.job import Role
from rankfall.supervisor.attended.next_attempt import finished_roles

ROLES = (
    Role(name="train", nnodes=1),
    Role(name="eval", nnodes=2, launcher="exec", restart_scope="replica"),
    Role(name="data", nnodes=1, launcher="exec"),
)
JOB = JobSpec(command=("train.py",), roles=ROLES)


def slots(**second: object) -> list[SlotFacts]:
    found = [SlotFacts(slot=number, state="ended", exit_code=0) for number in range(4)]
    found[2] = msgspec.structs.replace(found[2], **second)
    return found


def test_only_a_role_of_independent_slots_is_done_alone() -> None:
    assert finished_roles(JOB, slots(), left_out=()) == ("eval",)


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": 1},
        {"state": "running", "exit_code": None},
        {"exit_code": None, "signal": 15},
        {"killed_by": "wrapper"},
        {"signalled": True},
    ],
)
def test_every_slot_of_it_must_have_ended_well_and_of_its_own_accord(fields: dict[str, object]) -> None:
    assert finished_roles(JOB, slots(**fields), left_out=()) == ()


def test_what_was_left_out_once_stays_out() -> None:
    assert finished_roles(JOB, slots()[:1], left_out=("eval",)) == ("eval",)


def test_where_slots_of_all_roles_are_counted_none_is_left_out() -> None:
    job = msgspec.structs.replace(JOB, success=Success(policy="fraction", fraction=0.9))
    assert finished_roles(job, slots(), left_out=()) == ()


def test_a_job_of_one_role_is_never_left_out() -> None:
    job = JobSpec(command=("train.py",), nnodes=4, launcher="exec", restart_scope="replica")
    assert finished_roles(job, slots(), left_out=()) == ()
