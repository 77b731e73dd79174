"""A cluster whose kernels talk much, as its collectors bring that to Loki: harmless lines of many nodes at a rate, in batches.

``python -m bench.health.loki_noise URL RATE SECONDS NODE...``; a line ``end`` on stdin ends it, and it prints how many lines Loki took.
"""

from __future__ import annotations

import sys
import time

from bench.health.noise import Orders, harmless
from bench.health.soak_inject import kernel_labels, push_all

_BATCH_S = 0.1


def main() -> None:
    """Push until told to end."""
    url, rate, seconds, *nodes = sys.argv[1:]
    orders = Orders()
    begin = time.monotonic()
    number = 0
    while (now := time.monotonic() - begin) < float(seconds) and not orders.ended:
        orders.take()
        due = min(int(rate), int(now * int(rate)) - number)
        if due > 0:
            at = time.time_ns()
            rows: dict[str, list[tuple[int, str]]] = {}
            for each in range(number, number + due):
                line = f"[{now + 7_200:12.6f}] {harmless(each)}"
                rows.setdefault(nodes[each % len(nodes)], []).append((at + each - number, line))
            push_all(url, [(kernel_labels(node), found) for node, found in rows.items()])
            number += due
            if number == due:
                sys.stdout.write("ready\n")
                sys.stdout.flush()
        time.sleep(_BATCH_S)
    sys.stdout.write(f"end {number} {time.monotonic() - begin}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
