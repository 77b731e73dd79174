"""What a run costs an API server and this machine: requests of a launch, a job of a thousand pods, the way to the first pod beside kubectl.

Needs a test bed (``make bench-cluster`` starts one if none is up). All requests go through the bed's proxy, which counts them.
"""

from __future__ import annotations

import datetime as dt
import sys

from bench.bed import bed_machine, bench_bed
from bench.cluster import first_pod, launches, thousand
from bench.cluster.place import place
from bench.common import ROOT, table


def main() -> int:
    """Measure, print the table, write the page; 1 when a bound is broken."""
    with bench_bed() as bed, place(bed) as where:
        found = [*launches.rows(where), *thousand.rows(where), *first_pod.rows(where)]
    page = table(found)
    print(page)
    head = f"# Load on a cluster\n\nWritten by `make bench-cluster` on {dt.datetime.now(tz=dt.UTC).date()} ({bed_machine()}).\n\n"
    (ROOT / "docs/results/bench-cluster.md").write_text(head + page + "\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
