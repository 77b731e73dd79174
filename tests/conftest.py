"""Settings of all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from helpers import MEASURED

# A busy machine may take any time for one example: time is measured by the benchmarks, never asserted here. Everything else stays as
# hypothesis chose it (in CI: the same examples in every run).
settings.register_profile("rankfall", settings(), deadline=None)
settings.load_profile("rankfall")


@pytest.fixture(scope="session", autouse=True)
def _unmeasured_children() -> None:
    """Take coverage's settings out of the environment: a Python that loads coverage starts in 0.2 s of work and not in 0.015 s.

    Most children are ranks and wrappers, which have nothing of the measured package in them, and some of them may not write where
    coverage wants to. Tests that start the measured program itself give it ``helpers.MEASURED``.
    """
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
        MEASURED[name] = os.environ.pop(name)
