"""The test bed that a bench runs on: the one that is up (``TESTBED`` says its number), else one of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from bench.common import machine
from testbed import bed as beds
from testbed.__main__ import assemble
from testbed.bed import Bed
from testbed.layout import Layout


@contextlib.contextmanager
def bench_bed() -> Iterator[Bed]:
    """A bed that is up; one that was started for it is taken down afterwards."""
    layout = Layout(int(os.environ.get("TESTBED", "0")))
    mine = not beds.is_up(layout)
    bed = assemble(layout)
    try:
        if mine:
            bed.up()
        yield bed
    finally:
        if mine:
            beds.down(layout)


def bed_machine() -> str:
    """Where a page was measured, in words."""
    return f"{machine()}; the whole test bed runs on it too; load average at the end {os.getloadavg()[1]:.0f}"
