"""Settings of all tests."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Switched off on some machines: each process of a test would compile torch and ourselves anew, which no user's does (Makefile).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Under nohup, SIGHUP is ignored by the tests and by all that they start; verbs that it should end would go on.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In the background of a shell the same is so of SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine may take any time for one example: time is measured by the benchmarks, never asserted here. Everything else stays as
# hypothesis chose it (in CI: the same examples in every run).
settings.register_profile("rankfall", settings(), deadline=None)
settings.load_profile("rankfall")


@pytest.fixture(scope="session", autouse=True)
def _children_are_measured_when_they_import_the_package() -> None:
    """Ranks, launchers and helpers of tests start without coverage, and some of them may not write where it wants to: scripts/measured.py."""
    settings = os.environ.pop("COVERAGE_PROCESS_CONFIG", "")
    if settings:
        os.environ["COVERAGE_OF_RANKFALL"] = settings


# Where tests of the test bed lie, and what stands in a file with tests of torch: CI reads only these for them (scripts/check.py).
BED_FOLDERS = ("cluster", "backends/cluster")
TORCH_WORDS = "mark.torch"


@functools.cache
def _speaks_of_torch(path: Path) -> bool:
    return TORCH_WORDS in path.read_text()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = [Path(__file__).parent / name for name in BED_FOLDERS]
    for item in items:
        if item.get_closest_marker("cluster") and not any(map(item.path.is_relative_to, folders)):
            raise pytest.UsageError(
                f"{item.nodeid} is marked cluster and lies in none of {BED_FOLDERS}: CI would not run it"
            )
        if item.get_closest_marker("torch") and not _speaks_of_torch(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} is marked torch and its file has no {TORCH_WORDS}: CI would not run it"
            )


# Of each property coverage sees so many examples; the rest hardly ever takes a branch that these have not.
MEASURED_EXAMPLES = 30
# Folders of tests without threads: where one begins just then, Python refuses to change its tracer.
PURE = frozenset({"decide", "diagnose", "model", "report", "signatures"})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run most examples of a property without coverage's tracer: pure code takes twice as long with it, and all examples shall run."""
    test = getattr(getattr(item, "obj", None), "hypothesis", None)
    tracer = sys.gettrace()
    if test is None or tracer is None or item.path.parent.name not in PURE:
        return (yield)
    inner = test.inner_test
    done = 0

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> object:
        nonlocal done
        if done == MEASURED_EXAMPLES:
            sys.settrace(None)
        done += 1
        return inner(*args, **kwargs)

    test.inner_test = counted
    try:
        return (yield)
    finally:
        test.inner_test = inner
        sys.settrace(tracer)
