"""``make bench-logs``: everything about logs, side by side in one run, on a bed that is up or on one of its own.

Words choose parts: ``python -m bench.logs loss`` (``make bench-loss``) makes the table of losses alone; the
others are in ``PARTS``. A part that was not measured keeps what stands on the page.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Final

from bench.bed import bench_bed
from bench.common import ROOT, Row, machine, table
from bench.logs import fleet, latency, loss, speed
from bench.logs.clients import missing
from bench.logs.page import loss_table, replaced, section
from testbed.bed import Bed
from testbed.ondemand import kwok
from testbed.proxy import Proxy, before

PARTS: Final = ("loss", "replay", "live", "latency", "fleet", "thousand")
PAGE: Final = ROOT / "docs/results/bench-logs.md"


def main(parts: list[str]) -> int:
    """Measure, print, write; 1 when a bound is broken, 2 when it cannot begin."""
    reason = missing()
    unknown = set(parts) - set(PARTS)
    if reason or unknown:
        print(reason or f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    broken = False
    with bench_bed() as bed:
        for part in parts or PARTS:
            broken |= _part(part, bed)
    return int(broken)


def _part(part: str, bed: Bed) -> bool:
    """Measure one part and write it down; whether a bound is broken."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    bed.kubectl.create_namespace(namespace)
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as name:
            where = speed.Where(bed.kubectl, bed.kubectl.kubeconfig, namespace, Path(name))
            if part == "loss":
                text = _losses(bed, where)
            else:
                rows = _rows(part, bed, where)
                text = table(rows) + "\n"
    finally:
        bed.kubectl.run("delete", "namespace", namespace, "--wait=false")
    print(text)
    told = f"Measured on {dt.datetime.now(tz=dt.UTC).date()} ({machine()}; the whole test bed runs on it too; load average {os.getloadavg()[0]:.0f})."
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), part, section(text, told)), encoding="utf-8")
    return any(row.holds is False for row in rows)


def _rows(part: str, bed: Bed, where: speed.Where) -> list[Row]:
    """The rows of a part that is measured as figures."""
    if part in {"fleet", "thousand"}:
        with kwok.fleet(bed, nodes=20, pods=0) as found:
            return (speed.fleet_rows if part == "fleet" else fleet.rows)(where, found)
    return {"replay": speed.replay_rows, "live": speed.live_rows, "latency": latency.rows}[part](where)


def _losses(bed: Bed, where: speed.Where) -> str:
    with Proxy(before.settings(bed.layout)) as proxy:
        config = before.through(proxy.url, where.config, where.folder / "kubeconfig")
        found = loss.rows(bed.kubectl, proxy, config=config, namespace=where.namespace, folder=where.folder)
    return loss_table(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
