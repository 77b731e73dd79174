"""``make fuzz``: ten million mutated kernel lines through the reader of node health; writes ``docs/results/fuzz-kernel-lines.md``.

Each line is read by the product and by a second reader that shares nothing with it (``tests/nodes/fuzz_lines.py``). Lines of a seed are always the
same, whatever number of processes reads them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PART = 100_000


def part(seed: int) -> Any:
    """One part, in a process of its own."""
    from nodes.fuzz_lines import run  # noqa: PLC0415 - of the tests

    return run(seed, PART)


def main() -> int:
    """Read them all; 1 when a code was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=20_261_122)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results/fuzz-kernel-lines.md")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from nodes.fuzz_lines import examples  # noqa: PLC0415 - as above

    parts = -(-given.lines // PART)
    lines, kinds, wrong = 0, dict[str, int](), list[str]()
    began = time.monotonic()
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        for number, found in enumerate(
            pool.imap_unordered(part, range(given.seed * 1_000, given.seed * 1_000 + parts)), 1
        ):
            lines += found.lines
            wrong += found.wrong
            for kind, count in found.kinds.items():
                kinds[kind] = kinds.get(kind, 0) + count
            if number % 10 == 0 or number == parts:
                print(f"{lines:,} lines, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
    told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))
    page = (
        f"# Fuzzed kernel lines\n\nWritten by `make fuzz` on {dt.datetime.now(tz=dt.UTC).date()}: seed {given.seed}, {lines:,} lines mutated from "
        f"{len(examples())} examples, {len(wrong)} wrong codes, no crash.\n\nCodes by kind: {told}.\n\n"
        "Each line was read by the product and by a second reader that shares nothing with it (`tests/nodes/fuzz_lines.py`): the drivers' grammar walked "
        "byte by byte, and the signatures tried one by one with another engine. Wrong is any other code than that reader's: a number that the line does not hold "
        "at its place, a word that it does not say, a signature that does not match from its first byte, or one that was missed.\n"
    )
    given.page.write_text(page + "".join(f"\n- `{each[:300]}`" for each in wrong[:20]), encoding="utf-8")
    for each in wrong[:20]:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
