"""Runs on Kubernetes whose user sits at a system without /proc and Linux's own calls, as macOS."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.run_world import World, job
from support import without_linux
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


class WithoutLinux(World):
    """The command line on such a system."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(without_linux.FOLDER)}


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    return WithoutLinux.with_account(bed, kubectl, namespace, tmp_path / "home")


@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
def test_i24_p1_a_run_of_the_cluster_is_explained_and_restarted_without_linux(world: World, backend: str) -> None:
    done = world.run(job(backend=backend, namespace=world.namespace, fall="SIGKILL:2:1"))
    assert done.returncode == 0, done.stderr
    run = world.only_run().name
    status = world.document("status", run)
    assert (status["state"], status["attempts"]) == ("succeeded", 2)
    verdict = world.document("why", run, "--attempt", "1")
    assert verdict["rank"] == 2
    assert world.cli("logs", run, "--rank", "3", "--no-prefix").stdout.splitlines()[-1] == "done"
    assert world.cli("report", run, "-o", str(world.home / "r.html")).returncode == 0


def test_i24_p1_a_killed_supervisor_is_replaced_without_loss_or_repeat_without_linux(world: World) -> None:
    spec = job(backend="job", namespace=world.namespace)
    spec["env"]["SLOW"] = "1"
    with world.killed_after(spec, "step 1"):
        assert world.document("status")["state"] == "running"
    world.attached_whole()
