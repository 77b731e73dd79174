"""Reads kernel log lines that name processes of this attempt.

Only facility 0 counts, so a job cannot forge a line; the whole node shares the log.

Cost: at most ``_MAX_LINES`` records of at most 16 KiB a poll, each matched once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from rankfall.kernellog.reader import Ring
from rankfall.kernellog.record import KmsgRecord
from rankfall.model import numbers
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit, best

KMSG: Final = Path("/dev/kmsg")
_MAX_LINES: Final = 200_000
_BATCH: Final = 1_000


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One classified kernel line; ``at`` in nanoseconds since the epoch, accurate to a second."""

    at: int
    text: str
    hit: Hit
    pid: int | None


def read_kernel(catalogue: Catalogue, *, since: int, path: Path = KMSG) -> tuple[list[KernelLine], str | None]:
    """Returns kernel lines since a time, and the reason if they are unavailable (else None)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [], f"kernel log: {error.strerror}"
    began = boot_at()
    found: list[KernelLine] = []
    # Each read is for one moment: earlier results are useless.
    ring = Ring(fd, boot="this")
    read = 0
    try:
        while read < _MAX_LINES and (entries := ring.take(_BATCH)):
            read += len(entries)
            for entry in entries:
                line = (
                    _line(entry, boot=began, since=since, catalogue=catalogue)
                    if isinstance(entry, KmsgRecord)
                    else None
                )
                if line is not None:
                    found.append(line)
    except OSError as error:
        return found, f"kernel log: {error.strerror}"
    finally:
        os.close(fd)
    return found, None


def boot_at() -> int:
    """Time of this machine's boot in nanoseconds since the epoch, by its current clocks."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _line(entry: KmsgRecord, *, boot: int, since: int, catalogue: Catalogue) -> KernelLine | None:
    at = boot + entry.stamp_us * 1000
    if not entry.by_kernel or at < since:
        return None
    hit = best(catalogue.match_line(entry.text, where="kernel"))
    if hit is None:
        return None
    pid = hit.groups.get("pid", "")
    return KernelLine(at=at, text=entry.text.decode("utf-8", "replace")[:2000], hit=hit, pid=numbers.whole(pid))
