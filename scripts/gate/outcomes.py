"""Runs pytest and writes the outcome of each test to a JSON file: ``python outcomes.py FILE ARGUMENTS...``.

The exit code of pytest does not tell a failed test from a crashed worker, nor which tests failed; a second try needs both.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

STEADY = "steady"


@dataclass
class Outcome:
    """What one test did.

    Attributes:
        result: ``passed``, ``failed`` or ``skipped``.
        seconds: set-up, call and tear-down together.
        steady: it carries the marker ``steady``.
        text: the failure with captured output, or the reason of the skip.
        fixture: message of an error in the set-up; the same one for all tests of a shared fixture. Empty otherwise.
        crashed: the worker process ended while the test ran.
        note: what the test measured and a person wants to read though it passed: ``record_property("note", ...)``.
    """

    result: str = "passed"
    seconds: float = 0.0
    steady: bool = False
    text: str = ""
    fixture: str = ""
    crashed: bool = False
    note: str = ""


@dataclass(eq=False)  # pytest keeps plugins in sets
class Outcomes:
    """The plugin: gathers reports (of all workers, under pytest-xdist) and writes them when the session ends."""

    path: Path
    tests: dict[str, Outcome] = field(default_factory=dict)
    broken_files: int = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        if "xdist_group" in report.keywords:
            # pytest-xdist appends the group to the name, and --lf of the second try would not know the test.
            report.nodeid = report.nodeid.rpartition("@")[0] or report.nodeid
        test = self.tests.setdefault(report.nodeid, Outcome())
        test.seconds += getattr(report, "duration", 0.0)
        test.steady = test.steady or STEADY in report.keywords
        test.note = "; ".join(str(value) for name, value in report.user_properties if name == "note")
        if report.failed:
            test.result = "failed"
            # What pytest-xdist calls the phase of a test whose worker died.
            test.crashed = test.crashed or report.when not in {"setup", "call", "teardown"}
            captured = "".join(f"\n--- {title}\n{text}" for title, text in report.sections if text)
            test.text += f"{report.when}: {report.longreprtext}{captured}\n"
            if report.when == "setup":
                crash = getattr(report.longrepr, "reprcrash", None)
                test.fixture = str(crash) if crash else report.longreprtext[-500:]
        elif report.skipped and test.result != "failed":
            test.result = "skipped"
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            test.text = reason.removeprefix("Skipped: ")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count files that cannot be read."""
        self.broken_files += report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        document = {
            "broken_files": self.broken_files,
            "tests": {name: asdict(test) for name, test in self.tests.items()},
        }
        self.path.write_text(json.dumps(document))


if __name__ == "__main__":
    # The folder of this file is nobody's module path.
    sys.path.pop(0)
    sys.exit(pytest.main(sys.argv[2:], plugins=[Outcomes(Path(sys.argv[1]))]))
