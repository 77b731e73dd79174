"""Where a slot stands in a job of several roles: sums that Kubernetes cannot make, and ranks counted over roles of different sizes."""

from __future__ import annotations

import json

import pytest

from rankfall_inside import identity
from rankfall_inside.wrapper import commands, options, startup

ROLE = {
    "RANKFALL_INDEX": "1",
    "RANKFALL_SLOT_BASE": "3",
    "RANKFALL_FIRST_NODE": "2",
    "RANKFALL_FIRST_RANK": "8",
    "RANKFALL_WORLD_SIZE": "12",
    "RANKFALL_ROLE_SIZE": "4",
    "RANKFALL_PLAIN_NNODES": "4",
}


def given(*command: str) -> options.Options:
    return options.parse(["wrap", "--console", "--", *command])


def test_slot_and_node_are_the_roles_first_ones_and_the_index() -> None:
    environ = dict(ROLE)
    startup.settle(given("train"), environ)
    assert (environ["RANKFALL_SLOT"], environ["RANKFALL_PLAIN_NODE_RANK"]) == ("4", "3")


def test_only_a_word_that_is_the_reference_itself_becomes_the_node() -> None:
    words = given("torchrun", "--node-rank", startup.NODE_REFERENCE, f"say {startup.NODE_REFERENCE}")
    environ = {**ROLE, "RANKFALL_TORCHRUN": json.dumps(["torchrun", "--node-rank", startup.NODE_REFERENCE, 'a"b'])}
    startup.settle(words, environ)
    startup.settle(words, environ)
    assert words.command == ["torchrun", "--node-rank", "3", f"say {startup.NODE_REFERENCE}"]
    assert json.loads(environ["RANKFALL_TORCHRUN"]) == ["torchrun", "--node-rank", "3", 'a"b']


@pytest.mark.parametrize("environ", [{}, {"RANKFALL_INDEX": ""}, {"RANKFALL_INDEX": "x", "RANKFALL_SLOT_BASE": "2"}])
def test_a_job_of_one_role_is_left_as_it_is(environ: dict[str, str]) -> None:
    words, after = given("train", startup.NODE_REFERENCE), dict(environ)
    startup.settle(words, after)
    assert (words.command, after) == (["train", startup.NODE_REFERENCE], environ)


def test_a_role_outside_the_world_has_a_slot_and_no_node() -> None:
    environ = {"RANKFALL_INDEX": "1", "RANKFALL_SLOT_BASE": "3", "RANKFALL_OUTSIDE": "1"}
    startup.settle(given("serve"), environ)
    assert environ["RANKFALL_SLOT"] == "4"
    assert "RANKFALL_PLAIN_NODE_RANK" not in environ


def test_ranks_go_on_where_the_roles_before_ended() -> None:
    environ = dict(ROLE)
    startup.settle(given("train"), environ)
    own = [commands.worker_environ(environ, local=local, nproc=2) for local in (0, 1)]
    assert [(one["RANK"], one["ROLE_RANK"], one["GROUP_RANK"]) for one in own] == [("10", "2", "3"), ("11", "3", "3")]
    assert {(one["WORLD_SIZE"], one["ROLE_WORLD_SIZE"], one["GROUP_WORLD_SIZE"]) for one in own} == {("12", "4", "4")}


def test_i24_p10_in_an_allocation_slurms_numbers_are_those_of_the_ranks() -> None:
    environ = {"RANKFALL_PLAIN_NNODES": "3", "RANKFALL_PLAIN_NODE_RANK": "1"}
    # What slurmstepd gives the only task of a step.
    step = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "1", "SLURM_NODEID": "0", "SLURM_NNODES": "1"}
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES")
    own = [commands.worker_environ(environ | step, local=local, nproc=2) for local in (0, 1)]
    assert [tuple(one[name] for name in names) for one in own] == [
        ("2", "0", "1", "6", "6", "3"),
        ("3", "1", "1", "6", "6", "3"),
    ]
    assert not set(names) & commands.worker_environ(environ, local=0, nproc=2).keys()


def test_outside_the_world_nobody_is_a_rank() -> None:
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    assert identity.has_rank(environ)
    assert not identity.has_rank({**environ, identity.OUTSIDE: "1"})
    assert identity.read({**environ, identity.OUTSIDE: "1"}) is None
