"""What the gate runs of the matrix leaves no kind of fault, no launcher and no other axis out."""

from __future__ import annotations

from typing import get_args

from faults.cluster_page import Row
from faults.cluster_table import cells
from faults.pairs_page import held, render
from faults.pairs_table import EXPECTED, FIRST, SECOND, pairs
from faults.table import FAULTS, Launcher
from faults.variants import kind, variants


def test_the_covering_part_touches_every_kind_of_fault_and_every_axis() -> None:
    covering = [one for one in variants() if not one.full]
    assert {kind(one.fault) for one in covering} == {kind(fault) for fault in FAULTS if fault.core}
    assert {one.launcher for one in covering if one.hook} == set(get_args(Launcher))
    assert {one.launcher for one in covering if not one.hook} == set(get_args(Launcher))
    assert {one.nnodes for one in covering} == {2, 4}
    assert {one.fault.inject for one in covering} == {fault.inject for fault in FAULTS}
    # Each at most once, or it would be no small part.
    assert len(covering) == len({(one.fault.name, one.hook, one.torch, one.nnodes) for one in covering})
    assert sum(one.torch for one in covering) <= 12


def test_the_whole_matrix_has_each_fault_under_each_of_its_launchers_and_without_the_hook() -> None:
    seen = {(one.fault.name, one.launcher) for one in variants() if one.hook and one.torch and one.nnodes == 2}
    assert seen == {(fault.name, launcher) for fault in FAULTS for launcher in fault.launchers}
    assert {one.fault.name for one in variants() if one.torch and not one.hook} == {fault.name for fault in FAULTS}


def test_each_cell_of_the_cluster_has_a_name_of_its_own() -> None:
    names = [cell.id for cell in cells()]
    assert sorted(set(names)) == sorted(names)


def test_i19_every_pair_has_an_expected_outcome_with_its_reasoning() -> None:
    whole = list(pairs())
    assert {pair.key for pair in whole} == EXPECTED.keys()
    assert len(whole) == len(FIRST) * len(SECOND) >= 48
    assert all(pair.expected.because.endswith(".") for pair in whole)


def test_i19_the_page_of_pairs_keeps_what_it_holds_and_shows_what_was_wrong() -> None:
    cells = [pair.id for pair in pairs()][:3]
    said = "rank 2, n2: user_code_exception (proven), retry no"
    rows = {
        cells[0]: Row(cell=cells[0], grade="right", faults=(), said=said, day="2026-11-23"),
        cells[1]: Row(cell=cells[1], grade="wrong", faults=("node n2 was used again",), said=said, day="2026-11-23"),
    }
    page = render(rows)
    assert "80 cells, 2 of them run: 1 right, 0 weak, 0 unknown, 1 wrong." in page
    assert f"{said}; node n2 was used again" in page
    again = held(page)
    assert again.keys() == rows.keys()
    assert render(again) == page
