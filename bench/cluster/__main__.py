"""What a run costs an API server and this machine: requests of a launch, a job of a thousand pods, the way to the first pod beside kubectl.

Needs a test bed (``make bench-cluster`` starts one if none is up). All requests go through the bed's proxy, which counts them.
"""

from __future__ import annotations

import datetime as dt
import os
import sys

from bench.cluster import first_pod, launches, thousand
from bench.cluster.place import place
from bench.common import ROOT, machine, table
from testbed import bed as beds
from testbed.__main__ import assemble
from testbed.layout import Layout


def main() -> int:
    """Measure, print the table, write the page; 1 when a bound is broken."""
    layout = Layout(int(os.environ.get("TESTBED", "0")))
    mine = not beds.is_up(layout)
    bed = assemble(layout)
    try:
        if mine:
            bed.up()
        with place(bed) as where:
            found = [*launches.rows(where), *thousand.rows(where), *first_pod.rows(where)]
    finally:
        if mine:
            beds.down(layout)
    page = table(found)
    print(page)
    told = f"{machine()}; the whole test bed runs on it too; load average at the end {os.getloadavg()[1]:.0f}"
    head = (
        f"# Load on a cluster\n\nWritten by `make bench-cluster` on {dt.datetime.now(tz=dt.UTC).date()} ({told}).\n\n"
    )
    (ROOT / "docs/results/bench-cluster.md").write_text(head + page + "\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
