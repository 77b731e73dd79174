"""Two faults at once on this machine: as ``tests/cluster/test_pairs.py``, with what needs no cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.cluster_page import Row
from faults.inject import NEEDS_COMPILER
from faults.pairs_local import LocalPair, local_pairs, play
from faults.pairs_page import ROWS, judged_local

# Each runs in a network namespace of its own.
pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(240)]
COVERING = frozenset(
    {"local-exception-disk-full", "local-sigkill-supervisor-killed", "local-oom-survived", "local-hang-clock"}
)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(
            pair,
            id=pair.id,
            marks=[pytest.mark.full] * (pair.id not in COVERING) + [NEEDS_COMPILER] * (pair.second == "clock"),
        )
        for pair in local_pairs()
    ],
)
def test_i19_pairs_of_faults_here(pair: LocalPair, tmp_path: Path) -> None:
    seen = play(pair, tmp_path)
    assert seen.ours is not None
    found = judged_local(pair, seen)
    first = seen.ours.verdicts[0] if seen.ours.verdicts else None
    ROWS.add(Row.seen(pair.id, first, found, seen.ours.state))
    assert found.grade != "wrong", (found.faults, seen.ours.stderr)
    assert seen.ours.left == ()
    # Of our own; those of the job stand inside the evidence.
    assert not re.search(r"^Traceback", seen.ours.stderr, re.MULTILINE)
