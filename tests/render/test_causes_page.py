from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from rankfall.cli.app import command
from rankfall.model.causes import catalogue
from rankfall.render.summary import advice
from rankfall.render.tables import causes_page

PAGE = Path(__file__).parents[2] / "docs" / "causes.md"


def test_the_published_page_is_the_catalogue():
    assert PAGE.read_text("utf-8") == causes_page()


def test_the_command_prints_the_page():
    assert CliRunner().invoke(command(), ["config", "causes"]).output == causes_page()


def test_every_cause_is_on_the_page_once_with_its_evidence_and_advice():
    lines = causes_page().splitlines()
    for slug, cause in catalogue().items():
        (line,) = [one for one in lines if one.startswith(f"| `{slug}` |")]
        assert cause.evidence
        assert advice()[slug].advice.replace("|", "\\|") in line
