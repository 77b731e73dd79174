"""Who belongs to a gang that may change: joins, leaves, what is outlived, and when a gang goes on. Without processes: a backend that only notes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.backends.plan import Plan, SlotPlan
from rankfall.model import Case, Evidence, InfrastructureError, JobSpec, RankFacts, SlotFacts, Success
from rankfall.model.jobspec.sizes import Left
from rankfall.rundir.requests import ResizeRequest
from rankfall.supervisor.attempt.completion import PATIENCE_S, SuccessWatch, Survival
from rankfall.supervisor.attempt.membership import Membership

LEAST, MOST = 2, 6


class Backend:
    """Slots as a set of numbers that run."""

    def __init__(self, running: set[int]) -> None:
        self.running = running
        self.fails = 0
        self.calls: list[tuple[int, ...]] = []
        self.ended: list[int] = []
        self.native = True

    def resizes(self, plan: Plan) -> bool:
        return self.native

    def resize(self, plan: Plan) -> bool:
        if self.fails:
            self.fails -= 1
            raise InfrastructureError("no answer")
        self.calls.append(tuple(slot.slot for slot in plan.present))
        self.running |= {slot.slot for slot in plan.present}
        return True

    def alive(self, plan: Plan, slot: int) -> bool:
        return slot in self.running

    def life(self, plan: Plan, slot: int) -> str:
        return "running" if slot in self.running else "absent"

    def end(self, plan: Plan, slots: Any, *, grace: float) -> int:
        self.ended += sorted(slots)
        self.running -= set(slots)
        return len(self.ended)


class Desk:
    """One attempt's members with all that they talk to."""

    def __init__(self, size: int = 4, *, running: set[int] | None = None, plan: Plan | None = None) -> None:
        slots = tuple(
            SlotPlan(slot=n, role="worker", node="", argv=(), env={}, cwd="", slot_dir="", stream_dir="")
            for n in range(MOST)
        )
        self.backend = Backend(set(range(size)) if running is None else running)
        self.events: list[str] = []
        self.stored: list[Plan] = []
        spec = JobSpec(command=("x",), nnodes=LEAST, nnodes_max=MOST)
        given_plan = Plan(
            attempt=1, launcher="torchrun", rdzv="c10d", slots=slots[:size], spare=slots[size:], sizes={"worker": size}
        )
        run_store = SimpleNamespace(
            begin_attempt=lambda attempt, *, at, plan: self.stored.append(msgspec.convert(plan, Plan))
        )
        events = SimpleNamespace(say=lambda kind, text, **_: self.events.append(text))
        self.members = Membership(
            spec,
            plan=plan or given_plan,
            backend=self.backend,  # type: ignore[arg-type]
            run_store=run_store,  # type: ignore[arg-type]
            events=events,  # type: ignore[arg-type]
            started=5,
        )

    def resize(self, nodes: int, *, at: int = 50) -> bool:
        wish = ResizeRequest(role="worker", nodes=nodes, at=at, by="me@here")
        if not self.members.takes(wish):
            return False
        self.members.begin(wish, now=at)
        return True

    @property
    def present(self) -> list[int]:
        return [slot.slot for slot in self.members.plan.present]


def test_jobapi_s07_the_intent_is_stored_before_anything_is_done_and_the_end_after() -> None:
    desk = Desk(4)
    assert desk.resize(6)
    assert desk.stored[-1].changes[-1].done_at is None
    assert (desk.present, desk.backend.calls) == ([0, 1, 2, 3, 4, 5], [])
    desk.members.step(1.0)
    assert desk.backend.calls == [(0, 1, 2, 3, 4, 5)]
    assert desk.stored[-1].changes[-1].done_at is not None
    assert desk.members.sizes == {"worker": 6}
    assert desk.events == [
        "worker: 4 -> 6 nodes, requested by me@here, in place: slots 4, 5 join",
        "now 6 nodes of worker",
    ]


def test_jobapi_s07_the_highest_slots_leave_and_are_ended_by_force_when_they_are_deaf() -> None:
    desk = Desk(4)
    assert desk.resize(3)
    assert (desk.present, desk.members.plan.gone) == ([0, 1, 2], {3})
    desk.members.step(1.0)
    assert desk.members.departing == {3}
    assert desk.stored[-1].changes[-1].done_at is None
    desk.members.step(2.0)
    assert len(desk.backend.calls) == 1
    desk.members.step(100.0)
    desk.members.step(101.0)
    assert (desk.backend.ended, desk.members.departing) == ([3], frozenset())
    assert desk.stored[-1].changes[-1].done_at is not None


def test_a_supervisor_that_takes_over_goes_on_with_a_change_and_repeats_none() -> None:
    first = Desk(4)
    first.resize(5)
    second = Desk(running=first.backend.running, plan=first.stored[-1])
    second.members.step(1.0)
    assert second.backend.calls == [(0, 1, 2, 3, 4)]
    third = Desk(running=second.backend.running, plan=second.stored[-1])
    third.members.step(1.0)
    assert (third.backend.calls, third.stored) == ([], [])


def test_a_change_that_is_not_taken_is_tried_again_and_told_once() -> None:
    desk = Desk(4)
    desk.resize(5)
    desk.backend.fails = 2
    for clock in (1.0, 2.0, 7.0, 13.0):
        desk.members.step(clock)
    assert [text for text in desk.events if "waits" in text] == ["the new size waits: no answer"]
    assert len(desk.backend.calls) == 1


def test_what_cannot_be_had_in_place_needs_a_new_attempt() -> None:
    desk = Desk(4)
    assert desk.resize(3)
    desk.members.step(1.0)
    # Slot 3 left: it comes back with a new attempt only.
    assert not desk.resize(4)
    desk.backend.native = False
    assert not desk.resize(2)
    lost = Desk(3)
    lost.members.outlive(frozenset({("slot", 1, None)}), now=60)
    # Slots 0 and 2 are left; without 2 it would be one, and at least two are a gang.
    assert not lost.resize(2)
    assert lost.resize(4)
    assert lost.present == [0, 2, 3]


def test_slots_that_never_came_are_not_waited_for_when_the_attempt_is_stopped() -> None:
    desk = Desk(3)
    desk.resize(5)
    desk.members.give_up_joining()
    assert desk.present == [0, 1, 2]
    assert [slot.slot for slot in desk.members.plan.spare] == [3, 4, 5]
    before = len(desk.stored)
    Desk(3).members.give_up_joining()
    assert len(desk.stored) == before


@given(st.lists(st.integers(LEAST, MOST), max_size=6))
def test_jobapi_s07_slots_below_the_smallest_size_never_leave_and_the_size_is_what_is_there(sizes: list[int]) -> None:
    desk = Desk(4)
    smallest = 4
    for at, nodes in enumerate(sizes):
        if desk.resize(nodes, at=100 + at):
            smallest = min(smallest, nodes)
            assert desk.present == list(range(nodes))
            assert desk.members.sizes == {"worker": nodes}
        desk.members.step(float(at))
        assert desk.present[:smallest] == list(range(smallest))
        assert desk.members.plan.gone.isdisjoint(desk.present)


# -- whose ends count


def rank(number: int, *, at: int = 10, pid: int = 1, **fields: Any) -> RankFacts:
    return RankFacts(rank=number, slot=number, pid=pid, started_at=at, **({"state": "running"} | fields))


def slots(*states: str) -> tuple[SlotFacts, ...]:
    return tuple(SlotFacts(slot=n, state=state) for n, state in enumerate(states))  # type: ignore[arg-type]


def test_ends_of_those_that_left_and_what_torchrun_stopped_itself_are_no_failures() -> None:
    desk = Desk(4)
    desk.resize(3)
    ranks = (
        rank(0, state="ended", signal=15, killed_by="agent", ended_at=60),
        rank(1, state="ended", exit_code=1, ended_at=61),
        rank(3, state="ended", signal=15, killed_by="foreign", ended_at=60),
    )
    mine = desk.members.ranks(ranks)
    assert [one.rank for one in mine] == [1]
    here = slots("running", "running", "running")
    bad = desk.members.bad(here, mine)
    assert bad == {("rank", 1, 1)}
    # Slots came or went while that rank was running.
    assert desk.members.changing(here, mine, bad)
    desk.members.outlive(bad, now=70)
    assert desk.members.bad(here, mine) == frozenset()
    again = Desk(plan=desk.stored[-1])
    assert again.members.bad(here, mine) == frozenset()
    later = rank(1, at=80, pid=2, state="ended", exit_code=1, ended_at=90)
    assert not again.members.changing(here, (rank(0, at=80), later, rank(2, at=80)), frozenset({("rank", 1, 2)}))
    # Slot 2 has no rank yet: it is only joining.
    assert again.members.changing(here, (rank(0, at=80), later), frozenset({("rank", 1, 2)}))


def case(*evidence: Evidence, **fields: Any) -> Case:
    return Case(evidence=evidence, **fields)


def proof(slug: str, number: int, role: str = "primary") -> Evidence:
    return Evidence(
        id=f"{slug}-{number}",
        source="record",
        slug=slug,
        role=role,  # type: ignore[arg-type]
        trust="inside",
        rank=number,
        slot=number,
        at=20,
        uncertainty=0.001,
        specificity=80,
    )


FELL = frozenset({("slot", 1, None)})


def weigh(survival: Survival, made: Case, ranks: tuple[RankFacts, ...], *, clock: float = 0.0, **fields: Any) -> str:
    given_fields: dict[str, Any] = {"bad": FELL, "changing": False} | fields
    here = given_fields.pop("slots", slots("running", "lost", "running"))
    return survival.weigh(lambda: made, here, ranks, clock=clock, **given_fields)


def test_a_gang_waits_for_its_new_round_and_goes_on_with_it_but_not_for_ever() -> None:
    survival = Survival(least=2, strategy="causal")
    old = (rank(0), rank(2), rank(1, state="ended", signal=9, ended_at=50))
    assert weigh(survival, case(), old) == "waits"
    assert weigh(survival, case(), old, clock=PATIENCE_S + 1) == "fell"
    new = (*old, rank(0, at=60, pid=2), rank(2, at=60, pid=2))
    assert weigh(survival, case(), new) == "goes_on"


@pytest.mark.parametrize(
    ("least", "states", "why"),
    [
        (3, ("running", "lost", "running"), "too few are left"),
        (1, ("lost", "running", "running"), "slot 0 held the rendezvous"),
    ],
)
def test_a_gang_does_not_go_on_when(least: int, states: tuple[str, ...], why: str) -> None:
    survival = Survival(least=least, strategy="causal")
    bad = frozenset({("slot", states.index("lost"), None)})
    assert weigh(survival, case(), (), bad=bad, slots=slots(*states)) == "fell", why


def test_a_rank_that_fell_by_itself_is_never_outlived() -> None:
    own = case(proof("user_code_exception", 0), ranks=(rank(0, state="ended", exit_code=1, ended_at=30),))
    bad = frozenset({("rank", 0, 1)})
    survival = Survival(least=1, strategy="causal")
    here = slots("running", "running")
    assert weigh(survival, own, (), bad=bad, slots=here, changing=True) == "fell"
    assert weigh(survival, own, (), bad=bad, slots=here, changing=False) == "fell"
    victim = case(proof("peer_lost", 0, "secondary"), ranks=(rank(0, state="ended", exit_code=1, ended_at=30),))
    assert weigh(
        Survival(least=1, strategy="causal"), victim, (rank(0), rank(1)), bad=bad, slots=here, changing=True
    ) in {
        "waits",
        "goes_on",
    }


# -- what came too late


def test_a_slot_that_comes_when_the_gang_has_ended_is_surplus_and_no_failure() -> None:
    watch = SuccessWatch(Success(), launcher="torchrun")
    good = {"state": "ended", "exit_code": 0, "ended_at": 40}
    facts = (SlotFacts(slot=0, **good), SlotFacts(slot=1, **good), SlotFacts(slot=2, state="expected"))  # type: ignore[arg-type]
    ranks = (rank(0, **good), rank(1, **good))
    assert watch.see_surplus(facts, ranks, least=3, now=50) == ()
    assert watch.see_surplus(facts[:2], ranks, least=2, now=50) == ()
    assert watch.see_surplus((facts[0], facts[2]), ranks, least=1, now=50) == (2,)
    assert watch.reached
    assert watch.drained(50)
    assert watch.because == "the 1 slots of the gang ended with 0"
    assert watch.see_surplus(facts, ranks, least=2, now=50) == ()
    desk = Desk(3)
    desk.members.surplus([2], now=time.time_ns())
    assert desk.stored[-1].left[0] == Left(slot=2, at=desk.stored[-1].left[0].at, why="surplus")
    # Whoever takes over from here sees to it that it ends.
    assert Desk(running={2}, plan=desk.stored[-1]).members.departing == {2}
