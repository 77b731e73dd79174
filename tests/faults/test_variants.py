"""What CI runs of the matrix leaves no kind of fault, no launcher and no other axis out."""

from __future__ import annotations

from typing import get_args

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
    assert len(covering) == len({(one.fault.name, one.hook, one.nnodes) for one in covering})


def test_the_whole_matrix_has_each_fault_under_each_of_its_launchers_and_without_the_hook() -> None:
    seen = {(one.fault.name, one.launcher) for one in variants() if one.hook and one.nnodes == 2}
    assert seen == {(fault.name, launcher) for fault in FAULTS for launcher in fault.launchers}
    assert {one.fault.name for one in variants() if not one.hook} == {fault.name for fault in FAULTS}
