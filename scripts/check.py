"""Runs the stages of ``make test``, ``make test-all`` and ``make lint`` and prints how long each took.

Every stage runs even when an earlier one failed, so that one run shows all that is wrong; the exit code is 1 when any failed. A test stage
that ran no test counts as failed (pytest's exit code 5 is not 0). Standard library only.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
REPORTS = ROOT / "build" / "reports"
CHANGED_LINES_COVERED = 95


@dataclass(frozen=True)
class Stage:
    """One row of the time table: a name and the commands that all must succeed."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    env: dict[str, str] = field(default_factory=dict)


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of the project's own virtual environment."""
    return (str(BIN / name), *arguments)


def plain(name: str, *arguments: str, env: dict[str, str] | None = None) -> Stage:
    """Pytest as it is.

    Where a test waits for torch or for a cluster most of its time, a tracer in every process would only slow down what is to be seen; lines are
    covered by tests that need neither.
    """
    return Stage(name, ((sys.executable, "-m", "pytest", "-q", *arguments),), env or {})


def measured(name: str, *arguments: str, data: str) -> Stage:
    """Pytest with branch coverage in a file of its own; the coverage stage puts the files together."""
    command = (sys.executable, "-m", "pytest", "-q", "--cov", "--cov-report=", *arguments)
    return Stage(name, (command,), {"COVERAGE_FILE": str(REPORTS / f"data-{data}")})


LINT = Stage(
    "lint",
    (
        tool("ruff", "check", "."),
        tool("ruff", "format", "--check", "."),
        tool("mypy"),
        tool(
            "mypy",
            "--explicit-package-bases",
            "tests/faults",
            "tests/conformance",
            "testbed",
            "scripts",
            "examples",
            "bench",
        ),
        tool("lint-imports"),
        (sys.executable, "scripts/foreign_text.py"),
        tool("vermin", "--target=3.8-", "--no-tips", "--violations", "src/rankfall_inside"),
    ),
    {"MYPYPATH": "tests:examples"},
)
# The tests that start torch come in a stage of their own, one after the other: two torchruns at once on two cores would
# measure the machine and not the product.
PLAIN = "not faults and not torch and not cluster"
# Folders whose tests start real processes: the command, supervisors, wrappers and ranks, builders. All others are unit tests, which come first.
PROCESSES = tuple(f"tests/{name}" for name in ("cli", "conformance", "inside", "supervise", "testbed"))
UNIT = measured(
    "unit tests", "-n", "2", "-m", PLAIN, *(f"--ignore={folder}" for folder in PROCESSES), "tests", data="unit"
)
REAL = measured("tests with processes", "-n", "2", "-m", PLAIN, *PROCESSES, data="processes")
# Only files with such tests are read (tests/conftest.py sees to it that they show it): all of them together take half a minute.
TORCHRUN = tuple(
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if "mark.torch" in path.read_text()
)
TORCH = plain("torchrun tests", "-m", "torch and not faults and not cluster and not full", *TORCHRUN)
TORCH_ALL = plain("torchrun tests, all", "-m", "torch and not faults and not cluster", *TORCHRUN)
# The real Kubernetes: what it is made of is built at lowest priority from the start, while lint and the first tests run.
# Two workers with a bed each: most of a test there is waiting. Only the folders of these tests are read (tests/conftest.py keeps them there):
# reading all of them takes each worker half a minute.
BEDS = ("-n", "2", "--dist", "loadgroup", "tests/cluster", "tests/backends/cluster")
CLUSTER = plain("test bed, covering part", "-m", "cluster and not full", *BEDS)
CLUSTER_ALL = plain("test bed, all", "-m", "cluster", *BEDS)
BUILD = (sys.executable, "-m", "testbed", "build", "--all")
FAULTS = plain("faults, covering part", "-m", "faults and not full", "tests/faults")
FAULTS_ALL = plain(
    "faults, all",
    "-m",
    "faults",
    "tests/faults",
    env={"RANKFALL_FAULTS_REPORT": "docs/results/faults.md"},
)
COVERAGE = Stage(
    "coverage",
    (
        tool(
            "coverage",
            "combine",
            "--keep",
            "-q",
            *(str(REPORTS / f"data-{part}") for part in ("unit", "processes")),
        ),
        tool("coverage", "report", "--sort=cover"),
        tool("coverage", "xml", "-q", "-o", str(REPORTS / "coverage.xml")),
        (sys.executable, "scripts/diff_base.py", str(REPORTS / "changed.diff")),
        tool(
            "diff-cover",
            str(REPORTS / "coverage.xml"),
            "--diff-file",
            str(REPORTS / "changed.diff"),
            f"--fail-under={CHANGED_LINES_COVERED}",
        ),
    ),
)
PLANS = {
    "lint": (LINT,),
    "test": (LINT, UNIT, REAL, TORCH, FAULTS, CLUSTER, COVERAGE),
    "test-all": (LINT, UNIT, REAL, TORCH_ALL, FAULTS_ALL, CLUSTER_ALL, COVERAGE),
}


class Builds:
    """Binaries and images of the test bed, built at the idle priority beside the first stages.

    They give way to every test; what is left of them when the tests with processes are done is waited for, so that no test of real time runs beside a
    compiler.
    """

    name = "builds and images"

    def __init__(self) -> None:
        self.log = REPORTS / "builds.log"
        with self.log.open("wb") as out:
            idle = ("chrt", "--idle", "0") if shutil.which("chrt") else ("nice", "-n", "19")
            self.process = subprocess.Popen(
                (*idle, *BUILD), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def finish(self) -> bool:
        """Wait for the rest; whether all was built."""
        print(f"\n== {self.name}: python -m testbed build --all", flush=True)
        good = self.process.wait() == 0
        print(self.log.read_text(errors="replace")[-8000:], flush=True)
        return good

    def stop(self) -> None:
        """End it when an interrupt ends the stages."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def run(stage: Stage) -> bool:
    """Whether every command of the stage succeeded; all are run."""
    good = True
    for command in stage.commands:
        shown = " ".join(Path(part).name if part.startswith(str(BIN)) else part for part in command)
        print(f"\n== {stage.name}: {shown}", flush=True)
        code = subprocess.run(command, cwd=ROOT, env=os.environ | stage.env, check=False).returncode
        if code:
            print(f"== {stage.name}: exit {code}: {shown}", flush=True)
            good = False
    return good


def setup_seconds() -> float:
    """How long scripts/setup took just now; 0 when its stamp was fresh."""
    try:
        return float((ROOT / "build" / "setup-seconds").read_text())
    except (OSError, ValueError):
        return 0.0


def timed(name: str, work: Callable[[], bool]) -> tuple[str, float, str]:
    """A row of the time table."""
    began = time.monotonic()
    good = work()
    return name, time.monotonic() - began, "ok" if good else "FAILED"


def main(plan: str) -> int:
    """Run the stages of ``plan`` and print the time table."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in (*ROOT.glob(".coverage*"), *REPORTS.glob("data-*")):
        old.unlink()
    rows: list[tuple[str, float, str]] = [("setup", setup_seconds(), "ok")]
    # Elsewhere the cluster tests skip with the reason (and fail in CI).
    can = sys.platform == "linux" and os.geteuid() == 0
    builds = Builds() if can and plan != "lint" else None
    try:
        for stage in PLANS[plan]:
            if builds is not None and stage in (TORCH, TORCH_ALL):
                rows.append(timed(builds.name, builds.finish))
            rows.append(timed(stage.name, functools.partial(run, stage)))
    finally:
        if builds is not None:
            builds.stop()
    print(f"\n{'stage':<24}{'seconds':>9}  result")
    for name, seconds, result in rows:
        print(f"{name:<24}{seconds:>9.1f}  {result}")
    print(f"{'all':<24}{sum(row[1] for row in rows):>9.1f}", flush=True)
    return 0 if all(row[2] == "ok" for row in rows) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PLANS:  # noqa: PLR2004 - the program and one plan
        sys.exit(f"usage: check.py {'|'.join(PLANS)}")
    sys.exit(main(sys.argv[1]))
