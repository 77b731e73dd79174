"""Settings of all tests."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

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
