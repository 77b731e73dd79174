"""The list of the bed's tests that the gate runs names tests that are there."""

from __future__ import annotations

from pathlib import Path

from cluster.covering import COVERING, covers

FOLDER = Path(__file__).parents[1] / "cluster"


def test_every_name_is_a_test_of_the_bed():
    text = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    for name in (name for names in COVERING.values() for name in names):
        assert f"def {name.partition('[')[0]}(" in text, name


def test_a_name_without_a_case_covers_all_its_cases_and_a_case_only_itself():
    assert covers("test_exit_codes[v4-exit 3-3]")
    assert covers("test_a_run_trains_over_two_nodes_and_keeps_every_line[job]")
    assert not covers("test_a_run_trains_over_two_nodes_and_keeps_every_line[jobset]")
    assert not covers("test_nothing_of_this_name")
