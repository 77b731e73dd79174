"""Several roles in one job: slots numbered through, one form for everybody, contradictions named by their path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Role, SpecError, Success, spec_from

PS = {"name": "ps", "nnodes": 2, "launcher": "exec", "command": ["serve.sh"]}
WORKER = {"name": "worker", "nnodes": 3, "nproc_per_node": 2}
JOB: dict[str, Any] = {"command": ["train.py"], "roles": [PS, WORKER]}


def test_a_job_without_roles_is_one_part_the_spec_itself() -> None:
    spec = JobSpec(command=("train.py",), nnodes=2, nnodes_max=4, nproc_per_node=3, role="node")
    (part,) = spec.parts
    assert part.spec is spec
    assert (part.name, list(part.slots), part.in_world, part.first_rank) == ("node", [0, 1, 2, 3], True, 0)
    assert (spec.slot_count, spec.least_slots, spec.world_size, spec.world_nodes) == (4, 2, 12, 4)
    assert (spec.one_role, spec.role_of(0), spec.role_of(9)) == ("node", "node", "node")


def test_slots_are_numbered_through_the_roles_in_order_and_exec_is_outside_the_world() -> None:
    spec = spec_from(JOB)
    ps, worker = spec.parts
    assert (list(ps.slots), ps.in_world) == ([0, 1], False)
    assert (list(worker.slots), worker.first_node, worker.first_rank) == ([2, 3, 4], 0, 0)
    assert (spec.slot_count, spec.world_nodes, spec.world_size, spec.head_slot) == (5, 3, 6, 2)
    assert (spec.one_role, spec.several_roles) == (None, True)


def test_a_role_has_what_is_its_own_and_the_rest_of_the_job() -> None:
    job = {
        **JOB,
        "env": {"A": "1", "B": "1"},
        "kubernetes": {"image": "base:1", "node_selector": {"zone": "a", "disk": "ssd"}, "tolerations": [{"key": "x"}]},
        "roles": [
            {
                **PS,
                "env": {"B": "2"},
                "kubernetes": {
                    "image": "ps:1",
                    "node_selector": {"zone": "b"},
                    "resources": {"requests": {"cpu": "1"}},
                },
            },
            WORKER,
        ],
    }
    ps, worker = (part.spec for part in spec_from(job).parts)
    assert (ps.command, ps.env, ps.kubernetes.image) == (("serve.sh",), {"A": "1", "B": "2"}, "ps:1")
    assert ps.kubernetes.node_selector == {"zone": "b", "disk": "ssd"}
    assert ps.kubernetes.resources.requests == {"cpu": "1"}
    assert ps.kubernetes.tolerations == ({"key": "x"},)
    assert (worker.command, worker.env, worker.kubernetes.image) == (("train.py",), {"A": "1", "B": "1"}, "base:1")
    assert (worker.role, worker.roles, worker.nnodes, worker.nproc_per_node) == ("worker", (), 3, 2)


def test_a_role_may_turn_the_jobs_tolerations_off() -> None:
    job = {
        **JOB,
        "kubernetes": {"tolerations": [{"key": "x"}]},
        "roles": [{**PS, "kubernetes": {"tolerations": []}}, WORKER],
    }
    assert spec_from(job).parts[0].spec.kubernetes.tolerations == ()


def test_the_command_may_be_left_out_when_every_role_has_one() -> None:
    spec = spec_from({"roles": [PS, {**WORKER, "command": ["pkg.train"], "module": True}]})
    assert [(part.spec.command, part.spec.module) for part in spec.parts] == [
        (("serve.sh",), False),
        (("pkg.train",), True),
    ]


def test_the_module_of_the_job_is_not_that_of_a_roles_own_command() -> None:
    spec = spec_from({**JOB, "module": True})
    assert [part.spec.module for part in spec.parts] == [False, True]


def test_all_roles_outside_the_world_count_as_if_all_were_inside() -> None:
    spec = spec_from({"launcher": "exec", "command": ["serve"], "roles": [{"name": "a"}, {"name": "b", "nnodes": 2}]})
    assert (spec.world_nodes, spec.world_size, spec.head_slot) == (3, 3, 0)


@given(sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 8), st.booleans()), min_size=1, max_size=6))
def test_each_slot_is_of_one_role_and_index_and_each_rank_of_one_slot(sizes: list[tuple[int, int, bool]]) -> None:
    roles = tuple(
        Role(name=f"r{number}", nnodes=count, nproc_per_node=nproc, launcher="exec" if outside else None)
        for number, (count, nproc, outside) in enumerate(sizes)
    )
    spec = JobSpec(command=("train.py",), roles=roles)
    seen = []
    ranks = []
    nodes = []
    for part in spec.parts:
        for slot in part.slots:
            assert spec.role_of(slot) == part.name
            assert part.base + part.index_of(slot) == slot
            seen.append(slot)
            if part.first_node is not None and part.first_rank is not None:
                nodes.append(part.first_node + part.index_of(slot))
                first = part.first_rank + part.index_of(slot) * part.spec.nproc_per_node
                ranks += range(first, first + part.spec.nproc_per_node)
    assert seen == list(range(spec.slot_count))
    if any(part.in_world for part in spec.parts):
        assert nodes == list(range(spec.world_nodes))
        assert ranks == list(range(spec.world_size))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        ({"nnodes": 2}, "$.nnodes", "each role has its own"),
        ({"nnodes_max": 4}, "$.nnodes_max", "each role has its own"),
        ({"role": "node"}, "$.role", "each role has its own"),
        ({"roles": [PS, PS]}, "$.roles[1].name", "twice"),
        ({"roles": [{**PS, "name": "Ps"}]}, "$.roles[0].name", "lower-case"),
        ({"roles": [{**PS, "name": "p" * 21}]}, "$.roles[0].name", "1-20"),
        ({"roles": [{**PS, "command": []}]}, "$.roles[0].command", "empty"),
        ({"roles": [{**PS, "command": ["a", "\0"]}]}, "$.roles[0].command", "NUL"),
        ({"command": [], "roles": [PS, WORKER]}, "$.roles[1].command", "missing"),
        ({"roles": [PS, {**WORKER, "module": True}]}, "$.roles[1].module", "belongs to a command"),
        ({"roles": [PS, {**WORKER, "env": {"RANKFALL_X": "1"}}]}, "$.roles[1].env.RANKFALL_X", "Rankfall itself"),
        ({"roles": [PS, {**WORKER, "kubernetes": {"image": "a b"}}]}, "$.roles[1].kubernetes.image", "no image"),
        ({"roles": [PS, {**WORKER, "kubernetes": {"pod": {"x": 1}}}]}, "$.roles[1].kubernetes.pod.x", "pod template"),
        ({"roles": [PS, {**WORKER, "replicas": 2}]}, "$.roles[1].replicas", "is not a field"),
        (
            {"kubernetes": {"env_from": {"T": {"secret": "s", "key": "k"}}}, "roles": [{**PS, "env": {"T": "1"}}]},
            "$.roles[0].env.T",
            "env_from",
        ),
        ({"launcher": "plain", "roles": [{"name": "a"}, {"name": "b", "launcher": "torchrun"}]}, "$.roles[1].launcher", "share"),
        ({"success": {"role": "boss"}}, "$.success.role", "allowed: ps, worker"),
        ({"success": {"role": "worker", "policy": "rank0"}}, "$.success.role", "rank0"),
        ({"rules": [{"roles": ["boss"], "action": "fail"}]}, "$.rules[0].roles", "allowed: ps, worker"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_by_its_path(changes: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_from({**JOB, **changes})
    assert caught.value.path == path
    assert said in caught.value.message


def test_a_rule_and_a_success_may_name_any_role() -> None:
    spec = spec_from({**JOB, "rules": [{"roles": ["ps"], "action": "restart"}], "success": {"role": "worker"}})
    assert spec.success == Success(role="worker")
