"""Kernel lines about our own processes, from /dev/kmsg where it may be read.

Only facility 0 counts: what a process writes into the ring has another one, so a job cannot forge a kernel line. A line that names a
process counts only when that process is a rank of this attempt: the ring is shared by everything on the node.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from rankfall.signatures.catalogue import Catalogue
from rankfall.signatures.matcher import Hit, best

KMSG: Final = Path("/dev/kmsg")
_MAX_LINES: Final = 200_000
_FACILITY_SHIFT: Final = 3


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One classified line of the kernel itself; ``at`` in nanoseconds since the epoch, good to about a second."""

    at: int
    text: str
    hit: Hit
    pid: int | None


def read_kernel(catalogue: Catalogue, *, since: int, path: Path = KMSG) -> tuple[list[KernelLine], str | None]:
    """Kernel lines since a moment, and why they could not be had (None when they could).

    Args:
        catalogue: the signatures in force.
        since: nanoseconds since the epoch.
        path: the device; a test gives a file of the same format.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [], f"kernel log: {error.strerror}"
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    found: list[KernelLine] = []
    try:
        for _ in range(_MAX_LINES):
            try:
                entry = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring moved on under the reader; the next read goes on
                continue
            if not entry:
                break
            line = _parse(entry, boot=boot, since=since, catalogue=catalogue)
            if line is not None:
                found.append(line)
    except OSError as error:
        return found, f"kernel log: {error.strerror}"
    finally:
        os.close(fd)
    return found, None


def _parse(entry: bytes, *, boot: int, since: int, catalogue: Catalogue) -> KernelLine | None:
    head, separator, text = entry.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit():  # noqa: PLR2004 - priority, number, stamp
        return None
    if int(fields[0]) >> _FACILITY_SHIFT:
        return None
    at = boot + int(fields[2]) * 1000
    if at < since:
        return None
    line = text.split(b"\n", 1)[0]
    hit = best(catalogue.match_line(line, where="kernel"))
    if hit is None:
        return None
    pid = hit.groups.get("pid", "")
    return KernelLine(
        at=at, text=line.decode("utf-8", "replace")[:2000], hit=hit, pid=int(pid) if pid.isdigit() else None
    )
