"""The command line killed at each request that it and its supervisor send for a launch, and started again as a person would: one job, once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.chaos_world import KINDS, OURS, Chaos, counting
from rankfall.rundir import RunDir, list_runs
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import HalfOpen, Match, Proxy, When

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]
LINES = 3


@pytest.fixture
def chaos(bed: Bed, proxy: Proxy, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Chaos]:
    made = Chaos(bed, proxy, home=tmp_path / "home", kubectl=kubectl, namespace=namespace)
    yield made
    made.close()


class User:
    """Somebody with a home of their own, who submits one job.

    Args:
        chaos: where.
        home: of the runs; made here.
        spec: path of the job file.
    """

    def __init__(self, chaos: Chaos, home: Path, spec: Path) -> None:
        self.chaos, self.home, self.spec = chaos, home, spec
        home.mkdir()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The command line."""
        return subprocess.Popen(
            (sys.executable, "-m", "rankfall", *words),
            env=self.chaos.environment() | {"RANKFALL_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def runs(self) -> list[RunDir]:
        """Of this home."""
        return list_runs(self.home) if (self.home / "runs").is_dir() else []

    def requests_until_released(self, plural: str) -> int:
        """Submit, undisturbed; how many requests that takes until the job is released."""
        with self.start("submit", "--file", str(self.spec)):
            pass
        wait_until(lambda: self._released(plural), timeout=60, what="the release")
        return self._released(plural)

    def _released(self, plural: str) -> int:
        ours = [one for one in self.chaos.proxy.log() if re.search(OURS, one.user_agent)]
        found = (n for n, one in enumerate(ours, 1) if one.method == "PATCH" and f"/{plural}/" in one.path)
        return next(found, 0)

    def killed_at(self, number: int, when: When) -> bool:
        """Submit, and kill whichever process sent this request: before the server heard of it, or after the server did it.

        Returns:
            False if the run needed no answer to it and was over before the kill, as on a busy machine.
        """
        struck = self.chaos.proxy.counters().by_rule.get("stop", 0)
        self.chaos.proxy.add("stop", HalfOpen(at=when), Match(user_agent=OURS, nth=number))
        with self.start("submit", "--file", str(self.spec)) as submit:
            wait_until(
                lambda: self.chaos.proxy.counters().by_rule.get("stop", 0) > struck,
                timeout=60,
                what=f"request {number}",
            )
            runs = self.runs()
            holders = [holder for run in runs if (holder := run.lease_holder()) is not None]
            for holder in holders:
                os.kill(holder.pid, signal.SIGKILL)
            submit.kill()
        self.chaos.proxy.remove("stop")
        return len(holders) == len(runs)

    def again(self) -> subprocess.Popen[str]:
        """What a person does then: the run that is there is taken over, else the job is submitted once more."""
        runs = self.runs()
        return self.start("attach", runs[0].id) if runs else self.start("run", "--file", str(self.spec))


@pytest.mark.parametrize("when", [When(), When(answered=True)], ids=["before", "after"])
@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_launch_s12_submit_killed_at_each_request_and_attached_again(chaos, kubectl, tmp_path, backend, when):
    spec = chaos.file(counting(backend=backend, namespace=chaos.namespace, lines=LINES, nnodes=1))
    untouched = User(chaos, tmp_path / "home-0", spec)
    last = untouched.requests_until_released(KINDS[backend])
    # The first ones only ask what the server offers.
    numbers = [1, *range(4, last + 1)]
    users = [User(chaos, tmp_path / f"home-{number}", spec) for number in numbers]
    killed = [user.killed_at(number, when) for user, number in zip(users, numbers, strict=True)]
    assert sum(killed) > len(killed) // 2, killed
    users.append(untouched)
    objects = kubectl.get(KINDS[backend], "-n", chaos.namespace)["items"]
    assert len(objects) <= len(users)
    # A few at a time: this is about requests, not about a machine that starts a dozen pods.
    for group in (users[at : at + 4] for at in range(0, len(users), 4)):
        for process in [user.again() for user in group]:
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said
    for user in users:
        (run,) = user.runs()
        (item,) = kubectl.get(KINDS[backend], "-n", chaos.namespace, "-l", f"rankfall.dev/run={run.id}")["items"]
        assert item["metadata"]["name"] == f"{run.id}-a1"
        with run.reader() as reader:
            assert [row.attempt for row in reader.attempts()] == [1]
        [text] = [path.read_text() for path in run.logs_dir.glob("attempt-1/*/*/r0.out.log")]
        assert text.splitlines() == [f"line {number}" for number in range(LINES)]
    assert len(kubectl.get(KINDS[backend], "-n", chaos.namespace)["items"]) == len(users)
