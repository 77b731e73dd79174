"""Eight ranks printing flat out: bytes stored per second, beside torchrun with its output sent to a file; memory of the wrapper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.common import Row

PYTHON = sys.executable
LINES = 400_000
PRINT = f"""
import os, sys
rank = os.environ["RANK"]
line = "rank " + rank + " step %d loss 0.12345 and some more words to make the line as long as they are"
for n in range({LINES}):
    print(line % n)
"""
LIMIT_RATIO, LIMIT_MIB = 0.8, 100.0


def rows() -> list[Row]:
    """The rows of this part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "print.py"
        script.write_text(PRINT)
        ours: list[float] = []
        plain: list[float] = []
        peak = 0.0
        for _ in range(3):
            plain.append(_plain(folder, script))
            rate, memory = _ours(folder, script)
            ours.append(rate)
            peak = max(peak, memory)
    ratio = sorted(a / b for a, b in zip(ours, plain, strict=True))[1]
    return [
        Row(
            "8 ranks printing flat out, stored bytes a second",
            f"{ratio:.2f} x of the plain redirect ({sorted(ours)[1]:.0f} / {sorted(plain)[1]:.0f} MiB/s)",
            f"{LIMIT_RATIO} x",
            ratio >= LIMIT_RATIO,
            "torchrun in both, start-up left out: from the first byte to the last; median of 3 pairs",
        ),
        Row(
            "memory of the wrapper while they do",
            f"{peak:.0f} MiB",
            f"{LIMIT_MIB:.0f} MiB",
            peak <= LIMIT_MIB,
            "VmHWM of the wrapper process",
        ),
    ]


def _torchrun(script: Path) -> list[str]:
    return [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=8",
        "--master-addr=127.0.0.1",
        "--master-port=0",
        str(script),
    ]


class _Clock:
    """Seconds between the first and the last growth of what ``size`` tells."""

    def __init__(self, size: object) -> None:
        self._size = size
        self._stop = threading.Event()
        self.first = self.last = 0.0
        self.bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._look()

    def _look(self) -> None:
        size = self._size()  # type: ignore[operator]
        if size > self.bytes:
            now = time.perf_counter()
            self.first = self.first or now
            self.last, self.bytes = now, size

    def rate(self) -> float:
        self._stop.set()
        self._thread.join()
        self._look()
        return self.bytes / 2**20 / (self.last - self.first)


def _plain(folder: Path, script: Path) -> float:
    sink = folder / "sink"
    sink.unlink(missing_ok=True)
    sink.touch()
    clock = _Clock(lambda: sink.stat().st_size)
    with sink.open("ab") as file:
        subprocess.run(_torchrun(script), check=True, stdout=file, stderr=subprocess.DEVNULL)
    return clock.rate()


def _ours(folder: Path, script: Path) -> tuple[float, float]:
    from rankfall.rundir.streams.content import content_size
    from rankfall.rundir.streams.files import find_streams

    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        runs = home / "runs"

        def size() -> int:
            return sum(content_size(name.path) for run in runs.glob("*/logs") for name in find_streams(run))

        argv = [PYTHON, "-m", "rankfall", "run", "--nproc-per-node", "8", "--launcher", "torchrun", "-q", str(script)]
        clock = _Clock(size)
        process = subprocess.Popen(
            argv, env=os.environ | {"RANKFALL_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _wrapper_peak(str(home)))
            time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"rankfall run ended with {process.returncode}")
        return clock.rate(), peak


def _wrapper_peak(home: str) -> float:
    """Peak memory of the wrapper of a run in this home, MiB."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"wrap" in words[:6] and any(home.encode() in word for word in words):
                status = (folder / "status").read_text()
                match = re.search(r"VmHWM:\s+(\d+) kB", status)
                return int(match.group(1)) / 1024 if match else 0.0
        except OSError:
            continue
    return 0.0
