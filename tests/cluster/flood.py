"""A kernel's log that is written very fast, by a process, and what arrived counted by the ring's own numbers."""

from __future__ import annotations

import time
from typing import NamedTuple

from testbed.kernel_log import DEVICE, Newest


class Flood(NamedTuple):
    """What was written: records of the ring between the first and the last of it, seconds that it took."""

    first: int
    last: int
    seconds: float

    @property
    def arrived(self) -> int:
        return self.last - self.first + 1


def flood(count: int, *, rate: float | None = None, middle: str = "") -> Flood:
    """Write harmless records, at a rate or as fast as it goes, and one other line in their middle; numbers as the ring gave them."""
    with DEVICE.open("wb", buffering=0) as out, Newest() as newest:
        first = newest.mark(out, "begins") + 1
        begin = time.monotonic()
        written = 0
        while written < count:
            due = count if rate is None else min(count, int((time.monotonic() - begin) * rate) + 1)
            for number in range(written, due):
                text = middle if middle and number == count // 2 else f"rankfall flood: veth{number} link becomes ready"
                out.write(f"<6>{text}\n".encode())
            written = due
            if rate is not None:
                time.sleep(0.005)  # the tick of the writer: what it misses is written at the next one
        took = time.monotonic() - begin
        return Flood(first, newest.mark(out, "ends") - 1, took)
