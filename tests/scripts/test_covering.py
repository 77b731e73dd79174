"""The lists of tests that the gate runs on the bed, and does not run elsewhere, name tests that are there."""

from __future__ import annotations

from pathlib import Path

from cluster.covering import COVERING, covers
from support.further import FURTHER, further

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "cluster"


def test_every_name_is_a_test_of_the_bed():
    text = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    for name in (name for names in COVERING.values() for name in names):
        assert f"def {name.partition('[')[0]}(" in text, name


def test_a_name_without_a_case_covers_all_its_cases_and_a_case_only_itself():
    assert covers("test_exit_codes[v4-exit 3-3]")
    assert covers("test_a_run_trains_over_two_nodes_and_keeps_every_line[job]")
    assert not covers("test_a_run_trains_over_two_nodes_and_keeps_every_line[jobset]")
    assert not covers("test_nothing_of_this_name")


def test_every_name_that_runs_with_everything_only_is_a_test_elsewhere():
    text = "".join(path.read_text() for path in TESTS.rglob("test_*.py") if not path.is_relative_to(FOLDER))
    for name in (name for names in FURTHER.values() for name in names):
        assert f"def {name.partition('[')[0]}(" in text, name


def test_a_case_that_runs_with_everything_only_leaves_the_others_in_the_gate():
    assert further("test_ids_of_runs_are_completed[zsh]")
    assert not further("test_ids_of_runs_are_completed[bash]")
    assert further("test_a_terminal_is_asked")
