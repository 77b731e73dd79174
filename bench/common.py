"""Paired timing and the table: every claim is a ratio of two things measured in turn, in one run, on one machine."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Switched off on some machines: each measured process would compile all it imports anew, which no user's does (Makefile).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True)
class Row:
    """One line of the table: what, the figure, its bound, whether it holds, and how it was measured."""

    what: str
    figure: str
    bound: str
    holds: bool | None
    how: str


def median_pairs(ours: Callable[[], float], other: Callable[[], float], *, runs: int) -> tuple[float, float, float]:
    """Medians of both and of the differences, measured in turn (A B B A ...) after one warm-up of each."""
    ours()
    other()
    a: list[float] = []
    b: list[float] = []
    for number in range(runs):
        for which in ("ab", "ba")[number % 2]:
            (a if which == "a" else b).append(ours() if which == "a" else other())
    return statistics.median(a), statistics.median(b), statistics.median(x - y for x, y in zip(a, b, strict=True))


def wall(argv: Sequence[str], **options: object) -> float:
    """Seconds that a command takes; it must end with 0."""
    begin = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    return time.perf_counter() - begin


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib() -> float:
    """Peak resident memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_fresh_process(module: str, *args: str) -> list[str]:
    """The words that ``python -m bench.<module> ARGS`` prints: memory of one measurement must not count for another."""
    out = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *args], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return out.stdout.split()


def machine() -> str:
    """What the numbers were measured on, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | measured | bound | holds | how |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {r.what} | {r.figure} | {r.bound} | {'-' if r.holds is None else 'yes' if r.holds else '**no**'} | {r.how} |"
        for r in rows
    ]
    return "\n".join(lines)
