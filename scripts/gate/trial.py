"""Runs a stage of tests, and what failed once more, alone.

A test that fails beside others and passes alone says something about the machine or about itself, not about the change that is tested: it is listed as
unsteady, its first failure is kept, and the stage is green. Everything that fails twice is red. Never tried again: tests with the marker ``steady``, a run
that ended with any code but 1, a file that cannot be read, a worker that crashed, and more failures than the gate allows to be unsteady. A pytest that
stands still is ended, and the stage begins anew, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# More unsteady tests than this in a run say that the suite or the machine is not fit to judge.
MAX_UNSTEADY = 8
# One order for all machines and both tries; ``make steady`` and ``make explore`` draw theirs.
ORDER_SEED = 20260501
_TESTS_FAILED = 1
_POLL_S = 1.0


@dataclass(frozen=True)
class Trial:
    """A stage of tests.

    Attributes:
        name: short, and the name of its files.
        arguments: of pytest: markers, files.
        workers: arguments of pytest-xdist, for the first try only.
        env: added to the environment.
        skips_fail: a skipped test makes the stage red.
        keep: processes with this text in their command line may outlive the tests.
        beds: test beds are up while the tests run.
        still_s: seconds without an ended test after which pytest is ended: its tests have time-outs of their own.
    """

    name: str
    arguments: tuple[str, ...]
    workers: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    skips_fail: bool = False
    keep: str = ""
    beds: bool = False
    still_s: float = 900.0


@dataclass
class Result:
    """What a stage came to.

    Attributes:
        good: the stage is green.
        passed: tests that passed, the unsteady ones too.
        failed: names of tests that failed twice, or once where there is no second try.
        skipped: tests that were skipped.
        unsteady: names of tests that failed first and passed alone, one a shared set-up.
        text: what a person has to read: failures whole, reasons.
    """

    good: bool = True
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    unsteady: list[str] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True)
class _Try:
    code: int
    tests: dict[str, dict[str, Any]]
    broken_files: int
    leftovers: list[str]
    stood_still: bool = False

    @property
    def failed(self) -> dict[str, dict[str, Any]]:
        return {name: test for name, test in self.tests.items() if test["result"] == "failed"}

    @property
    def complete(self) -> bool:
        """Whether pytest ran all tests to their end, and its code says no more than their results."""
        return not self.broken_files and self.code == (_TESTS_FAILED if self.failed else 0)


def cases(failed: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The first test of each case, by test: errors of one shared set-up are one case."""
    first: dict[str, str] = {}
    return {name: first.setdefault(test["fixture"] or name, name) for name, test in failed.items()}


def run(trial: Trial, *, root: Path, reports: Path, seed: int = ORDER_SEED, unsteady_before: int = 0) -> Result:
    """Run the stage, and its failed tests once more.

    Args:
        trial: the stage.
        root: working directory of pytest.
        reports: folder for the log, the outcomes and ``unsteady/``.
        seed: of the order of the tests.
        unsteady_before: how many unsteady tests earlier stages of this run had.
    """
    cache = reports / "cache" / trial.name
    shutil.rmtree(cache, ignore_errors=True)
    log = reports / f"{trial.name}.log"
    log.unlink(missing_ok=True)
    common = ("-q", "-p", "randomly", f"--randomly-seed={seed}", "-o", f"cache_dir={cache}", *trial.arguments)
    # A worker that crashed is not replaced: the run is red anyway, and xdist may wait for ever for the tests of the one that is gone.
    workers = (*trial.workers, "--max-worker-restart", "0") if trial.workers else ()
    first = _try(trial, (*common, *workers), "first", root=root, reports=reports)
    stood_still = first.stood_still
    if stood_still:
        # pytest-xdist waits for ever for the rest of a report that it misread.
        first = _try(trial, (*common, *workers), "first", root=root, reports=reports)
    result = Result(skipped=sum(test["result"] == "skipped" for test in first.tests.values()))
    failed = first.failed
    reason = _no_second_try(first, unsteady_before)
    second = None
    if failed and not reason:
        steady = [part for name, test in failed.items() if test["steady"] for part in ("--deselect", name)]
        second = _try(trial, (*common, "--lf", "--lfnf=none", *steady), "second", root=root, reports=reports)
    for name, test in failed.items():
        again = None if second is None or test["steady"] else second.tests.get(name)
        if again is not None and again["result"] == "passed":
            _keep(reports / "unsteady", trial.name, name, test["text"])
            result.unsteady.append(name)
        else:
            result.failed.append(name)
            result.text += f"\nFAILED {name}\n{test['text']}"
            if again is not None:
                result.text += f"\nFAILED again, alone: {name}\n{again['text']}"
    result.text += "".join(f"   {test['note']}\n" for test in first.tests.values() if test["note"]).rstrip()
    case_of = cases(failed)
    result.passed = sum(test["result"] == "passed" for test in first.tests.values()) + len(result.unsteady)
    result.unsteady = sorted({case_of[name] for name in result.unsteady})
    if stood_still:
        result.unsteady.insert(0, f"all tests: none of them ended for {trial.still_s:.0f} s, and the stage began anew")
    for which, one in (("pytest", first), ("the second try", second)):
        if one is not None and not one.complete:
            result.good = False
            result.text += f"\n{which} ended with {one.code}; the end of {log}:\n{_tail(log)}"
    if reason:
        result.text += f"\nno second try: {reason}\n"
    if trial.skips_fail and result.skipped:
        reasons = sorted({test["text"] for test in first.tests.values() if test["result"] == "skipped"})
        result.good = False
        result.text += "\nskipped, which this stage does not allow:\n" + "".join(f"  {line}\n" for line in reasons)
    left = [line for one in (first, second) if one for line in one.leftovers]
    if left:
        result.text += "\nstill there after the tests:\n" + "".join(f"  {line}\n" for line in left)
        result.good = result.good and not any(line.startswith("process") for line in left)
    result.good = result.good and not result.failed
    return result


def _no_second_try(first: _Try, unsteady_before: int) -> str:
    """Why what failed is not tried again; empty when it is."""
    failed = first.failed
    if not first.complete:
        return "pytest did not run all tests to their end"
    if not failed:
        return ""
    if any(test["crashed"] for test in failed.values()):
        return "a worker crashed"
    if all(test["steady"] for test in failed.values()):
        return "what failed must be steady"
    number = len(set(cases(failed).values()))
    if number + unsteady_before > MAX_UNSTEADY:
        return f"{number + unsteady_before} failures, more than the {MAX_UNSTEADY} that may be unsteady in a run"
    return ""


def _try(trial: Trial, arguments: tuple[str, ...], which: str, *, root: Path, reports: Path) -> _Try:
    outcomes, left = reports / f"{trial.name}-{which}.json", reports / f"{trial.name}-{which}.leftovers"
    for path in (outcomes, left):
        path.unlink(missing_ok=True)
    command = (
        *(sys.executable, str(HERE / "contained.py"), str(left)),
        *(("--keep", trial.keep) if trial.keep else ()),
        *(sys.executable, str(HERE / "outcomes.py"), str(outcomes), *arguments),
    )
    with (reports / f"{trial.name}.log").open("ab") as log:
        log.write(f"\n== {which} try, {time.strftime('%H:%M:%S')}: pytest {' '.join(arguments)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            cwd=root,
            env=os.environ | trial.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            stood_still = not _ended(process, reports / f"{trial.name}.log", trial.still_s)
            code = process.wait()
        except KeyboardInterrupt:
            # The tests got it too; their beds, jobs and servers need a moment to end.
            process.wait()
            raise
    try:
        document = json.loads(outcomes.read_text())
    except (OSError, ValueError):
        document = {"tests": {}, "broken_files": 0}
        code = code or 3
    # The workers of a pytest that was ended here are its fault.
    lines = left.read_text().splitlines() if left.exists() and not stood_still else []
    return _Try(code, document["tests"], document["broken_files"], lines, stood_still)


def _ended(process: subprocess.Popen[bytes], log: Path, still_s: float) -> bool:
    """Wait for pytest; end it and return False if its log does not grow for so many seconds."""
    scale = float(os.environ.get("RANKFALL_TEST_SCALE", "1"))
    size, since = -1, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return True
        now = log.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > still_s * scale:
            process.terminate()
            return False


def _keep(folder: Path, stage: str, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-180:]
    (folder / f"{stage}-{safe}.txt").write_text(f"{name}\n{text}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-6000:]
