"""The job files that people copy: each is a job, and each fits the schema that ``rankfall config schema`` prints."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from rankfall.cli.job_options import Flags, make_spec, read_job

FILES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_a_job_and_fits_the_schema(path: Path) -> None:
    assert make_spec(Flags(file=path)).name == {"job-roles.yaml": "recommender"}.get(path.name, "char-lm")
    text = resources.files("rankfall.model.schemas").joinpath("rankfall.job-1.json").read_text("utf-8")
    jsonschema.validate(read_job(path), json.loads(text))


def test_there_is_one_for_each_kind_of_place() -> None:
    assert {make_spec(Flags(file=path)).backend for path in FILES} == {"local", "job", "jobset"}


@pytest.mark.parametrize("name", ["local.md", "exit-codes.md"])
def test_the_job_files_of_the_docs_are_jobs(name: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / name).read_text("utf-8")
    blocks = [part.split("```")[0] for part in page.split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        (tmp_path / "job.yaml").write_text(block)
        assert make_spec(Flags(file=tmp_path / "job.yaml"))
