"""What Rankfall adds: to a Python start, to a rank, to the first line of a job, to a job of a minute, and its own commands."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.common import Row, median_pairs, wall

PYTHON = sys.executable
FIRST_LINE = """
import os, time
print("first", time.time_ns(), flush=True)
"""
MINUTE = """
import time
end = time.monotonic() + 55
step = 0
while time.monotonic() < end:
    sum(range(20000)); time.sleep(0.05); step += 1
    if step % 20 == 0: print("step", step, flush=True)
"""
TORCHRUN = [
    PYTHON,
    "-m",
    "torch.distributed.run",
    "--nnodes=1",
    "--nproc-per-node=2",
    "--master-addr=127.0.0.1",
    "--master-port=0",
]


def rows() -> list[Row]:
    """The rows of this part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["RANKFALL_HOME"] = str(folder / "home")
        return [*_hook(folder), *_first_line(folder), *_minute(folder), *_commands(folder)]


def _hook(folder: Path) -> list[Row]:
    from rankfall.backends.payload import unpack

    bundle = unpack(folder / "home")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("RANKFALL_", "PYTHONPATH"))}
    hooked = plain | {"PYTHONPATH": str(bundle)}
    argv = [PYTHON, "-c", "pass"]
    ours, bare, added = median_pairs(lambda: wall(argv, env=hooked), lambda: wall(argv, env=plain), runs=60)
    found = [
        Row(
            "hook, a Python without RANK",
            f"+{added * 1e3:.1f} ms ({ours * 1e3:.0f} / {bare * 1e3:.0f})",
            "2 ms",
            added <= 0.002,
            "median of 60 pairs",
        ),
    ]
    ours, bare, added = median_pairs(
        lambda: _rank_start(folder, plain, bundle), lambda: _rank_start(folder, plain, None), runs=30
    )
    found.append(
        Row(
            "hook, in a rank",
            f"+{added * 1e3:.1f} ms ({ours * 1e3:.0f} / {bare * 1e3:.0f})",
            "10 ms",
            added <= 0.010,
            "median of 30 pairs; start to the first statement of the program, under the wrapper",
        )
    )
    return found


def _rank_start(folder: Path, env: dict[str, str], bundle: Path | None) -> float:
    """Seconds from exec to the first statement of a rank: with the hook (under a real wrapper), or bare."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        (place / "records").mkdir()
        out = place / "out"
        code = f"import time; open({str(out)!r}, 'w').write(str(time.monotonic_ns()))"
        stamp = f"import time, os, sys; t = time.monotonic_ns(); open({str(out)!r} + '.begin', 'w').write(str(t)); os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
        child = [PYTHON, "-S", "-E", "-c", stamp]
        if bundle is None:
            subprocess.run(child, check=True, env=env | {"RANK": "0"})
        else:
            identity = {
                "RANKFALL_RUN": "bench-000000", "RANKFALL_ATTEMPT": "1", "RANKFALL_ROLE": "worker", "RANKFALL_SLOT": "0",
                "RANKFALL_SLOT_DIR": str(place / "slot"), "RANKFALL_RECORD_DIR": str(place / "records"), "RANKFALL_NODE": "node0",
            }  # fmt: skip
            (place / "slot").mkdir()
            shell = ["sh", "-c", 'RANK=0 exec "$@"', "sh", *child]
            subprocess.run(
                [PYTHON, "-I", "-S", str(bundle), "wrap", "--stream-dir", str(place / "streams"), "--nproc", "1", "--", *shell],
                check=True, env=env | identity,
            )  # fmt: skip
        return (int(out.read_text()) - int((place / "out.begin").read_text())) / 1e9


def _first_line(folder: Path) -> list[Row]:
    script = folder / "first.py"
    script.write_text(FIRST_LINE)

    def plain() -> float:
        begin = time.time_ns()
        out = subprocess.run([*TORCHRUN, str(script)], check=True, capture_output=True, text=True).stdout
        return (min(int(line.split()[-1]) for line in out.splitlines() if "first " in line) - begin) / 1e9

    def ours() -> float:
        begin = time.time_ns()
        argv = [
            PYTHON,
            "-m",
            "rankfall",
            "run",
            "--nproc-per-node",
            "2",
            "--launcher",
            "torchrun",
            "--all",
            str(script),
        ]
        out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        return (min(int(line.split()[-1]) for line in out.splitlines() if "first " in line) - begin) / 1e9

    a, b, added = median_pairs(ours, plain, runs=7)
    return [
        Row(
            "first worker line, beside plain torchrun",
            f"+{added:.2f} s ({a:.2f} / {b:.2f})",
            "0.3 s",
            added <= 0.3,
            "median of 7 pairs, stamp of the worker itself",
        )
    ]


def _minute(folder: Path) -> list[Row]:
    script = folder / "minute.py"
    script.write_text(MINUTE)
    sink = folder / "sink"

    def plain() -> float:
        begin = time.perf_counter()
        with sink.open("wb") as file:
            subprocess.run([*TORCHRUN, str(script)], check=True, stdout=file, stderr=subprocess.STDOUT)
        return time.perf_counter() - begin

    def ours() -> float:
        return wall([PYTHON, "-m", "rankfall", "run", "--nproc-per-node", "2", "--launcher", "torchrun", str(script)])

    pairs = [(ours(), plain()), *[(a, b) for b, a in [(plain(), ours())]]]
    extra = sum(a - b for a, b in pairs) / len(pairs)
    base = sum(b for _, b in pairs) / len(pairs)
    share = extra / base
    return [
        Row(
            "wall time of a 60 s job",
            f"{share:+.2%} ({base + extra:.1f} / {base:.1f} s)",
            "+1 %",
            share <= 0.01,
            "two pairs in turn, mean",
        )
    ]


def _commands(folder: Path) -> list[Row]:
    helped, bare, _ = median_pairs(
        lambda: wall([PYTHON, "-m", "rankfall", "--help"]), lambda: wall([PYTHON, "-c", "pass"]), runs=15
    )
    found = [
        Row(
            "`rankfall --help`",
            f"{helped * 1e3:.0f} ms (bare Python {bare * 1e3:.0f})",
            "150 ms",
            helped <= 0.150,
            "median of 15",
        )
    ]
    script = folder / "fall.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '5': raise ValueError('x')\ntime.sleep(30)\n")
    argv = [
        PYTHON,
        "-m",
        "rankfall",
        "run",
        "--name",
        "sixteen",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "8",
        "--launcher",
        "plain",
        "--max-restarts",
        "0",
        str(script),
    ]
    subprocess.run(argv, check=False, capture_output=True)
    why, bare, _ = median_pairs(
        lambda: wall([PYTHON, "-m", "rankfall", "why", "sixteen"]), lambda: wall([PYTHON, "-c", "pass"]), runs=9
    )
    found.append(
        Row(
            "`rankfall why` of a finished 16-rank run",
            f"{why:.2f} s (bare Python {bare:.2f})",
            "0.5 s",
            why <= 0.5,
            "median of 9",
        )
    )
    return found
