"""``make fuzz-readers``: what each reader of foreign bytes costs, over the table of hostile inputs and texts that hypothesis makes.

Each pair of reader and input is measured in child processes at sizes N and 4N, and 2N where that takes time (``tests/support/reader_costs.py``). Prints a table of the dearest
inputs of each reader; 1 when a reader crashed, grew faster than its input, or took more than 2 s a MiB or 300 MiB.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.reader_costs import Result

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help="all by default")
    parser.add_argument("--size", type=int, default=32 << 10, help="N in bytes")
    parser.add_argument("--texts", type=int, default=100, help="texts of hypothesis for each reader")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--shown", type=int, default=3, help="inputs that are shown of each reader")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from support import reader_costs  # noqa: PLC0415 - of the tests

    unknown = sorted(set(given.readers) - set(reader_costs.READERS))
    if unknown:
        parser.error(f"no reader is named {unknown[0]!r}; there are: {', '.join(reader_costs.READERS)}")
    reader_costs.prepare()
    began, count = time.monotonic(), 0
    broken: list[Result] = []
    print(f"{'reader':<20} {'input':<32} {'MiB':>7} {'s/MiB':>8} {'grows':>7} {'MiB used':>9}", flush=True)
    for reader in given.readers or reader_costs.READERS:
        found = []
        for label, make in _inputs(reader, texts=given.texts, seed=given.seed):
            sizes = [given.size, 2 * given.size, 4 * given.size]
            result = reader_costs.measure(reader, label, make, sizes)
            if result.problem:
                # Once more: the machine may have been busy.
                result = reader_costs.measure(reader, label, make, sizes)
            found.append(result)
        count += len(found)
        broken += [result for result in found if result.problem]
        found.sort(key=lambda one: one.costs[-1].seconds / max(given.size, one.costs[-1].size), reverse=True)
        for result in found[: given.shown]:
            print(_row(result), flush=True)
    for result in broken:
        print(f"BROKEN {result.reader}, {result.input}: {result.problem}")
    print(f"{count} pairs of reader and input, {len(broken)} broke a bound, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


def _inputs(reader: str, *, texts: int, seed: int) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    from support import reader_costs  # noqa: PLC0415 - as above

    for one in reader_costs.inputs_of(reader):
        yield one.name, one.data
    for number, text in enumerate(reader_costs.made_texts(texts, start=seed)):
        yield f"made {number}: {text[:12]!r}", partial(reader_costs.repeated, text)


def _row(result: Result) -> str:
    last = result.costs[-1]
    seconds = last.seconds / max(1, last.size) * 2**20
    memory = max(cost.memory for cost in result.costs) / 2**20
    return f"{result.reader:<20} {result.input[:32]:<32} {last.size / 2**20:7.2f} {seconds:8.3f} {result.growth:7.1f} {memory:9.0f}"


if __name__ == "__main__":
    sys.exit(main())
