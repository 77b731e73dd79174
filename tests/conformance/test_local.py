"""The conformance suite on this machine: what every backend is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.cases import CASES, Case
from conformance.drive import local
from conformance.report import Rows
from conformance.suite import Suite, chosen

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    made = Suite(lambda _, folder: local(folder), folder=tmp_path_factory.mktemp("conformance"), rows=Rows())
    made.begin((params["case"], "local") for params in chosen(request))
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_jobapi_s28_a_case_on_this_machine(suite: Suite, case: Case) -> None:
    suite.check(case, "local", reference=None)
