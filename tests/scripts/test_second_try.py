"""A failed test is tried again, once and alone; what that makes of a stage."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gate.stages import PLANS  # noqa: E402 - scripts is no package of the project
from gate.trial import MAX_UNSTEADY, Result, Trial, run  # noqa: E402 - scripts is no package of the project

# Fails until its file exists, and makes it.
ONCE = """
import pathlib, pytest
SEEN = pathlib.Path(__file__).with_suffix(".seen")

def fails_once(name):
    memory = SEEN.with_name(SEEN.name + name)
    if not memory.exists():
        memory.touch()
        print("printed before the failure")
        raise AssertionError("the first time")
"""
# Each try is a process of its own; all plug-ins of the project take most of its time.
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CONFIG = "[pytest]\nmarkers =\n  steady: never tried again\n"


@pytest.fixture
def stage(tmp_path):
    """Runs tests, given as text, as a stage of their own."""
    (tmp_path / "pytest.ini").write_text(CONFIG)

    def play(
        text: str, *, workers: tuple[str, ...] = (), unsteady_before: int = 0, conftest: str = "", **more
    ) -> Result:
        # Written always, as the project has one: pytest then asks for plug-ins by folder.
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_one.py").write_text(ONCE + text)
        trial = Trial("toy", ("-p", "xdist", "test_one.py"), workers, env=BARE, **more)
        reports = tmp_path / "reports"
        reports.mkdir()
        return run(trial, root=tmp_path, reports=reports, unsteady_before=unsteady_before)

    return play


def test_a_broken_test_fails_the_stage_with_its_text(stage):
    result = stage("def test_good(): pass\ndef test_broken():\n    print('seen')\n    assert False\n")
    assert (result.good, result.passed, result.failed, result.unsteady) == (False, 1, ["test_one.py::test_broken"], [])
    assert "FAILED test_one.py::test_broken" in result.text
    assert "FAILED again, alone" in result.text
    assert "seen" in result.text


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["alone", "two workers"])
def test_what_passes_alone_is_unsteady_and_its_first_failure_is_kept(stage, tmp_path, workers):
    text = (
        "@pytest.mark.xdist_group('a')\ndef test_shaky(): fails_once('a')\n"
        "def test_good(record_property): record_property('note', 'works with 3.11')\n"
    )
    result = stage(text, workers=workers)
    assert result.text == "   works with 3.11"
    assert (result.good, result.passed, result.failed) == (True, 2, [])
    assert result.unsteady == ["test_one.py::test_shaky"]
    (kept,) = (tmp_path / "reports" / "unsteady").iterdir()
    assert "the first time" in kept.read_text()
    assert "printed before the failure" in kept.read_text()


@pytest.mark.full
def test_the_tests_of_a_group_run_in_one_worker(stage, tmp_path):
    text = (
        "import os\n@pytest.mark.parametrize('n', range(8))\n@pytest.mark.xdist_group('a')\n"
        "def test_member(n): pathlib.Path(__file__).with_name(f\"ran-{os.environ['PYTEST_XDIST_WORKER']}\").touch()\n"
    )
    assert stage(text, workers=("-n", "2", "--dist", "loadgroup")).passed == 8
    assert len([*tmp_path.glob("ran-*")]) == 1


STANDS_STILL = """
import pathlib, time
def pytest_sessionfinish():
    memory = pathlib.Path(__file__).with_name("stood")
    if memory.exists() and {once}:
        return
    memory.touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("once", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_stage_that_stands_still_begins_anew_once(stage, monkeypatch, once):
    monkeypatch.setenv("RANKFALL_TEST_SCALE", "1")
    result = stage("def test_good(): pass\n", conftest=STANDS_STILL.format(once=once), still_s=4.0)
    assert result.good is once
    assert len(result.unsteady) == 1
    assert "none of them ended for 4 s" in result.unsteady[0]
    assert once or "pytest ended with" in result.text


def test_more_unsteady_tests_than_allowed_fail_the_run(stage):
    text = f"@pytest.mark.parametrize('n', range({MAX_UNSTEADY + 1}))\ndef test_shaky(n): fails_once(str(n))\n"
    result = stage(text)
    assert not result.good
    assert len(result.failed) == MAX_UNSTEADY + 1
    assert "no second try: 9 failures" in result.text


def test_as_many_as_allowed_are_unsteady_counted_over_all_stages(stage):
    text = f"@pytest.mark.parametrize('n', range({MAX_UNSTEADY}))\ndef test_shaky(n): fails_once(str(n))\n"
    assert len(stage(text).unsteady) == MAX_UNSTEADY


def test_one_more_than_earlier_stages_left_fails(stage):
    result = stage("def test_shaky(): fails_once('a')\n", unsteady_before=MAX_UNSTEADY)
    assert not result.good


def test_a_steady_test_is_never_tried_again(stage):
    text = "@pytest.mark.steady\ndef test_lines(): fails_once('a')\ndef test_shaky(): fails_once('b')\n"
    result = stage(text)
    assert not result.good
    assert (result.failed, result.unsteady) == (["test_one.py::test_lines"], ["test_one.py::test_shaky"])
    assert "FAILED test_one.py::test_lines" in result.text


def test_errors_of_one_shared_set_up_are_one_case(stage):
    text = (
        "@pytest.fixture(scope='module')\ndef server(): fails_once('a')\n"
        f"@pytest.mark.parametrize('n', range({MAX_UNSTEADY + 4}))\ndef test_with(server, n): pass\n"
    )
    result = stage(text)
    assert (result.good, result.failed, len(result.unsteady)) == (True, [], 1)
    assert result.passed == MAX_UNSTEADY + 4


@pytest.mark.parametrize(
    "text",
    [
        "import nothing_of_this_name\n",
        "def test_ends(): fails_once('a')\nimport os\ndef test_crash(): os._exit(3)\n",
        "",
    ],
    ids=["unreadable file", "crash", "no test"],
)
def test_anything_but_failed_tests_is_red_at_once(stage, tmp_path, text):
    result = stage(text)
    assert not result.good
    assert not (tmp_path / "reports" / "toy-second.json").exists()


# pytest-xdist sometimes waits for ever for a worker that is gone; it is then ended as one that stands still.
@pytest.mark.timeout(180)
def test_a_crash_of_a_worker_is_red_at_once(stage, tmp_path):
    crash = "import os\ndef test_crash(): os._exit(3)\ndef test_good(): pass\n"
    result = stage(crash, workers=("-n", "2"), still_s=30.0)
    assert not result.good
    assert not (tmp_path / "reports" / "toy-second.json").exists()


def test_a_run_that_ends_badly_without_a_failed_test_is_red(stage, tmp_path):
    result = stage("def test_good(): pass\n", conftest="def pytest_sessionfinish(session): session.exitstatus = 1\n")
    assert (result.good, result.passed, result.failed) == (False, 1, [])
    assert "pytest ended with 1" in result.text
    assert "pytest did not run all tests to their end" in result.text
    assert not (tmp_path / "reports" / "toy-second.json").exists()


def test_a_second_try_that_ends_badly_without_a_failed_test_is_red(stage):
    result = stage(
        "def test_shaky(): fails_once('a')\n", conftest="def pytest_sessionfinish(session): session.exitstatus = 1\n"
    )
    assert (result.good, result.failed, result.unsteady) == (False, [], ["test_one.py::test_shaky"])
    assert "the second try ended with 1" in result.text


def test_a_skip_fails_where_the_stage_allows_none(stage, tmp_path):
    text = "def test_absent(): pytest.skip('no machine')\ndef test_good(): pass\n"
    result = stage(text, skips_fail=True)
    assert not result.good
    assert "no machine" in result.text


LEAKS = """
import subprocess, sys
def test_leaks():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    SEEN.write_text(str(child.pid))
    child.returncode = 0
"""


@pytest.fixture
def leaked(tmp_path) -> Callable[[], int]:
    return lambda: int((tmp_path / "test_one.seen").read_text())


def test_what_outlives_the_tests_is_named_and_ended(stage, leaked, monkeypatch):
    monkeypatch.setenv("RANKFALL_TEST_SCALE", "0.01")
    result = stage(LEAKS)
    assert not result.good
    assert "time.sleep(600)" in result.text
    assert not Path("/proc", str(leaked())).exists()


def test_what_the_stage_runs_on_is_kept(stage, leaked):
    result = stage(LEAKS, keep="time.sleep(600)")
    os.kill(leaked(), signal.SIGKILL)
    assert (result.good, result.text) == (True, "")


def test_contributing_describes_the_stages_of_both_commands():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tables = re.findall(r"^\| stage \| content \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    named = [[row.split("|")[1].strip() for row in table.splitlines()] for table in tables]
    assert named == [[stage.name for stage in PLANS[plan].stages] for plan in ("test", "test-cluster")]
