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
from hypothesis import HealthCheck, settings

from support import patience
from support.further import further

# Switched off on some machines: each process of a test would compile torch and ourselves anew, which no user's does (Makefile).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# jsonschema builds 38 grammars from it when it is imported, 2 s in each worker, for formats that no schema of ours names.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# In an allocation of Slurm, runs of the tests would be steps of it.
for _name in [name for name in os.environ if name.startswith(("SLURM", "SRUN_"))]:
    del os.environ[_name]
# Under nohup, SIGHUP is ignored by the tests and by all that they start; verbs that it should end would go on.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# In the background of a shell the same is so of SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine may take any time for one example: time is measured by the benchmarks, never asserted here. The gate takes the same examples
# everywhere and keeps none; ``make explore`` draws new ones, ten times as many.
EXAMPLES = os.environ.get("RANKFALL_EXAMPLES", "gate")
EXPLORE_TIMES = 10
# Of a property that names no number itself.
USUAL_EXAMPLES = 50
settings.register_profile(
    "gate",
    settings.get_profile("default"),
    max_examples=USUAL_EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    settings.get_profile("default"),
    max_examples=USUAL_EXAMPLES * EXPLORE_TIMES,
    derandomize=False,
    database=None,
    deadline=None,
    print_blob=True,
)
settings.load_profile(EXAMPLES)


@pytest.fixture(scope="session", autouse=True)
def _children_are_measured_when_they_import_the_package() -> None:
    """Ranks, launchers and helpers of tests start without coverage, and some of them may not write where it wants to: scripts/measured.py."""
    settings = os.environ.pop("COVERAGE_PROCESS_CONFIG", "")
    if settings:
        os.environ["COVERAGE_OF_RANKFALL"] = settings


# Where tests of the test bed lie, and what stands in a file with tests of a kind: the gate reads only these for them (scripts/gate/stages.py).
BED_FOLDERS = ("cluster", "backends/kubernetes")
WORDS = {"torch": "mark.torch", "root": "mark.root"}


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


# Settings that have the profile: classes and functions, each with the name of its attribute.
_STRENGTHENED: set[tuple[Any, str]] = set()


def _with_profile(item: pytest.Item) -> None:
    """Bring the profile to a test with settings of its own, and to a state machine.

    Settings that a test names itself win over those of the profile; what the profile must have is put on top here. Hypothesis keeps the settings of a
    test in these attributes and has no public way to change them afterwards.
    """
    function: Any = getattr(item, "function", None)
    owner: Any = getattr(item, "cls", None)
    for holder, name in ((owner, "settings"), (function, "_hypothesis_internal_use_settings")):
        own = getattr(holder, name, None)
        # Items of one parametrized function share its settings.
        if isinstance(own, settings) and (holder, name) not in _STRENGTHENED:
            _STRENGTHENED.add((holder, name))
            setattr(holder, name, _strengthened(own))


def _strengthened(own: settings) -> settings:
    if EXAMPLES == "explore":
        return settings(own, max_examples=own.max_examples * EXPLORE_TIMES)
    return settings(own, suppress_health_check=[*own.suppress_health_check, HealthCheck.too_slow])


def _with_scale(item: pytest.Item) -> None:
    """Give a test as much more time as this machine takes longer."""
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker and marker.args else float(item.config.getini("timeout"))
    if patience.SCALE > 1:
        item.add_marker(pytest.mark.timeout(patience.scaled(seconds)), append=False)


# Characters of a value that make a test's name.
_MAX_ID = 200


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Short names for long values: a name of megabytes is sent and printed with each result, and pytest-xdist misreads it."""
    return f"{argname} of {len(val)}" if isinstance(val, str | bytes) and len(val) > _MAX_ID else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = [Path(__file__).parent / name for name in BED_FOLDERS]
    for item in items:
        if item.get_closest_marker("cluster") and not any(map(item.path.is_relative_to, folders)):
            raise pytest.UsageError(
                f"{item.nodeid} is marked cluster and lies in none of {BED_FOLDERS}: no stage would run it"
            )
        for marker, words in WORDS.items():
            if item.get_closest_marker(marker) and words not in _text(item.path):
                raise pytest.UsageError(
                    f"{item.nodeid} is marked {marker} and its file has no {words}: no stage would run it"
                )
        if further(item.name):
            if item.get_closest_marker("steady"):
                raise pytest.UsageError(f"{item.nodeid} is steady: the gate runs it (tests/support/further.py)")
            item.add_marker(pytest.mark.full)
        _with_profile(item)
        _with_scale(item)


# Of each property coverage sees so many examples; the rest hardly ever takes a branch that these have not.
MEASURED_EXAMPLES = 30
# Folders of tests without threads: where one begins just then, Python refuses to change its tracer.
PURE = frozenset({"decide", "diagnose", "model", "render", "signatures"})


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
