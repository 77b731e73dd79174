"""The conformance suite as steps of a real Slurm, and equal to that of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cases import CASES, Case
from conformance.drive import Place, local
from conformance.report import Rows
from conformance.suite import Suite, chosen
from conformance.test_slurm import place
from support import real_slurm

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(real_slurm.missing()), reason=f"a real Slurm: {real_slurm.missing()}"),
]


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    folder = tmp_path_factory.mktemp("slurm")
    with real_slurm.running(folder / "cluster") as slurm, slurm.allocation() as env:

        def made(backend: str, own: Path) -> Place:
            return place(own, env) if backend == "slurm" else local(own)

        found = Suite(made, folder=folder, rows=Rows())
        found.begin((one["case"], "slurm") for one in chosen(request))
        yield found
        found.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_i24_p10_a_case_as_steps_of_a_real_slurm(suite: Suite, case: Case) -> None:
    suite.check(case, "slurm", reference="local")
