"""From the writer to the screen: each line carries when it was written, and whoever reads ``rankfall attach`` notes when it came."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from statistics import quantiles
from typing import IO, Final

from bench.common import ROOT, Row
from bench.logs.scene import scene
from bench.logs.speed import Where

LINES, PAUSE_S = 1_000, 0.02
P99_S: Final = 0.3
_CONNECT_S: Final = 15.0
_LIMIT_S: Final = 120.0
_WRITTEN: Final = re.compile(rb"count \d+ \d+\|(\d+)\|")


def rows(where: Where) -> list[Row]:
    """The row of the page."""
    folder = where.folder / "latency"
    folder.mkdir()
    delays: list[float] = []
    with scene(
        where.kubectl,
        config=where.config,
        namespace=where.namespace,
        folder=folder,
        pods=1,
        paced=LINES,
        pause_s=PAUSE_S,
    ) as pods:
        pods.copy(folder / "copy")
        argv = [sys.executable, "-m", "rankfall", "attach", pods.run]
        process = subprocess.Popen(
            argv,
            env=pods.environment(folder / "copy"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )
        reader = threading.Thread(target=_read, args=(process.stdout, delays), daemon=True)
        reader.start()
        time.sleep(_CONNECT_S)
        pods.go()
        deadline = time.monotonic() + _LIMIT_S
        while len(delays) < LINES and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.2)
        process.terminate()
        process.wait()
        reader.join(5.0)
    if len(delays) < LINES:
        raise RuntimeError(f"{len(delays)} of {LINES} lines came to the screen")
    cuts = quantiles(delays, n=100)
    return [
        Row(
            "from the writer to the screen, p99",
            f"{cuts[98] * 1000:.0f} ms (median {cuts[49] * 1000:.0f} ms)",
            f"{P99_S * 1000:.0f} ms",
            cuts[98] <= P99_S,
            f"{LINES} lines of one rank, one each {PAUSE_S * 1000:.0f} ms; the job's print to a line of `rankfall attach`",
        )
    ]


def _read(screen: IO[bytes] | None, delays: list[float]) -> None:
    for line in screen or ():
        found = _WRITTEN.search(line)
        if found is not None:
            delays.append((time.time_ns() - int(found[1])) / 1e9)
