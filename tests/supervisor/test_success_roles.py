"""Success in a job of several roles, look by look: who is counted, who may fall, and what stands for rank 0."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.model import Evidence, RankFacts, SlotFacts, Success
from rankfall.supervisor.attempt.completion import SuccessWatch


def slot(number: int, role: str, code: int | None = None) -> SlotFacts:
    state: Any = "running" if code is None else "ended"
    return SlotFacts(
        slot=number, role=role, state=state, exit_code=code, ended_at=None if code is None else 100 + number
    )


WORKERS = Success(role="worker")
HALF = Success(policy="fraction", fraction=0.5, role="worker")


@pytest.mark.parametrize(
    ("success", "codes", "standing"),
    [
        (WORKERS, (None, 0, 0), "reached"),
        (WORKERS, (0, 0, None), "tolerated"),
        (WORKERS, (None, 1, 0), "open"),
        (WORKERS, (1, None, None), "open"),
        (HALF, (None, 0, None), "reached"),
        (HALF, (None, 1, None), "tolerated"),
        (HALF, (None, 1, 1), "open"),
        (HALF, (1, 1, None), "open"),
    ],
)
def test_only_the_slots_of_the_role_are_counted(
    success: Success, codes: tuple[int | None, int | None, int | None], standing: str
) -> None:
    ps, first, second = codes
    slots = (slot(0, "ps", ps), slot(1, "worker", first), slot(2, "worker", second))
    assert SuccessWatch(success, launcher="plain").see(slots, (), now=200) == standing


def test_a_slot_outside_the_world_never_stands_for_rank_0() -> None:
    watch = SuccessWatch(Success(policy="rank0"), launcher="plain", head=1)
    assert watch.see((slot(0, "ps", 0), slot(1, "worker")), (), now=200) == "open"
    rank = RankFacts(rank=0, slot=1, state="ended", exit_code=0, ended_at=150)
    assert watch.see((slot(0, "ps", 0), slot(1, "worker")), (rank,), now=200) == "reached"
    assert watch.because == "rank 0 ended with 0"


def test_the_first_slot_of_the_world_stands_for_rank_0_where_no_rank_is_seen() -> None:
    watch = SuccessWatch(Success(policy="rank0"), launcher="plain", head=1)
    assert watch.see((slot(0, "ps"), slot(1, "worker", 0)), (), now=200) == "reached"
    assert watch.because == "slot 1 ended with 0"


FAILED: dict[str, Any] = {"state": "ended", "exit_code": 1, "ended_at": 190}


@pytest.mark.parametrize(
    ("piece", "end", "standing"),
    [
        ({}, {}, "open"),
        ({}, FAILED, "open"),
        ({}, FAILED | {"exit_code": 0}, "reached"),
        ({"at": 160}, FAILED, "reached"),
        # Not what ended the rank, or a consequence of the end of rank 0.
        ({"thread": True}, FAILED, "reached"),
        ({"teardown": True}, FAILED, "reached"),
        ({"lost_peer": True}, FAILED, "reached"),
        ({"role": "secondary"}, FAILED, "reached"),
    ],
)
def test_a_rank_that_raised_before_rank_0_ended_has_failed(
    piece: dict[str, Any], end: dict[str, Any], standing: str
) -> None:
    error: dict[str, Any] = {"source": "record", "slug": "user_code_exception", "role": "primary", "trust": "inside"}
    raised = Evidence(id="e", rank=1, pid=11, **(error | {"at": 140} | piece))
    slots = (slot(0, "worker"), slot(1, "worker"))
    ranks = (
        RankFacts(rank=0, slot=0, pid=10, state="running"),
        RankFacts(rank=1, slot=1, pid=11, **({"state": "running"} | end)),
    )
    done = RankFacts(rank=0, slot=0, pid=10, state="ended", exit_code=0, ended_at=150)
    watch = SuccessWatch(Success(policy="rank0"), launcher="plain")
    assert watch.see(slots, ranks, evidence=(raised,), now=145) == "open"
    assert watch.see(slots, (done, ranks[1]), now=200) == standing
