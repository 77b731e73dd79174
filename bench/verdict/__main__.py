"""How soon and how rightly a fall is explained: ``python -m bench.verdict [scale] [fleet] [corpus] [unseen] [forms]``; writes docs/results/bench-verdict.md.

All parts by default. ``fleet`` needs the test bed (root): the one that ``TESTBED`` numbers, which is started where it is not up. ``--corpus FOLDER`` names other logs
than those of the repository.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path

from bench.common import ROOT, Row, machine, table
from bench.verdict import corpus, fleet, forms, scale, unseen

PARTS = ("scale", "fleet", "corpus", "unseen", "forms")


def main(argv: list[str]) -> int:
    """Measure, print the table; write the page when all parts were measured. 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.verdict", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--corpus", metavar="FOLDER", type=Path, help="logs with labels.jsonl")
    wanted = parser.parse_args(argv)
    unknown = sorted(set(wanted.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is named {unknown[0]}; there are: {', '.join(PARTS)}")
    parts = wanted.parts or PARTS
    folders = [wanted.corpus] if wanted.corpus else [corpus.FOLDER / half for half in (corpus.DEVELOP, corpus.MEASURED)]
    found: list[Row] = []
    pages: list[str] = []
    if "scale" in parts:
        found += scale.rows()
    if "fleet" in parts:
        found += fleet.rows()
    if "corpus" in parts:
        judged = {folder.name: corpus.judge(folder) for folder in folders}
        found += [row for name, logs in judged.items() for row in corpus.rows(logs, name)]
        found += [row for folder in folders for row in corpus.of_second_reader(folder)]
        found += corpus.calibration([one for logs in judged.values() for one in logs])
        shown = [one for name, logs in judged.items() if name != corpus.MEASURED for one in logs]
        pages.append(f"## Logs of which something was not said\n\n{corpus.page(shown)}")
    if "unseen" in parts:
        # Not of the measured half: nobody reads it.
        read = [folder for folder in folders if folder.name != corpus.MEASURED]
        found += [row for folder in read for row in unseen.rows_of(unseen.judge(folder), folder.name)]
    if "forms" in parts:
        changed = {folder.name: forms.judge(folder) for folder in folders}
        found += [row for name, counts in changed.items() for row in forms.rows(counts, name)]
        pages.append(f"## Forms in which a verdict changed\n\n{forms.page(list(changed.values()))}")
    text = "\n\n".join((table(found), *pages))
    print(text)
    if set(parts) == set(PARTS):
        where = f"{machine()}; load average at the end {os.getloadavg()[1]:.0f}"
        day = dt.datetime.now(tz=dt.UTC).date()
        head = (
            f"# How soon and how rightly a fall is explained\n\nWritten by `make bench-verdict` on {day} ({where}).\n\n"
        )
        (ROOT / "docs/results/bench-verdict.md").write_text(f"{head}{text}\n", encoding="utf-8")
    return 1 if any(row.holds is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
