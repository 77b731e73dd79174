from __future__ import annotations

from pathlib import Path

import yaml
from click.testing import CliRunner

from rankfall.cli.app import command
from rankfall.model import spec_from
from rankfall.model.exit_codes import CODE_TABLE, page

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def test_the_published_table_is_the_models():
    assert PAGE.read_text("utf-8") == page()


def test_the_command_prints_the_page():
    assert CliRunner().invoke(command(), ["config", "exit-codes"]).output == page()


def test_every_row_is_on_the_page():
    for row in CODE_TABLE:
        assert f"| {row.codes} | {row.kind} | {row.action} |" in page()


def test_the_example_of_the_page_is_a_job():
    example = page().split("```yaml\n")[1].split("```")[0]
    assert len(spec_from(yaml.safe_load(example)).rules) == 4
