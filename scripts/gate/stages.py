"""The stages of the gate and the plans that are made of them, as data.

Every test belongs to one stage by its markers and its folder; ``full`` keeps it for the plans of everything. tests/conftest.py refuses markers in files where
no stage would find them.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gate.trial import Trial

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
REPORTS = ROOT / "build" / "reports"
PYTHON = sys.executable


@dataclass(frozen=True)
class Commands:
    """A stage of commands that all must succeed; none is tried again.

    Attributes:
        name: short, and the name of its log.
        commands: all of them are run, in this order.
        env: added to the environment.
        at_once: how many of them run at the same time.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    env: dict[str, str] = field(default_factory=dict)
    at_once: int = 1


Stage = Commands | Trial
AnyStage = TypeVar("AnyStage", bound=Stage)


@dataclass(frozen=True)
class Plan:
    """What one target of the Makefile runs.

    Attributes:
        stages: in order.
        stamp: suffix of the file that a green run of a clean tree leaves; None: no file.
        root: needs root on Linux, and is refused elsewhere.
    """

    stages: tuple[Stage, ...]
    stamp: str | None = None
    root: bool = False


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    """A command of the project's own virtual environment."""
    return (str(BIN / name), *arguments)


def files_with(word: str) -> tuple[str, ...]:
    """Test files in which ``word`` stands: reading all others for a few tests takes half a minute (tests/conftest.py)."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(str(path.relative_to(ROOT)) for path in found if word in path.read_text())


LINT = Commands(
    "lint",
    (
        tool("ruff", "check", "."),
        tool("ruff", "format", "--check", "."),
        tool(
            "mypy",
            *("--num-workers", "2", "--explicit-package-bases", "src"),
            *("tests/faults", "tests/conformance", "testbed", "scripts", "examples", "bench"),
        ),
        tool("lint-imports"),
        (PYTHON, "scripts/foreign_text.py"),
        (PYTHON, "scripts/prose.py"),
        tool("vermin", "--target=3.8-", "--no-tips", "--violations", "src/rankfall_inside"),
    ),
    {"MYPYPATH": "tests:examples:scripts"},
    at_once=2,
)
# Twice the cores: a worker waits for its processes, servers and timers half of the time.
WORKERS = ("-n", "4")
PLAIN = "not faults and not torch and not cluster and not root"
# Folders whose tests start real processes: the command, supervisors, wrappers and ranks, builders. All others are unit tests, which come first.
PROCESS_FOLDERS = tuple(
    f"tests/{name}" for name in ("cli", "conformance", "inside", "scripts", "supervisor", "testbed")
)
NOT_PROCESSES = tuple(f"--ignore={folder}" for folder in PROCESS_FOLDERS)
UNIT = Trial("unit", ("-m", f"{PLAIN} and not full", *NOT_PROCESSES, "tests"), WORKERS)
PROCESSES = Trial("processes", ("-m", f"{PLAIN} and not full", *PROCESS_FOLDERS), WORKERS)
UNIT_ALL = Trial("unit-all", ("-m", PLAIN, *NOT_PROCESSES, "tests"), WORKERS)
PROCESSES_ALL = Trial("processes-all", ("-m", PLAIN, *PROCESS_FOLDERS), WORKERS)
TORCH_WORD = "mark.torch"
TORCH = "torch and not faults and not cluster and not root"
# Real jobs, three at a time: most faults start no torch and wait, and the longest test waits for its ranks.
JOBS = Trial(
    "jobs",
    ("-m", "(torch or faults) and not cluster and not root and not full", *files_with(TORCH_WORD), "tests/faults"),
    ("-n", "3"),
)
# One at a time: two torchruns at once on two cores would measure the machine and not the product.
TORCHRUN_ALL = Trial("torchrun-all", ("-m", TORCH, *files_with(TORCH_WORD)))
FAULTS_ALL = Trial(
    "faults-all",
    ("-m", "faults", "tests/faults"),
    env={"RANKFALL_FAULTS_REPORT": "docs/results/faults.md"},
)
# Processes as root: process 1 of a pid namespace, mounts, memory cgroups, what the test bed builds.
ROOT_TESTS = Trial("root", ("-m", "root and not cluster and not full", *files_with("mark.root")), skips_fail=True)
# Two workers with a bed each: most of a test there is waiting. Only the folders of these tests are read.
BEDS = 2
BED_TESTS = ("tests/cluster", "tests/backends/kubernetes")
BED_WORKERS = ("-n", str(BEDS), "--dist", "loadgroup")
# The matrix of faults, which begins all its runs at once.
LONGEST_TEST_S = 3_600.0
# Tests start parts of a bed anew; they end with their bed.
BED_PARTS = os.environ.get("TESTBED_CACHE", "/rankfall/testbed/")


def on_beds(
    name: str,
    markers: str,
    env: dict[str, str] | None = None,
    tests: Iterable[str] = BED_TESTS,
    still_s: float = Trial.still_s,
) -> Trial:
    """Tests on beds that are up meanwhile."""
    words = ("-m", markers, *tests)
    return Trial(name, words, BED_WORKERS, skips_fail=True, keep=BED_PARTS, beds=True, env=env or {}, still_s=still_s)


BED = on_beds("bed", "cluster and not full")
# The whole takes about two hours: in parts that a machine which is free for less can run one by one.
BED_SHARES = 3
BED_FILES = sorted(str(path.relative_to(ROOT)) for each in BED_TESTS for path in (ROOT / each).rglob("test_*.py"))
BED_ALL = tuple(
    on_beds(f"bed-all-{n + 1}", "cluster", tests=BED_FILES[n::BED_SHARES], still_s=LONGEST_TEST_S)
    for n in range(BED_SHARES)
)
# The same beds with other versions of Kubernetes, JobSet and Trainer; each set is built when it is first asked for.
VERSION_SETS = tomllib.loads((ROOT / "testbed" / "components.toml").read_text())["versions"]
ON_VERSIONS = tuple(
    on_beds(f"versions-{name}", "cluster and versions", {"TESTBED_VERSIONS": name}) for name in VERSION_SETS
)
BUILD = Commands("builds", ((PYTHON, "-m", "testbed", "build", "--all"),))
BUILD_VERSIONS = Commands(
    "builds-versions",
    tuple((PYTHON, "-m", "testbed", "build", *rows.values()) for rows in VERSION_SETS.values()),
)
# Lines are covered by tests that need neither torch nor a cluster: where a test waits for these, a tracer in every process only slows it down.
COVERAGE_FILE = {"COVERAGE_FILE": str(REPORTS / "coverage-data")}
COVERED = Trial(
    "coverage",
    ("--cov", "--cov-report=", "-m", PLAIN, "tests"),
    WORKERS,
    env=COVERAGE_FILE | {"RANKFALL_TEST_SCALE": "4"},
)
COVERAGE = Commands("coverage-report", (tool("coverage", "report", "--sort=cover"),), COVERAGE_FILE)
EXPLORE = Trial(
    "explore",
    # Names as they end: the whole takes an hour, and its first finding can be mended meanwhile.
    ("-vv", "-m", "hypothesis and not cluster and not torch and not root", "-o", "timeout=1800", "tests"),
    WORKERS,
    env={"RANKFALL_EXAMPLES": "explore"},
    still_s=LONGEST_TEST_S,
)

PLANS = {
    "lint": Plan((LINT,)),
    "test": Plan((LINT, UNIT, PROCESSES, JOBS), stamp="test"),
    "test-cluster": Plan((BUILD, ROOT_TESTS, BED), stamp="cluster", root=True),
    "test-all": Plan(
        (
            LINT,
            UNIT_ALL,
            PROCESSES_ALL,
            TORCHRUN_ALL,
            FAULTS_ALL,
            BUILD,
            ROOT_TESTS,
            *BED_ALL,
            COVERED,
            COVERAGE,
            EXPLORE,
        ),
        root=True,
    ),
    "versions": Plan((BUILD, BUILD_VERSIONS, *ON_VERSIONS), root=True),
    "coverage": Plan((COVERED, COVERAGE)),
    "explore": Plan((EXPLORE,)),
}


def chosen(every: Iterable[AnyStage], only: str | None) -> list[AnyStage]:
    """The stages of this name, or whose names begin with it and a dash; all of them without a name."""
    return [stage for stage in every if only is None or stage.name == only or stage.name.startswith(f"{only}-")]


def missing_for_root() -> str:
    """Why plans that need root cannot run here; empty when they can."""
    if sys.platform != "linux":
        return "needs Linux: it starts a real Kubernetes on this machine"
    if os.geteuid():
        return "needs root: it makes namespaces, mounts and cgroups (sudo make ...)"
    return ""
