"""This machine's own kernel log as a place that processes write to very fast: the limit of such writes lifted for a while, and what arrived counted by the ring's own numbers.

By default the kernel lets 10 such records in 5 s through and drops the others without a word, so a rate that was meant proves nothing.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from testbed.errors import TestbedError

SWITCH = Path("/proc/sys/kernel/printk_devkmsg")
DEVICE = Path("/dev/kmsg")
_GUARD_S = 20.0
_LARGEST = 16 << 10
# Beside whoever wants it, so that it is done whatever becomes of that: it goes on when the pipe closes, and that is when nobody holds it any more.
_GUARD = 'read -r _; echo "$1" >"$0"'


@contextmanager
def loud(switch: Path = SWITCH) -> Iterator[None]:
    """Writes of processes are not limited for the life of the block.

    Args:
        switch: of the kernel; a test gives a file.

    Raises:
        TestbedError: the kernel keeps its limit (``printk.devkmsg=`` on its command line locks it), or it did not come back afterwards.
    """
    before = switch.read_text().strip()
    with subprocess.Popen(["sh", "-c", _GUARD, str(switch), before], stdin=subprocess.PIPE, start_new_session=True) as guard:  # fmt: skip
        try:
            try:
                switch.write_text("on\n")
            except OSError as error:
                raise TestbedError(
                    f"{switch} cannot be set: {error}", hint="printk.devkmsg= on the kernel's command line locks it"
                ) from error
            yield
        finally:
            if guard.stdin is not None:
                guard.stdin.close()
            guard.wait(_GUARD_S)
    if switch.read_text().strip() != before:
        raise TestbedError(f"{switch} is not {before} again", hint=f"echo {before} >{switch}")


class Newest:
    """Reads the ring from its end on, to learn the number of a record that was just written."""

    def __enter__(self) -> Self:
        self._fd = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def mark(self, out: BinaryIO, word: str) -> int:
        """Write a line of its own and find its number.

        Args:
            out: the device, opened to write without a buffer.
            word: tells the line from others.
        """
        os.lseek(self._fd, 0, os.SEEK_END)
        text = f"rankfall flood {word} {time.monotonic_ns()}"
        out.write(f"<6>{text}\n".encode())
        while True:
            try:
                data = os.read(self._fd, _LARGEST)
            except (BlockingIOError, BrokenPipeError):  # not there yet; or others wrote more than the ring holds
                continue
            if text.encode() in data:
                return int(data.split(b",")[1])
