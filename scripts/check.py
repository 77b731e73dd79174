"""Runs the stages of ``make test``, ``make test-cluster`` and their relatives, and prints a table of them.

Every stage runs even when an earlier one failed, so that one run shows all that is wrong; the exit code is 1 when any failed. A stage prints one line when
it begins, its failures whole, and one line when it ends; everything else goes to ``build/reports/<stage>.log``. The last line counts the tests of all
stages. A green run of a whole plan over a clean tree leaves an empty file named for the tree. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gate import stages, trial
from gate.stages import PLANS, REPORTS, ROOT, Commands, Stage
from gate.trial import MAX_UNSTEADY, Result, Trial

from support import patience

STEADY_TIMES = 3
# What make steady allows: tests that wait for other machines' parts may meet one of them in a bad moment.
STEADY_MAX_ELSEWHERE = 3


def run_commands(stage: Commands) -> Result:
    """Run all commands of the stage; the output of those that fail is kept whole."""
    result = Result()

    def run(command: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | stage.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )

    with (REPORTS / f"{stage.name}.log").open("wb") as log, ThreadPoolExecutor(stage.at_once) as pool:
        for command, done in zip(stage.commands, pool.map(run, stage.commands), strict=True):
            shown = " ".join(Path(part).name if part.startswith(str(stages.BIN)) else part for part in command)
            log.write(f"\n== {shown}\n".encode() + done.stdout)
            if done.returncode:
                result.good = False
                result.text += f"\n{shown}: exit {done.returncode}\n{done.stdout.decode(errors='replace')}"
    return result


@contextlib.contextmanager
def beds(env: Mapping[str, str]) -> Iterator[None]:
    """Test beds that are up while their tests run; one that is up before stays up.

    They are started and stopped here and not by pytest, so that a second try meets the same beds.
    """
    sys.path.insert(0, str(ROOT))
    from testbed import bed  # noqa: PLC0415 - other plans need nothing of it
    from testbed.layout import Layout  # noqa: PLC0415

    base = int(os.environ.get("TESTBED", "0"))
    mine = [str(base + n) for n in range(stages.BEDS) if not bed.is_up(Layout(base + n))]
    with (REPORTS / "beds.log").open("wb") as log:
        try:
            starting = [_testbed(log, number, "up", env) for number in mine]
            codes = [process.wait() for process in starting]
            if any(codes):
                raise RuntimeError(f"a test bed did not come up: {REPORTS / 'beds.log'}")
            yield
        finally:
            for process in [_testbed(log, number, "down", env) for number in mine]:
                process.wait()


def _testbed(log: BinaryIO, number: str, command: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-m", "testbed", "--bed", number, command),
        cwd=ROOT,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def run_stage(stage: Stage, *, seed: int, unsteady_before: int) -> Result:
    """Run one stage of either kind."""
    if isinstance(stage, Commands):
        return run_commands(stage)
    needed = beds(stage.env) if stage.beds else contextlib.nullcontext()
    try:
        with needed:
            return trial.run(stage, root=ROOT, reports=REPORTS, seed=seed, unsteady_before=unsteady_before)
    except RuntimeError as error:
        log = (REPORTS / "beds.log").read_text(errors="replace")
        return Result(good=False, text=f"\n{error}\n{log[-4000:]}")


def timed(stage: Stage, *, seed: int, unsteady_before: int) -> tuple[Result, float]:
    """Run a stage between its two lines."""
    print(f"== {stage.name}: begins; all output: {(REPORTS / stage.name).relative_to(ROOT)}.log", flush=True)
    began = time.monotonic()
    result = run_stage(stage, seed=seed, unsteady_before=unsteady_before)
    seconds = time.monotonic() - began
    if result.text:
        print(result.text, flush=True)
    counts = f", {counted(result)}" if isinstance(stage, Trial) else ""
    print(f"== {stage.name}: {'ok' if result.good else 'FAILED'}{counts}, {seconds:.0f} s", flush=True)
    return result, seconds


def counted(result: Result) -> str:
    """The numbers of a result in pytest's words."""
    return f"{result.passed} passed, {len(result.failed)} failed, {result.skipped} skipped"


def git(*arguments: str) -> str:
    """Output of git; empty when it fails."""
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def clean_tree() -> str:
    """The hash of the tree of HEAD, when nothing differs from it; otherwise empty."""
    return "" if git("status", "--porcelain") else git("rev-parse", "HEAD^{tree}")


def leave_stamp(tree: str, suffix: str) -> None:
    """Show every clone on this machine that the tree was seen green."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankfall" / "green"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"{tree}.{suffix}").touch()


def setup_seconds() -> float:
    """How long scripts/setup took just now; 0 when its stamp was fresh."""
    try:
        return float((ROOT / "build" / "setup-seconds").read_text())
    except (OSError, ValueError):
        return 0.0


def set_scale() -> None:
    """Measure this machine once, for all waits and time-outs of the tests."""
    if "RANKFALL_TEST_SCALE" not in os.environ:
        os.environ["RANKFALL_TEST_SCALE"] = f"{patience.measure():.2f}"
    print(f"== waits and time-outs of tests: x {os.environ['RANKFALL_TEST_SCALE']}", flush=True)


def run_plan(name: str, only: str | None, *, seed: int) -> int:
    """Run the stages of a plan; the exit code."""
    plan = PLANS[name]
    chosen = stages.chosen(plan.stages, only)
    if not chosen:
        return no_stage(name, only, plan.stages)
    reason = stages.missing_for_root() if plan.root else ""
    if reason:
        print(f"check.py: make {name} {reason}", file=sys.stderr)
        return 1
    REPORTS.mkdir(parents=True, exist_ok=True)
    tree = clean_tree()
    set_scale()
    rows: list[tuple[str, float, str, str]] = [("setup", setup_seconds(), "ok", "")]
    total = Result()
    for stage in chosen:
        result, seconds = timed(stage, seed=seed, unsteady_before=len(total.unsteady))
        counts = counted(result) if isinstance(stage, Trial) else ""
        rows.append((stage.name, seconds, "ok" if result.good else "FAILED", counts))
        total.good = total.good and result.good
        total.passed += result.passed
        total.failed += result.failed
        total.skipped += result.skipped
        total.unsteady += [f"{stage.name}: {test}" for test in result.unsteady]
    if len(total.unsteady) > MAX_UNSTEADY:
        total.good = False
    print_table(rows, total)
    if total.good and only is None and plan.stamp and tree and tree == clean_tree():
        leave_stamp(tree, plan.stamp)
    print(counted(total), flush=True)
    return 0 if total.good else 1


def no_stage(plan: str, only: str | None, every: Sequence[Stage]) -> int:
    """Say which stages a plan has; the exit code."""
    print(f"check.py: {plan} has no stage {only!r}; it has {', '.join(stage.name for stage in every)}", file=sys.stderr)
    return 2


def print_table(rows: Sequence[tuple[str, float, str, str]], total: Result) -> None:
    """Print a row a stage, and the unsteady tests."""
    print(f"\n{'stage':<18}{'seconds':>9}  {'result':<8}tests")
    for name, seconds, result, counts in rows:
        print(f"{name:<18}{seconds:>9.1f}  {result:<8}{counts}".rstrip())
    print(f"{'all':<18}{sum(row[1] for row in rows):>9.1f}")
    if total.unsteady:
        print(f"\nunsteady, failed first and passed alone ({MAX_UNSTEADY} are allowed); why: build/reports/unsteady/")
        for line in total.unsteady:
            print(f"  {line}")


def run_steady(only: str | None) -> int:
    """Run each stage of tests three times beside two busy processes, in drawn orders; the exit code."""
    names = ("test", "test-cluster") if not stages.missing_for_root() else ("test",)
    every = [stage for name in names for stage in PLANS[name].stages if isinstance(stage, Trial)]
    trials = stages.chosen(every, only)
    if not trials:
        return no_stage("steady", only, every)
    REPORTS.mkdir(parents=True, exist_ok=True)
    set_scale()
    busy = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(2)]
    seen: dict[str, list[str]] = {}
    try:
        for stage in trials:
            for number in range(STEADY_TIMES):
                seed = secrets.randbelow(2**32)
                print(f"== {stage.name}, {number + 1} of {STEADY_TIMES}: seed of the order {seed}", flush=True)
                result, _ = timed(stage, seed=seed, unsteady_before=0)
                seen.setdefault(stage.name, []).extend([*result.failed, *result.unsteady])
                if not (result.good or result.failed):
                    seen[stage.name].append("what the text above tells")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print("\ntests that failed in any run:")
    for name, tests in seen.items():
        print(f"{name}: {len(set(tests))}")
        for test in sorted(set(tests)):
            print(f"  {test} ({tests.count(test)} of {STEADY_TIMES})")
    strict = any(seen.get(name) for name in ("unit", "processes"))
    return 1 if strict or any(len(set(tests)) > STEADY_MAX_ELSEWHERE for tests in seen.values()) else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="check.py", description="Runs a plan of the gate.")
    parser.add_argument("plan", choices=[*PLANS, "steady"])
    parser.add_argument("--stage", help="only this one")
    given = parser.parse_args()
    if given.plan == "steady":
        return run_steady(given.stage or None)
    seed = trial.ORDER_SEED
    if given.plan == "explore":
        seed = secrets.randbelow(2**32)
        print(f"== seed {seed}: PYTEST_ADDOPTS=--hypothesis-seed={seed} repeats the examples", flush=True)
        os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} --hypothesis-seed={seed}"
    return run_plan(given.plan, given.stage or None, seed=seed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
