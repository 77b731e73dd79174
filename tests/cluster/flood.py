"""A kernel's log that is written very fast, by a process: the limit of such writes lifted for a moment, and what arrived counted by the ring's own numbers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

SWITCH = Path("/proc/sys/kernel/printk_devkmsg")
DEVICE = Path("/dev/kmsg")
# Beside the test, so that it is done whatever becomes of the test: it goes on when the pipe closes, and that is when nobody holds it any more.
_GUARD = 'read -r _; echo "$0" >/proc/sys/kernel/printk_devkmsg'


@contextmanager
def loud_kernel() -> Iterator[None]:
    """Writes of processes are not limited for the life of the block: by default 10 arrive in 5 s and the others are dropped."""
    before = SWITCH.read_text().strip()
    with subprocess.Popen(["sh", "-c", _GUARD, before], stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            SWITCH.write_text("on\n")
            assert SWITCH.read_text().strip() == "on"
            yield
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(20)
    assert SWITCH.read_text().strip() == before


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
    with DEVICE.open("wb", buffering=0) as out, _Newest() as newest:
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


class _Newest:
    """Reads the ring from its end on, to learn the number of a record that was just written."""

    def __enter__(self) -> Self:
        self._fd = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def mark(self, out: BinaryIO, word: str) -> int:
        """Write a line of its own and find its number."""
        os.lseek(self._fd, 0, os.SEEK_END)
        text = f"rankfall flood {word} {time.monotonic_ns()}"
        out.write(f"<6>{text}\n".encode())
        while True:
            try:
                data = os.read(self._fd, 16 << 10)
            except (BlockingIOError, BrokenPipeError):  # not there yet; or others wrote more than the ring holds
                continue
            if text.encode() in data:
                return int(data.split(b",")[1])
