"""What several ranks say together: the accused of a mismatch, the only silent one of a time-out; and that nobody is guessed."""

from __future__ import annotations

import msgspec
import pytest

from rankfall.verdict.diagnose import diagnose
from support.cases import case, died, left, piece, rank, slots


def mismatch(number, names):
    return piece(
        "collective_mismatch",
        number,
        seconds=1,
        line=f"Rank {number} differs from rank {names}",
        peers=(names,),
        specificity=80,
    )


def test_a_mismatch_names_the_rank_that_the_others_name():
    ranks = [left(n, 1, seconds=1 + n) for n in range(4)]
    verdict = diagnose(case(ranks, [mismatch(0, 2), mismatch(1, 2), mismatch(2, 0), mismatch(3, 2)])).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.scope) == (2, "collective_mismatch", "rank")
    assert sorted(c.rank for c in verdict.consequences) == [0, 1, 3]


def test_the_accused_is_named_though_it_said_nothing():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent"), left(3, 1)]
    verdict = diagnose(case(ranks, [mismatch(0, 2), mismatch(1, 2), mismatch(3, 2)])).verdict
    assert (verdict.rank, verdict.cause.slug) == (2, "collective_mismatch")


def test_of_two_that_name_each_other_nobody_is_chosen():
    verdict = diagnose(case([left(0, 1), left(1, 1, seconds=20)], [mismatch(0, 1), mismatch(1, 0)])).verdict
    assert (verdict.rank, verdict.scope, verdict.cause.slug) == (None, "all", "collective_mismatch")


def timeouts(*numbers):
    return [piece("collective_timeout", n, role="secondary", seconds=1) for n in numbers]


def test_the_only_rank_that_did_not_time_out_never_came():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent", seconds=3), left(3, 1)]
    verdict = diagnose(case(ranks, timeouts(0, 1, 3))).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (2, "rank_stuck", "suspected")
    assert (verdict.retry, verdict.node_action) == ("once", "none")
    assert sorted(c.rank for c in verdict.consequences) == [0, 1, 3]


def test_a_rank_that_never_joined_is_the_only_silent_one_too():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="wrapper", seconds=3), left(3, 1)]
    evidence = [*timeouts(1, 3), piece("rdzv_closed", 0, role="secondary", seconds=2)]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug) == (2, "rank_stuck")


def test_a_rank_that_was_stopped_at_once_may_have_waited_too():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent", seconds=1.1), left(3, 1)]
    assert diagnose(case(ranks, timeouts(0, 1, 3))).verdict.rank is None


def test_of_two_silent_ranks_none_is_named():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent", seconds=9), died(3, 15, by="agent", seconds=9)]
    assert diagnose(case(ranks, timeouts(0, 1))).verdict.rank is None


def test_several_ranks_that_stand_elsewhere_are_all_shown_and_none_is_named():
    ranks = [rank(n, state="running") for n in range(4)]
    evidence = [
        piece("rank_stuck", n, source="recorder", seconds=n, line=f"rank {n} stands elsewhere") for n in (0, 2, 3)
    ]
    verdict = diagnose(
        case(ranks, evidence, ended=False, hung=True, slots=slots(2, state="running", exit_code=None))
    ).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.scope) == (None, "rank_stuck", None)
    assert {item.rank for item in verdict.alternatives} <= {0, 2, 3}


def test_a_kernel_line_that_a_rank_prints_moves_no_node():
    xid = piece(
        "gpu_fallen_off_bus",
        1,
        source="log",
        trust="job",
        seconds=0.5,
        signature="gpu_fallen_off_bus.xid",
        specificity=90,
    )
    ranks = [left(0, 1), left(1, 1)]
    own = diagnose(case(ranks, [xid, piece("user_code_exception", 1, seconds=1)])).verdict
    assert (own.rank, own.cause.slug, own.node_action) == (1, "user_code_exception", "none")
    other = diagnose(case(ranks, [xid, piece("user_code_exception", 0, seconds=1)])).verdict
    assert (other.rank, other.cause.slug) == (0, "user_code_exception")
    alone = diagnose(case([died(0, 15, by="agent"), died(1, 15, by="agent")], [xid])).verdict
    assert (alone.cause.confidence, alone.node_action) == ("suspected", "none")


def test_a_bare_bus_error_makes_shared_memory_suspected_only():
    bus = piece(
        "shm_exhausted",
        0,
        source="log",
        trust="job",
        line="Fatal Python error: Bus error",
        signature="shm_exhausted.faulthandler",
    )
    verdict = diagnose(case([died(0, 7), left(1, 1)], [bus])).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == ("shm_exhausted", "suspected", "once")


def test_a_dead_data_worker_is_that_of_the_rank_that_says_so():
    ranks = [left(0, 1), left(1, 1), left(2, 1), left(3, 1)]
    evidence = [
        piece("dataloader_died", 2, role="secondary", seconds=2),
        *(piece("peer_lost", n, role="secondary", seconds=1) for n in (0, 1, 3)),
    ]
    verdict = diagnose(case(ranks, evidence)).verdict
    assert (verdict.rank, verdict.cause.slug, verdict.cause.confidence) == (2, "dataloader_died", "likely")
    assert sorted(c.rank for c in verdict.consequences) == [0, 1, 3]


def waits(slot: int, slug: str = "image_pull"):
    return piece(
        slug, None, slot=slot, seconds=1 + slot, source="pod", trust="platform", specificity=80, fingerprint=f"{slug}:x"
    )


def not_begun(*evidence):
    return case([], list(evidence), hung=True, ended=False, slots=slots(state="expected"), nnodes=2, world_size=4)


def test_jobapi_s30_what_keeps_all_slots_from_beginning_is_one_fault_of_no_place():
    verdict = diagnose(not_begun(waits(0), waits(1))).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.scope) == ("image_pull", "proven", "all")
    assert (verdict.rank, verdict.slot, verdict.node, verdict.node_action) == (None, None, None, "none")


def test_launch_s9_what_keeps_one_slot_from_beginning_names_its_place():
    verdict = diagnose(not_begun(waits(1))).verdict
    assert (verdict.cause.slug, verdict.scope, verdict.slot) == ("image_pull", "slot", 1)


def test_i23_a_proven_fault_without_a_rank_is_kept_beside_the_text_of_a_rank():
    """Two sources of one fault: what the platform proves outweighs what a rank printed."""
    printed = piece("disk_full", 1, source="log", trust="job", seconds=1)
    proven = piece("disk_full", None, source="node", trust="platform", node="node1", seconds=1)
    ranks = [left(0, 1, seconds=3), left(1, 1, seconds=2)]
    verdict = diagnose(case(ranks, [printed, proven])).verdict
    assert (verdict.cause.slug, verdict.cause.confidence) == ("disk_full", "proven")
    text = piece("disk_full", None, source="log", trust="job", seconds=1)
    verdict = diagnose(case(ranks, [printed, text])).verdict
    assert (verdict.cause.confidence, verdict.rank) == ("likely", 1)


@pytest.mark.parametrize(
    ("fields", "apart"),
    [
        ({}, True),
        # Its handler of a lost peer, and text alone.
        ({"lost_peer": True}, False),
        ({"source": "log", "trust": "job", "whole": True}, False),
    ],
)
def test_a_full_disk_beside_a_full_gpu_is_a_failure_of_its_own(fields, apart):
    """Rank 2 loses both of them."""
    ranks = [left(n, 1, per_node=4, seconds=2.0) for n in range(3)]
    evidence = [
        piece("gpu_oom", 1, seconds=1.0, slot=0),
        piece("disk_full", 0, seconds=1.05, slot=0, **fields),
        piece("peer_lost", 2, role="secondary", seconds=1.2, slot=0),
    ]
    verdict = diagnose(case(ranks, evidence, slots=slots(1))).verdict
    assert (verdict.rank, verdict.cause.slug) == (1, "gpu_oom")
    found = [(item.rank, item.slug) for item in verdict.independent or ()]
    assert found == ([(0, "disk_full")] if apart else [])
    assert [item.rank for item in verdict.consequences] == ([2] if apart else [0, 2])


def test_the_only_rank_of_a_job_without_progress_hangs():
    def hung(ranks, evidence=()):
        return diagnose(case(ranks, list(evidence), ended=False, hung=True, world_size=len(ranks))).verdict

    alone = hung([rank(0, state="running")])
    assert (alone.rank, alone.cause.slug, alone.cause.confidence) == (0, "rank_stuck", "suspected")
    assert hung([rank(0, state="running"), rank(1, state="running")]).rank is None
    assert hung([rank(0, state="running")], timeouts(0)).cause.slug != "rank_stuck"


def test_the_only_rank_that_has_not_ended_hangs():
    def hung(ranks, evidence=(), world_size=3):
        return diagnose(case(ranks, list(evidence), ended=False, hung=True, world_size=world_size)).verdict

    alone = [left(0, 0), rank(1, state="running"), left(2, 0)]
    found = hung(alone)
    assert (found.rank, found.cause.slug, found.cause.confidence) == (1, "rank_stuck", "suspected")
    place = piece("rank_stuck", 1, role="context", source="recorder", place="train.py:main:7")
    assert hung(alone, [place]).rank == 1
    # It may wait for those that left, for a rank that never came, or for one that hangs as well.
    assert hung(alone, [msgspec.structs.replace(place, collective="all_reduce")]).rank is None
    assert hung(alone, world_size=4).rank is None
    assert hung([left(0, 0), rank(1, state="running"), rank(2, state="running")]).rank is None
    assert hung([left(0, 0), rank(1, state="running"), left(2, 1)]).cause.slug != "rank_stuck"
