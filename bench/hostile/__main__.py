"""Runs that print hostile text, in turn with runs that print plain text of the same bytes: wall time, verdict, and how soon SIGTERM stops them.

``python -m bench.hostile [--mib N] [--pairs N]`` writes ``docs/results/bench-hostile.md``. Wall times are of the whole command, from its start to
its exit, without a view (``--quiet``). Both runs of a pair come one after the other, so a machine that others use disturbs both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "results" / "bench-hostile.md"
SHAPES: Final = (
    "number-stopped", "json-deep-lines", "traceback-heads", "traceback-interleaved", "only-newlines", "repeat-error",
    "different-errors", "different-ranks", "traceback-prefix-dice", "line-giant-rank",
)  # fmt: skip
JOB: Final = """
import os, sys
with open(os.environ["TEXT"], "rb") as file:
    unit = file.read()
left = int(os.environ["SIZE"])
while left > 0:
    sys.stdout.buffer.write(unit[:left])
    left -= len(unit)
sys.stdout.buffer.write(b"\\n")
sys.stdout.buffer.flush()
raise KeyError("the end")
"""
WORDS: Final = (
    "step", "loss", "batch", "epoch", "rate", "data", "model", "time",
    "mean", "token", "train", "layer", "weight", "input", "output", "state",
)  # fmt: skip
_UNIT: Final = 8 << 20
_STOP_S: Final = 60.0
# Bounds: of the ratio, and of the seconds until a stop is shown.
_MOST_TIMES: Final = 1.1
_MOST_STOP_S: Final = 2.0


def main() -> int:
    """Measure all shapes and write the page; 1 where a bound of the issue does not hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mib", type=int, default=100)
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("shapes", nargs="*", default=list(SHAPES))
    given = options.parse_args()
    # The shapes are those of the tests.
    sys.path.insert(0, str(ROOT / "tests"))
    lines = [
        "| shape | plain text, s | this shape, s | ratio | verdict | SIGTERM to the stop shown, s |",
        "|---|---|---|---|---|---|",
    ]
    broken = False
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "job.py").write_text(JOB)
        for shape in given.shapes:
            line, holds = row(folder, shape, size=given.mib << 20, pairs=given.pairs)
            lines.append(line)
            broken |= not holds
            sys.stdout.write(lines[-1] + "\n")
            sys.stdout.flush()
    head = (
        "# Hostile output\n\nWritten by `make bench-hostile`: a job of one rank prints "
        f"{given.mib} MiB and raises KeyError; median of {given.pairs} alternating pairs. Plain text has lines of the same lengths, of words; at most {_MOST_TIMES} times its time and {_MOST_STOP_S:.0f} s to a stop are allowed. "
        "Load of the "
        f"machine at the end ({os.cpu_count()} cores): {os.getloadavg()[0]:.1f}.\n\n"
    )
    PAGE.write_text(head + "\n".join(lines) + "\n")
    return int(broken)


def row(folder: Path, shape: str, *, size: int, pairs: int) -> tuple[str, bool]:
    """One line of the table, and whether the bounds hold."""
    # Made before any run: the time in which a job makes its text is no part of what is compared.
    unit: bytes = importlib.import_module("support.hostile_inputs").INPUTS[shape].data(min(size, _UNIT))
    (folder / f"{shape}-False").write_bytes(unit)
    (folder / f"{shape}-True").write_bytes(in_words(unit))
    plain, hostile, right = [], [], 0
    for number in range(pairs):
        plain.append(run(folder, shape, size=size, plain=True, number=number)[0])
        wall, good = run(folder, shape, size=size, plain=False, number=number)
        hostile.append(wall)
        right += good
    before, after = statistics.median(plain), statistics.median(hostile)
    ratio = statistics.median(two / one for one, two in zip(plain, hostile, strict=True))
    stop = stopped(folder, shape)
    line = f"| {shape} | {before:.2f} | {after:.2f} | {ratio:.2f} | {right} of {pairs} | {stop:.2f} |"
    return line, ratio <= _MOST_TIMES and right == pairs and stop <= _MOST_STOP_S


def in_words(unit: bytes) -> bytes:
    """Lines of the same lengths, of words: one letter alone packs as no text does."""
    text = " ".join(random.Random(7).choices(WORDS, k=len(unit) // 4 + 1)).encode()
    lines, at = unit.split(b"\n"), 0
    for number, line in enumerate(lines):
        lines[number], at = text[at : at + len(line)], at + len(line)
    return b"\n".join(lines)


def run(folder: Path, shape: str, *, size: int, plain: bool, number: int) -> tuple[float, bool]:
    """Wall time of one run, and whether its verdict is its KeyError."""
    home = folder / f"{shape}-{plain}-{number}"
    began = time.monotonic()
    start(folder, shape, home=home, size=size, plain=plain).wait()
    wall = time.monotonic() - began
    (path,) = (home / "runs").iterdir()
    said = subprocess.run(
        [sys.executable, "-m", "rankfall", "why", path.name, "-o", "json"],
        env=os.environ | {"RANKFALL_HOME": str(home)}, capture_output=True, check=False,
    )  # fmt: skip
    verdict = json.loads(said.stdout)
    line = (verdict["decisive"] or {}).get("line", "")
    subprocess.run(["rm", "-rf", str(home)], check=False)
    return wall, verdict["rank"] == 0 and "KeyError" in line


def start(folder: Path, shape: str, *, home: Path, size: int, plain: bool) -> subprocess.Popen[bytes]:
    """The command, started."""
    env = {"RANKFALL_HOME": str(home), "TEXT": str(folder / f"{shape}-{plain}"), "SIZE": str(size)}
    return subprocess.Popen(
        [sys.executable, "-m", "rankfall", "run", "-q", "--launcher", "plain", "--nproc-per-node", "1", "job.py"],
        cwd=folder, env=os.environ | env,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def stopped(folder: Path, shape: str) -> float:
    """Seconds from SIGTERM, at a random moment of an endless run, to the stop that is shown."""
    home = folder / f"{shape}-stop"
    process = start(folder, shape, home=home, size=1 << 40, plain=False)
    deadline = time.monotonic() + _STOP_S
    much = random.randrange(1, 256 << 20)
    while (
        sum(path.stat().st_size for path in home.glob("runs/[!.]*/logs/**/*.log")) < much
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    at = time.time_ns()
    process.send_signal(signal.SIGTERM)
    shown = 0
    while not shown and time.monotonic() < deadline + _STOP_S:
        for path in home.glob("runs/[!.]*/events.jsonl"):
            for line in path.read_bytes().splitlines():
                event = json.loads(line)
                shown = event["at"] if event["kind"] == "stopping" else shown
        time.sleep(0.02)
    process.wait()
    subprocess.run(["rm", "-rf", str(home)], check=False)
    return (shown - at) / 1e9 if shown else float("inf")


if __name__ == "__main__":
    sys.exit(main())
