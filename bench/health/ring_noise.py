"""This machine's own kernel log, written by a process as a kernel that talks much would: harmless records at a rate, and an Xid for each order on stdin.

``python -m bench.health.ring_noise RATE SECONDS``; prints when it gave which, and at the end how many records the ring took, by the ring's own numbers. The limit of
such writes has to be lifted (``testbed.kernel_log.loud``).
"""

from __future__ import annotations

import random
import sys

from bench.health.noise import talk
from testbed.kernel_log import DEVICE, Newest


def main() -> None:
    """Write until told to end."""
    rate, seconds = sys.argv[1:]
    with DEVICE.open("wb", buffering=0) as out, Newest() as newest:
        first = newest.mark(out, "begins")
        sys.stdout.write("ready\n")
        sys.stdout.flush()

        def give(text: str) -> None:
            out.write(f"<6>{text}\n".encode())

        # The ring outlives this: Xids of an earlier time stand in it still.
        salt = random.randrange(0x8000, 0xFF00)
        _, took = talk(give, rate=int(rate), every=0, seconds=float(seconds), salt=salt)
        arrived = newest.mark(out, "ends") - first - 1
    sys.stdout.write(f"end {arrived} {took}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
