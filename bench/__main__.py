"""Run all parts, or those named: ``python bench [startup] [streams] [text] [reduce] [report]``. Writes docs/results/bench.md when all were run."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import reduce, report, startup, streams, text
from bench.common import ROOT, Row, machine, table

PARTS = {
    "reduce": reduce.rows,
    "startup": startup.rows,
    "streams": streams.rows,
    "text": text.rows,
    "report": report.rows,
}


def main(names: list[str]) -> int:
    """Print the table; exit 1 when a bound is broken."""
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        print(f"no part is named {unknown[0]}; there are: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    found: list[Row] = []
    for name in names or list(PARTS):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        found += PARTS[name]()
    page = table(found)
    print(page)
    if not names:
        head = (
            f"# Speed and memory\n\nWritten by `make bench` on {dt.datetime.now(tz=dt.UTC).date()} ({machine()}).\n\n"
        )
        (ROOT / "docs/results/bench.md").write_text(head + page + "\n", encoding="utf-8")
    return 1 if any(r.holds is False for r in found) else 0


sys.exit(main(sys.argv[1:]))
