"""How soon and how rightly a fall is explained: ``python -m bench.verdict [scale] [fleet] [corpus]``; writes docs/results/bench-verdict.md.

All parts by default. ``fleet`` needs the test bed (root): the one that ``TESTBED`` numbers, which is started where it is not up. ``--corpus FOLDER`` names the real logs.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys

from bench.common import ROOT, Row, machine, table
from bench.verdict import corpus, fleet, scale

PARTS = ("scale", "fleet", "corpus")


def main(argv: list[str]) -> int:
    """Measure, print the table; write the page when all parts were measured. 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.verdict", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--corpus", metavar="FOLDER", help=f"real logs with labels.jsonl; default ${corpus.VARIABLE}")
    wanted = parser.parse_args(argv)
    unknown = sorted(set(wanted.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is named {unknown[0]}; there are: {', '.join(PARTS)}")
    parts = wanted.parts or PARTS
    folder = corpus.folder_of(wanted.corpus) if "corpus" in parts else None
    found: list[Row] = []
    if "scale" in parts:
        found += scale.rows()
    if "fleet" in parts:
        found += fleet.rows()
    judged = corpus.judge(folder) if folder is not None else []
    found += corpus.rows(judged) if judged else []
    text = table(found)
    if judged:
        text += "\n\n## Real logs, one by one\n\n" + corpus.page(judged)
    print(text)
    if set(parts) == set(PARTS):
        told = f"{machine()}; load average at the end {os.getloadavg()[1]:.0f}"
        day = dt.datetime.now(tz=dt.UTC).date()
        head = (
            f"# How soon and how rightly a fall is explained\n\nWritten by `make bench-verdict` on {day} ({told}).\n\n"
        )
        (ROOT / "docs/results/bench-verdict.md").write_text(f"{head}{text}\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
