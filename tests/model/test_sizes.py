"""Sizes of jobs: what a resize makes of a spec, with one role, with several, and within MIN:MAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Refused, SpecError, StoreError, spec_from
from rankfall.model.jobspec.sizes import SizeChange, check_size, first_sizes, sized
from rankfall.rundir.requests import (
    RESIZE_NAME,
    ResizeRequest,
    append_resize,
    left_slots,
    planned_sizes,
    read_resizes,
    requested_sizes,
)

NODES = st.integers(1, 40)


def spec(**fields: Any) -> JobSpec:
    return spec_from({"command": ["train.py"], **fields})


@given(NODES, NODES)
def test_a_resized_job_differs_in_nothing_but_its_size(first: int, nodes: int) -> None:
    made = sized(spec(nnodes=first), {"worker": nodes})
    assert made == spec(nnodes=nodes)
    assert first_sizes(made) == {"worker": nodes}
    assert sized(made, {}) == made
    assert sized(made, {"ps": 3}) == made


@given(NODES, NODES, NODES)
def test_each_role_has_its_own_size_and_slots_stay_numbered_through(ps: int, worker: int, nodes: int) -> None:
    roles = [{"name": "ps", "nnodes": ps}, {"name": "worker", "nnodes": worker}]
    made = sized(spec(roles=roles), {"worker": nodes})
    assert first_sizes(made) == {"ps": ps, "worker": nodes}
    assert [part.slots for part in made.parts] == [range(ps), range(ps, ps + nodes)]
    assert check_size(spec(roles=roles), nodes=nodes, role="worker") == "worker"
    with pytest.raises(SpecError, match="several roles"):
        check_size(spec(roles=roles), nodes=nodes, role=None)


@given(NODES, st.integers(1, 40), st.integers(-3, 90))
def test_a_size_within_min_and_max_is_allowed_and_no_other(least: int, more: int, nodes: int) -> None:
    made = spec(nnodes=least, nnodes_max=least + more)
    assert sized(made, {"worker": nodes}) == made
    if least <= nodes <= least + more:
        assert check_size(made, nodes=nodes, role=None) == "worker"
    else:
        with pytest.raises((Refused, SpecError)):
            check_size(made, nodes=nodes, role=None)


@given(st.lists(st.tuples(st.sampled_from(["worker", "gone"]), NODES), max_size=6))
def test_of_several_wishes_the_newest_holds_and_damage_costs_only_itself(asked: list[tuple[str, int]]) -> None:
    import tempfile  # noqa: PLC0415 - hypothesis shares a test's own tmp_path between examples

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for at, (role, nodes) in enumerate(asked):
            with (folder / RESIZE_NAME).open("ab") as file:
                file.write(b'{"role": "worker", "nodes": 0, "at": 1}\n{"torn')
            append_resize(folder, ResizeRequest(role=role, nodes=nodes, at=at))
        newest = dict(asked)
        assert {role: one.nodes for role, one in read_resizes(folder).items()} == newest
        assert requested_sizes(folder, spec(nnodes=7)) == {"worker": newest.get("worker", 7)}


def test_a_plan_of_an_earlier_version_has_the_sizes_of_the_spec(tmp_path: Path) -> None:
    for plan in ({}, {"sizes": None}, {"sizes": {"worker": "three", "ps": 9}}):
        assert planned_sizes(plan, spec(nnodes=2)) == {"worker": 2}
    assert planned_sizes({"sizes": {"worker": 3}}, spec(nnodes=2)) == {"worker": 3}
    assert left_slots({"left": [{"slot": 3, "at": 1, "why": "lost"}]}) == {3: "lost"}
    assert left_slots({"left": [{"slot": 3, "why": "no reason"}]}) == left_slots({}) == {}
    with pytest.raises(StoreError, match="cannot resize"):
        append_resize(tmp_path / "absent", ResizeRequest(role="worker", nodes=1, at=0))


def test_jobapi_s27_refusal_08_a_fraction_that_is_counted_natively_does_not_follow_the_size() -> None:
    alone = {"backend": "job", "unattended": True, "kubernetes": {"image": "a"}, "nnodes": 5}
    with pytest.raises(Refused, match=r"\$\.unattended: the job has no supervisor"):
        check_size(spec(**alone), nodes=4, role=None)
    with pytest.raises(Refused, match=r"\$\.success\.fraction: .* would not change with the size"):
        check_size(spec(**alone, success={"policy": "fraction", "fraction": 0.8}), nodes=4, role=None)


def test_a_change_is_told_in_one_line() -> None:
    change = SizeChange(role="worker", before=2, nodes=3, asked_at=0)
    assert change.text == "worker: 2 -> 3 nodes, requested by an unknown user"
