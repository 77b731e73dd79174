"""Rounds of a gang that changes, and what of a case is about those that belong to it now."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.attempt.case import present_case
from rankfall.evidence.facts import Seat, rounds_of
from rankfall.model import Case, Evidence, RankFacts, SlotFacts


def seats_of(worlds: list[list[int]], *, nproc: int) -> dict[tuple[int, int, int], Seat]:
    """Processes of rounds, each with its slots; ranks are dealt anew in each round, as torchrun does."""
    found = {}
    for number, slots in enumerate(worlds):
        for place, slot in enumerate(slots):
            for local in range(nproc):
                at = 1000 * (number + 1) + random.Random(f"{number} {slot} {local}").randrange(100)
                rank = place * nproc + local
                found[number, slot, local] = Seat(
                    slot=slot, local_rank=local, rank=rank, world_size=len(slots) * nproc, at=at
                )
    return found


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), min_size=1, max_size=5),
    st.integers(1, 3),
    st.randoms(),
)
def test_each_process_gets_the_round_that_it_was_started_in(
    worlds: list[list[int]], nproc: int, rng: random.Random
) -> None:
    # Two rounds of one size with other slots and no rank in common do not exist: every round has a rank 0.
    seats = list(seats_of(worlds, nproc=nproc).items())
    rng.shuffle(seats)
    for key, number in rounds_of(dict(seats)).items():
        assert number == key[0]


def test_a_start_without_a_time_comes_last() -> None:
    seats = {
        "late": Seat(slot=0, local_rank=0, rank=0, world_size=None, at=None),
        "first": Seat(slot=0, local_rank=0, rank=0, world_size=None, at=5),
    }
    assert rounds_of(seats) == {"first": 0, "late": 1}


def rank(number: int, slot: int, *, at: int, round_number: int = 0, ended: int | None = None) -> RankFacts:
    state = "running" if ended is None else "ended"
    code = None if ended is None else 1
    pid = 100 * slot + round_number
    return RankFacts(
        rank=number, slot=slot, pid=pid, round=round_number, started_at=at, state=state, ended_at=ended, exit_code=code
    )


def piece(name: str, slot: int, **fields: int | None) -> Evidence:
    return Evidence(id=name, source="record", slug="user_exit", role="primary", trust="inside", slot=slot, **fields)


def test_what_torchrun_started_after_the_fall_hides_nothing_of_it() -> None:
    fell, again = rank(1, 1, at=10, ended=50), rank(1, 1, at=60, round_number=1)
    case = Case(
        world_size=2,
        ranks=(rank(0, 0, at=10), fell, again),
        slots=(SlotFacts(slot=0), SlotFacts(slot=1)),
        evidence=(piece("cause", 1, pid=100, round=0), piece("later", 1, pid=101), piece("round", 1, round=1)),
    )
    found = present_case(case, left=(), fell_at=50)
    assert [facts.pid for facts in found.ranks] == [0, 100]
    assert [one.id for one in found.evidence] == ["cause"]
    assert found.world_size == 2
    # Once the gang went on, the same fall is history.
    assert [facts.pid for facts in present_case(case, left=()).ranks] == [0, 101]


def test_a_slot_that_left_is_neither_cause_nor_victim() -> None:
    case = Case(
        world_size=2,
        ranks=(rank(0, 0, at=10), rank(1, 1, at=10, ended=50)),
        slots=(SlotFacts(slot=0), SlotFacts(slot=1)),
        evidence=(piece("left", 1), piece("stays", 0)),
    )
    found = present_case(case, left={1})
    assert ([r.rank for r in found.ranks], [s.slot for s in found.slots]) == ([0], [0])
    assert ([one.id for one in found.evidence], found.world_size) == (["stays"], 1)
