"""The conformance suite as steps of an allocation: of a stand-in for Slurm, and of a real one where its packages are installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cases import CASES, Case
from conformance.drive import Place, local
from conformance.report import Rows
from conformance.suite import Suite, chosen
from support import fake_slurm

pytestmark = pytest.mark.timeout(300)
# One of each kind for every change; the others run with everything.
COVERING = {"a_rank_raises", "a_rank_is_killed", "cancel", "elastic", "without_a_supervisor"}


def place(folder: Path, env: dict[str, str]) -> Place:
    return dataclasses.replace(local(folder), backend="slurm", env=env)


@pytest.fixture(scope="module")
def fake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("slurm")

    def made(backend: str, own: Path) -> Place:
        return place(own, fake_slurm.install(own / "slurm")) if backend == "slurm" else local(own)

    suite = Suite(made, folder=folder, rows=Rows(folder / "rows.jsonl"))
    suite.begin((one["case"], "slurm") for one in chosen(request))
    yield suite
    suite.close()


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=() if one.name in COVERING else pytest.mark.full, id=one.name) for one in CASES]
)
def test_i24_p10_a_case_as_steps_of_a_stand_in_for_slurm(fake: Suite, case: Case) -> None:
    fake.check(case, "slurm", reference=None)
