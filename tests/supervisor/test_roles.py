"""Several roles in one job, as real processes: who is a rank and who is not, who is counted, and who is named when one falls."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.model import FailureRule, Role, SpecError, StatusDocument, Success
from rankfall.rundir import RunDir

from .conftest import Bench

FAST = {"settle_quiet_s": 0.15, "settle_max_s": 3.0, "grace_s": 1.0, "backoff_s": 0.02}
STAY = "time.sleep(600)"
SERVE = (sys.executable, "-c", "import time; time.sleep(600)")
TELL = """
import json
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANKFALL_SLOT")
said = {name: int(os.environ[name]) for name in names}
open(f"said-{rank}.json", "w").write(json.dumps({**said, "role": os.environ["RANKFALL_ROLE"]}))
"""


def status_of(run: RunDir) -> StatusDocument:
    with run.reader() as reader:
        return reader.status(time.time_ns())


def said(bench: Bench) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in bench.folder.glob("said-*.json")]
    return sorted(found, key=lambda one: one["RANK"])


def roles(*given: Role) -> dict[str, Any]:
    return {"nnodes": 1, "roles": given, "policies": FAST}


def test_jobapi_s11_when_the_workers_are_done_the_parameter_servers_are_stopped(bench: Bench) -> None:
    run, outcome = bench.run(
        "pass",
        **roles(Role(name="ps", nnodes=2, launcher="exec", command=SERVE), Role(name="worker", nnodes=3)),
        success=Success(role="worker", drain_s=0.2),
    )
    assert (outcome.state, outcome.verdict, outcome.attempts) == ("succeeded", None, 1)
    assert bench.texts("success") == [
        "done: 3 of 3 slots of role worker ended with 0, 3 are required; the other slots have 0.2 s to finish"
    ]
    assert bench.texts("failure") == []
    assert "attempt 1: ps 2 nodes, worker 3 nodes x 1 rank" in " ".join(bench.texts("attempt"))
    status = status_of(run)
    assert [(slot.slot, slot.role, slot.note) for slot in status.slots] == [
        (0, "ps", "stopped after success"),
        (1, "ps", "stopped after success"),
        (2, "worker", None),
        (3, "worker", None),
        (4, "worker", None),
    ]
    assert [(rank.rank, rank.slot) for rank in status.ranks] == [(0, 2), (1, 3), (2, 4)]


def test_two_plain_roles_share_one_world_and_count_ranks_within_each(bench: Bench) -> None:
    _, outcome = bench.run(
        TELL,
        **roles(
            Role(name="chief", nproc_per_node=1),
            Role(name="ps", launcher="exec", command=(sys.executable, "-c", "pass")),
            Role(name="worker", nnodes=2, nproc_per_node=2),
        ),
    )
    assert outcome.state == "succeeded"
    found = said(bench)
    assert [one["RANK"] for one in found] == [0, 1, 2, 3, 4]
    assert {one["WORLD_SIZE"] for one in found} == {5}
    assert [(one["role"], one["ROLE_RANK"], one["ROLE_WORLD_SIZE"]) for one in found] == [
        ("chief", 0, 1),
        *(("worker", number, 4) for number in range(4)),
    ]
    assert [(one["RANKFALL_SLOT"], one["GROUP_RANK"], one["LOCAL_RANK"]) for one in found] == [
        (0, 0, 0),
        (2, 1, 0),
        (2, 1, 1),
        (3, 2, 0),
        (3, 2, 1),
    ]


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_two_torchrun_roles_share_one_rendezvous_with_ranks_of_their_own(bench: Bench) -> None:
    pytest.importorskip("torch")
    code = (
        TELL
        + "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ndist.destroy_process_group()"
    )
    run, outcome = bench.run(
        code,
        launcher="torchrun",
        **roles(Role(name="learner"), Role(name="actor", nproc_per_node=2)),
    )
    assert outcome.state == "succeeded"
    found = said(bench)
    assert [(one["RANK"], one["role"], one["ROLE_RANK"], one["ROLE_WORLD_SIZE"]) for one in found] == [
        (0, "learner", 0, 1),
        (1, "actor", 0, 2),
        (2, "actor", 1, 2),
    ]
    assert {rank.rank: rank.slot for rank in status_of(run).ranks} == {0: 0, 1: 1, 2: 1}


def test_a_rank_of_the_second_role_that_falls_is_named_with_its_role(bench: Bench) -> None:
    run, outcome = bench.run(
        f"if rank == 1: raise ValueError('bad sample')\n{STAY}",
        **roles(Role(name="ps", nnodes=2, launcher="exec", command=SERVE), Role(name="worker", nnodes=2)),
    )
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    verdict = outcome.verdict
    assert verdict is not None
    assert (verdict.cause.slug, verdict.role, verdict.slot, verdict.rank) == ("user_code_exception", "worker", 3, 1)
    assert (run.path / "slots" / "attempt-1" / "worker-3").is_dir()


def test_a_slot_outside_the_world_that_falls_ends_the_attempt_and_is_named(bench: Bench) -> None:
    _, outcome = bench.run(
        STAY,
        **roles(
            Role(name="ps", nnodes=2, launcher="exec", command=(sys.executable, "-c", "import os, sys, time; sys.exit(9) if os.environ['RANKFALL_INDEX'] == '1' else time.sleep(600)")),
            Role(name="worker", nnodes=2),
        ),
        success=Success(role="worker"),
    )  # fmt: skip
    assert (outcome.state, outcome.code) == ("failed", 9)
    verdict = outcome.verdict
    assert verdict is not None
    assert (verdict.role, verdict.slot, verdict.rank) == ("ps", 1, None)


def test_numbers_that_a_program_outside_the_world_gives_its_processes_are_no_ranks(bench: Bench) -> None:
    program = "import os, subprocess, sys; env = {**os.environ, 'RANK': '0', 'WORLD_SIZE': '1'}; subprocess.run([sys.executable, '-c', 'print(1)'], env=env, check=True)"
    run, outcome = bench.run(
        "pass",
        **roles(Role(name="evaluator", launcher="exec", command=(sys.executable, "-c", program)), Role(name="worker")),
    )
    assert outcome.state == "succeeded"
    assert [(rank.rank, rank.slot) for rank in status_of(run).ranks] == [(0, 1)]


def test_a_rule_by_role_sees_the_role_of_each_slot(bench: Bench) -> None:
    code = f"if os.environ['RANKFALL_ATTEMPT'] == '1' and rank == 0: sys.exit(5)\nif os.environ['RANKFALL_ATTEMPT'] == '1': {STAY}"
    pair = (Role(name="ps", launcher="exec", command=SERVE), Role(name="worker"))
    for role, state in (("worker", "succeeded"), ("ps", "failed")):
        _, outcome = bench.run(
            code,
            **roles(*pair),
            rules=(FailureRule(roles=(role,), exit_codes=(5,), action="restart"),),
            success=Success(role="worker", drain_s=0.1),
        )
        assert outcome.state == state


def test_a_fraction_is_counted_within_its_role(bench: Bench) -> None:
    code = f"if rank == 1: {STAY}"
    run, outcome = bench.run(
        code,
        **roles(Role(name="ps", launcher="exec", command=SERVE), Role(name="worker", nnodes=2)),
        success=Success(policy="fraction", fraction=0.5, role="worker", drain_s=0.1),
    )
    assert outcome.state == "succeeded"
    assert [slot.note for slot in status_of(run).slots] == ["stopped after success", None, "stopped after success"]


def test_roles_have_variables_of_their_own_which_are_stored_nowhere_but_in_the_spec(bench: Bench) -> None:
    code = "open(f'env-{rank}', 'w').write(os.environ['WHO'] + os.environ['ALL'])"
    run, outcome = bench.run(
        code,
        **roles(Role(name="a", env={"WHO": "sesame-a"}), Role(name="b", env={"WHO": "sesame-b"})),
        env={"ALL": "!"},
    )
    assert outcome.state == "succeeded"
    assert [(bench.folder / f"env-{rank}").read_text() for rank in (0, 1)] == ["sesame-a!", "sesame-b!"]
    with run.reader() as reader:
        assert "sesame" not in json.dumps([row.plan for row in reader.attempts()])


def test_roles_that_would_need_two_launchers_are_refused(bench: Bench) -> None:
    spec = bench.spec("pass", **roles(Role(name="a"), Role(name="b", command=("/bin/true",))), launcher="auto")
    backend = LocalBackend()
    pytest.importorskip("torch")
    try:
        with pytest.raises(SpecError, match="role b would be started by plain and role a by torchrun"):
            backend.plan(spec, bench.run_dir(spec), 1)
    finally:
        backend.release()


def test_what_is_wrong_with_one_role_names_it(bench: Bench) -> None:
    spec = bench.spec("pass", **roles(Role(name="a"), Role(name="b", command=("absent.py",))))
    backend = LocalBackend()
    try:
        with pytest.raises(SpecError, match=r"absent\.py.*role b"):
            backend.plan(spec, bench.run_dir(spec), 1)
    finally:
        backend.release()
