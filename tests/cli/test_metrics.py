"""Numbers of runs for Prometheus, and the dashboard that asks for them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankfall.cli.commands import metrics
from rankfall.cli.commands.metrics import NAMES, RunMetrics
from rankfall.rundir import RunDir
from support.helpers import wait_until

Runner = Callable[..., subprocess.CompletedProcess[str]]
Starter = Callable[..., subprocess.Popen[bytes]]
GANG = ("--nproc-per-node", "3", "--launcher", "plain")
DASHBOARD = Path(__file__).parents[2] / "deploy/grafana-runs.json"
TWICE = """
import os
if os.environ["RANK"] == "1":
    if os.environ["RANKFALL_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
    raise TypeError("unsupported operand")
"""
SAMPLE = re.compile(r'rankfall_(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels; each line but comments is a sample, and no series stands twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if line.startswith(("# HELP rankfall_", "# TYPE rankfall_")):
            continue
        parsed = SAMPLE.fullmatch(line)
        assert parsed, line
        key = (parsed[1], frozenset(re.findall(r'(\w+)="([^"]*)"', parsed[2] or "")))
        assert key not in found
        found[key] = float(parsed[3])
    return found


def of_run(text: str, run: str) -> dict[str, float]:
    """Values of one run, as ``name`` or ``name{label}`` with the values of its other labels."""
    found = {}
    for (name, labels), value in samples(text).items():
        given = dict(labels)
        if given.pop("run", "") == run:
            given.pop("name")
            given.pop("backend", None)
            found[f"{name}{{{','.join(given.values())}}}" if given else name] = value
    return found


def failed_twice(folder: Path, rankfall: Runner) -> str:
    """Runs a job that restarts after a signal and fails by its own fault; returns the run's id."""
    (folder / "twice.py").write_text(TWICE)
    run = rankfall("submit", *GANG, "--name", "bad", "twice.py").stdout.strip()
    assert rankfall("wait", run).returncode == 1
    return run


@pytest.fixture
def served(start: Starter) -> tuple[subprocess.Popen[bytes], str]:
    process = start("metrics", "--metrics-address", "127.0.0.1:0", stderr=subprocess.PIPE)
    assert process.stderr is not None
    url = re.search(rb"http://\S+/metrics", process.stderr.readline())
    assert url
    return process, url[0].decode()


def test_a_live_run_and_one_that_restarted_and_failed_have_their_numbers(
    home: Path, folder: Path, tmp_path: Path, rankfall: Runner, served: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, url = served

    def read() -> str:
        with urllib.request.urlopen(url) as answer:  # noqa: S310 - an address of this test
            assert answer.headers["Content-Type"].startswith("text/plain")
            text: str = answer.read().decode()
            return text

    assert "run_state" not in {name for name, _ in samples(read())}
    failed = failed_twice(folder, rankfall)
    live = rankfall("submit", *GANG, "--name", "held", "train.py", GATE=str(tmp_path / "gate")).stdout.strip()
    wait_until(lambda: of_run(read(), live).get("run_lines_total") == 12, timeout=30, what="12 lines of 3 ranks")
    text = read()
    assert samples(text)["runs", frozenset({("state", "failed")})] == 1
    one = of_run(text, failed)
    assert one["run_state{failed}"] == 1
    restarts = {name: value for name, value in one.items() if name.startswith("run_restarts_total")}
    assert (one["run_attempts"], restarts) == (2, {"run_restarts_total{killed_unknown}": 1})
    assert one["run_cause{user_code_exception}"] == 1
    with RunDir.open(home, failed).reader() as reader:
        status = reader.status(0)
    assert one["run_slots{failed}"] + one["run_slots{stopped}"] == len(status.slots)
    assert one["run_lines_total"] == sum(
        path.read_bytes().count(b"\n") for path in (home / "runs" / failed).glob("logs/**/*.log")
    )
    assert one["run_end_time_seconds"] >= one["run_start_time_seconds"]
    assert "run_line_age_seconds" not in one
    other = of_run(text, live)
    assert (other["run_state{running}"], other["run_supervised"]) == (1, 1)
    assert other["run_line_age_seconds"] >= 0
    assert "run_end_time_seconds" not in other
    # The run ends while it is watched.
    (tmp_path / "gate").touch()
    wait_until(lambda: "run_state{succeeded}" in of_run(read(), live), timeout=30, what="the end")
    assert of_run(read(), failed) == one
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def test_an_ended_run_is_read_once_until_it_changes(
    home: Path, rankfall: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.open(home, rankfall("submit", "--launcher", "plain", "train.py").stdout.strip())
    assert rankfall("wait", run.id).returncode == 0
    wait_until(lambda: run.lease_holder() is None, timeout=30, what="the supervisor's end")
    read = []
    before = metrics._numbers
    monkeypatch.setattr(metrics, "_numbers", lambda one, now: read.append(one.id) or before(one, now))
    numbers = RunMetrics(home)
    first = numbers.text()
    assert numbers.text() == first
    assert read == [run.id]
    with run.lease() as writer:
        writer.set_run("failed", at=time.time_ns())
    assert "run_state{failed}" in of_run(numbers.text(), run.id)
    with run.lease() as writer:
        writer.set_run("failed", at=1)
    assert "run_state" not in {name for name, _ in samples(numbers.text())}, "it ended in 1970"
    (run.path / "run.db").write_bytes(b"not a database")
    assert samples(numbers.text())["runs", frozenset({("state", "unknown")})] == 1


def test_an_address_that_is_taken_or_none_is_said(
    rankfall: Runner, served: tuple[subprocess.Popen[bytes], str]
) -> None:
    address = served[1].removeprefix("http://").removesuffix("/metrics")
    done = rankfall("metrics", "--metrics-address", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot listen on {address}" in done.stderr
    done = rankfall("metrics", "--metrics-address", "nowhere")
    assert done.returncode == 2
    assert "is not an address" in done.stderr


def expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    lists = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return [*asked, *lists]


def test_each_query_of_the_dashboard_asks_for_metrics_and_labels_that_exist(folder: Path, rankfall: Runner) -> None:
    failed_twice(folder, rankfall)
    labels: dict[str, set[str]] = {}
    for name, given in samples(rankfall("metrics").stdout):
        labels.setdefault(name, {"instance", "job"}).update(key for key, _ in given)
    # Of a live run alone.
    alone = {"run_step", "run_line_age_seconds"}
    assert (labels.keys() | alone) ^ NAMES.keys() == set()
    labels |= {name: {"instance", "job", "run", "name"} for name in alone}
    found = expressions(json.loads(DASHBOARD.read_text()))
    assert len(found) >= 10
    for query in found:
        asked = re.findall(r"rankfall_(\w+)(?:\{([^}]*)\})?", query)
        assert asked, query
        used = {name for _, inside in asked for name in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', inside)}
        used |= {name.strip() for inside in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for name in inside.split(",")}
        for name, _ in asked:
            assert used <= labels[name] or "rankfall_run_state" in query, query
            counter = NAMES[name][0] == "counter"
            assert not re.search(rf"\b(?:rate|increase)\(rankfall_{name}\b", query) or counter, query
