"""One supervisor a run, on a real API server: copies of a run's directory stand for other machines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.run_world import World
from cluster.waiting_job import go, runs, waiting
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return World.with_account(bed, kubectl, namespace, tmp_path / "home")


def supervisor(world: World) -> int:
    """The pid of the detached supervisor, as ``-d`` says it."""
    started = world.run(waiting(world), "--detach", "-o", "json")
    assert started.returncode == 0, started.stderr
    pid = int((world.only_run() / "lease").read_text().partition('"pid":')[2].partition(",")[0])
    assert f"process {pid} on " in started.stderr
    assert f'"pid": {pid}' in started.stdout
    runs(world)
    return pid


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(),
        timeout=30,
        what="its end",
    )


def lease(world: World) -> dict[str, Any]:
    (found,) = world.kubectl.get("leases", "--namespace", world.namespace)["items"]
    return found


@contextmanager
def elsewhere(world: World, folder: Path) -> Iterator[World]:
    """The same account with a copy of all run directories."""
    home = folder / "elsewhere"
    shutil.copytree(world.home, home, ignore=shutil.ignore_patterns("lease"))
    mine, world.home = world.home, home
    try:
        yield world
    finally:
        world.home = mine


def take_over(world: World, second: subprocess.Popen[str], pid: int) -> None:
    """The second one waits for the first, takes over when that is gone, and brings the run to its end."""
    assert second.stderr is not None
    line = next(line for line in second.stderr if "supervises this run" in line)
    assert f"pid {pid}" in line
    killed(pid)
    assert any("resumed at attempt 1" in line for line in second.stderr)
    assert lease(world)["spec"]["leaseTransitions"] == 1
    go(world)
    said = second.stderr.read()
    assert second.wait(60) == 0, said


def test_jobapi_one_supervisor_a_run_among_machines(world, tmp_path):
    pid = supervisor(world)
    run = world.only_run().name
    assert f" pid {pid} " in lease(world)["spec"]["holderIdentity"]
    assert lease(world)["metadata"]["ownerReferences"][0]["name"] == f"{run}-a1"
    with elsewhere(world, tmp_path) as copy:
        refused = copy.cli("cancel", run, "-y")
        assert refused.returncode == 74, refused.stderr
        assert f"pid {pid}" in refused.stderr
        (copy.only_run() / "cancel").unlink()
        with subprocess.Popen(
            [sys.executable, "-m", "rankfall", "attach", run],
            env=copy.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as second:
            try:
                take_over(world, second, pid)
            finally:
                second.kill()
        assert copy.document("status", run)["state"] == "succeeded"
        assert copy.cli("logs", run, "--no-prefix").stdout.splitlines() == ["begun", "done"]
    # Nobody holds it any more, and it goes with the job.
    assert "holderIdentity" not in lease(world)["spec"]
    world.kubectl("delete", "job", f"{run}-a1", "--namespace", world.namespace)
    wait_until(
        lambda: not world.kubectl.get("leases", "--namespace", world.namespace)["items"], timeout=60, what="no lease"
    )


def test_a_detached_supervisor_that_was_killed_is_missed_and_attach_takes_over_at_once(world):
    pid = supervisor(world)
    run = world.only_run().name
    assert world.document("status", run)["supervised"] is True
    killed(pid)
    assert world.document("status", run)["supervised"] is False
    assert "unsupervised" in world.cli("status", run).stdout
    assert "unsupervised" in world.cli("ps").stdout
    (listed,) = world.document("ps")["runs"]
    assert (listed["state"], listed["supervised"]) == ("running", False)
    go(world)
    done = world.cli("attach", run)
    assert done.returncode == 0, done.stderr
    assert lease(world)["spec"]["leaseTransitions"] == 1
    (listed,) = world.document("ps")["runs"]
    assert (listed["state"], listed["supervised"]) == ("succeeded", False)


def test_launch_s02_what_an_earlier_request_left_running_is_refused_with_its_owner_and_replaced_when_asked(world):
    words = ("--request-token", "build-7", "--detach")
    assert world.run(waiting(world), *words).returncode == 0
    run = runs(world)
    (job,) = world.kubectl.get("jobs", "--namespace", world.namespace)["items"]
    # The machine that started it is gone, with the run's directory.
    killed(int((world.only_run() / "lease").read_text().partition('"pid":')[2].partition(",")[0]))
    shutil.rmtree(world.only_run())
    refused = world.run(waiting(world), "--request-token", "build-7")
    assert refused.returncode == 69, refused.stderr
    assert world.only_run().name == run
    assert job["metadata"]["annotations"]["rankfall.dev/owner"] in refused.stderr
    assert " old)" in refused.stderr
    assert refused.stderr.splitlines()[-1] == "rankfall-exit: rankfall 69"
    assert len(world.objects("pods")) == 1
    shutil.rmtree(world.only_run())
    assert world.run(waiting(world), *words, "--replace").returncode == 0
    runs(world)
    (new,) = world.kubectl.get("jobs", "--namespace", world.namespace)["items"]
    assert new["metadata"]["name"] == job["metadata"]["name"]
    assert new["metadata"]["uid"] != job["metadata"]["uid"]
    go(world)
    assert world.cli("wait", run).returncode == 0
