"""The same record and the same verdict without Kubernetes: the scenarios that errors.md lists for a backend of local processes."""

from __future__ import annotations

import json

import jsonschema
import pytest

from rankfall.model.schemas import schema_of

from .conftest import Bench
from .local_scenarios import STORIES

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 18, 19, 20, 21, 22, 23, 24, 27, 29, 31)
TORCHRUN = (18, 21, 22)
# The gate runs an agent that is told to end as a part of the fault matrix.
FULL = (18,)
RECORD = jsonschema.Draft202012Validator(schema_of("rankfall.record-1"))


def _marks(number: int) -> list[pytest.MarkDecorator]:
    if number not in TORCHRUN:
        return []
    return [pytest.mark.torch, pytest.mark.timeout(120), *([pytest.mark.full] if number in FULL else [])]


def test_every_scenario_has_its_story() -> None:
    assert tuple(STORIES) == NUMBERS


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=_marks(n)) for n in NUMBERS],
)
def test_errors_s41_local_backend_records_and_verdict_of_scenario(bench: Bench, number: int) -> None:
    STORIES[number](bench)
    assert bench.made
    for run in bench.made:
        # Where the scenario takes the folder away there is nothing to check.
        for path in run.records_dir.glob("*.json"):
            RECORD.validate(json.loads(path.read_bytes()))
