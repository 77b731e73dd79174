"""A job of one rank pays nothing for those that are distributed: its records are not listed while all goes well."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from rankfall.model import JobSpec
from rankfall.rundir import RunDir
from support.patience import scaled

from .conftest import Bench

_LISTED: list[str] = []
_ON = [False]


def _listens(event: str, args: tuple[object, ...]) -> None:
    if _ON[0] and event in {"os.listdir", "os.scandir"}:
        _LISTED.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else str(args[0]))


# An audit hook cannot be taken away again; it looks away unless it is asked.
sys.addaudithook(_listens)


@pytest.fixture
def listed() -> Iterator[list[str]]:
    """Every folder that this process lists meanwhile."""
    _LISTED.clear()
    _ON[0] = True
    yield _LISTED
    _ON[0] = False


def of_records(listed: list[str], run: RunDir) -> list[str]:
    return [path for path in listed if path.startswith(str(run.records_dir))]


ONE = {"nnodes": 1, "nproc_per_node": 1}
STEPS = """
from rankfall_inside import progress
for step in range(5):
    progress(step); print("step", step, flush=True); time.sleep(0.1)
"""


@pytest.mark.parametrize("inside", ["auto", "off"])
def test_errors_s9_a_job_of_one_rank_lists_no_records(bench: Bench, listed: list[str], inside: str) -> None:
    run, outcome = bench.run(STEPS if inside == "auto" else "time.sleep(0.3)", inside=inside, **ONE)
    assert outcome.state == "succeeded"
    assert listed
    assert of_records(listed, run) == []
    assert [event.data["rank"] for event in bench.events if event.kind == "rank"] == [0]
    with run.reader() as reader:
        (rank,), (slot,) = reader.ranks(1), reader.slots(1)
    assert (rank.state, rank.exit_code, rank.hook) == ("ended", 0, "loaded" if inside == "auto" else "absent")
    assert rank.started_at is not None
    assert rank.ended_at is not None
    assert rank.started_at < rank.ended_at
    assert (slot.state, slot.exit_code, slot.node) == ("ended", 0, "node0")
    if inside == "auto":
        assert rank.step == 4
        assert (run.path / "rank-00000.log").read_text().splitlines()[-1] == "step 4"


@pytest.mark.torch
@pytest.mark.full
def test_errors_s9_a_job_of_one_rank_under_torchrun_lists_no_records(bench: Bench, listed: list[str]) -> None:
    run, outcome = bench.run("print(os.environ['TORCHELASTIC_RUN_ID'])", launcher="torchrun", **ONE)
    assert outcome.state == "succeeded"
    assert of_records(listed, run) == []
    assert (run.path / "rank-00000.log").read_text() == f"{run.id}-a1\n"


def test_errors_s9_one_that_falls_is_explained_from_its_records(bench: Bench, listed: list[str]) -> None:
    run, outcome = bench.run("time.sleep(0.2); raise KeyError('vocab')", **ONE)
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.rank, outcome.code) == ("user_code_exception", 0, 1)
    assert outcome.verdict.decisive is not None
    assert outcome.verdict.decisive.source == "record"
    assert of_records(listed, run)


def test_errors_s9_who_names_a_strategy_or_has_two_ranks_lists(bench: Bench, listed: list[str]) -> None:
    for fields in (ONE | {"strategy": "earliest"}, {"nnodes": 1, "nproc_per_node": 2}):
        run, outcome = bench.run("pass", **fields)
        assert outcome.state == "succeeded"
        assert of_records(listed, run)


def test_a_lone_rank_whose_wrapper_is_killed_is_a_lost_slot(bench: Bench) -> None:
    code = "os.kill(int(os.environ['RANKFALL_WRAPPER']), signal.SIGKILL); time.sleep(600)"
    _, outcome = bench.run(code, policies={"max_restarts": 0}, **ONE)
    assert outcome.verdict is not None
    assert (outcome.verdict.cause.slug, outcome.verdict.slot) == ("killed_unknown", 0)


def test_a_lone_rank_that_stands_still_is_explained_as_one_among_many_records(bench: Bench) -> None:
    policies = {"hang_timeout_s": scaled(1.5), "max_restarts": 0}
    found = []
    for strategy in (None, "causal"):
        run, outcome = bench.run("time.sleep(600)", policies=policies, strategy=strategy, **ONE)
        assert outcome.verdict is not None
        found.append((outcome.verdict.cause.slug, outcome.verdict.rank, len(outcome.verdict.evidence)))
        assert len(list(run.records_dir.glob("stacks-*.json"))) == 1
    assert found[0] == found[1]


def test_programs_one_after_the_other_are_told_apart(bench: Bench) -> None:
    first = bench.spec("print('one', flush=True)", **ONE)
    second = bench.spec("print('two', flush=True)", **ONE)
    shell = ("sh", "-c", f"{sys.executable} {first.command[0]} && {sys.executable} {second.command[0]}")
    run = bench.run_dir(JobSpec(command=shell, cwd=str(bench.folder), launcher="plain"))
    assert bench.supervise(run).state == "succeeded"
    assert (run.path / "rank-00000.log").read_text() == "one\ntwo\n"
