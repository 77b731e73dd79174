"""``rankfall cp`` against real volumes: whole trees both ways, through cuts and lost pods, and nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carry_world import picture
from cluster.run_world import RULES, World
from cluster.workspace_world import CLAIM, volume
from inside.test_carry import odd_tree
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> World:
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    home = tmp_path / "home"
    home.mkdir()
    return World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)


@pytest.fixture
def shared(bed: Bed, kubectl: Kubectl, namespace: str) -> Iterator[Path]:
    with volume(bed, kubectl, namespace) as folder:
        yield folder


def cp(world: World, *words: str, image: str = PYTHON_IMAGE) -> subprocess.CompletedProcess[str]:
    return world.cli("cp", "--claim", CLAIM, "--image", image, "-n", world.namespace, *words)


def movers(world: World) -> list[str]:
    found = world.kubectl("get", "pods", "-n", world.namespace, "-l", "rankfall.dev/transfer", "-o", "name")
    return found.split()


def test_launch_s53_a_tree_goes_to_a_volume_and_back_as_it_was(world, shared, tmp_path):
    source = odd_tree(tmp_path / "source")
    done = cp(world, str(source), ":in/a place")
    assert done.returncode == 0, done.stderr
    assert picture(shared / "in" / "a place") == picture(source)
    again = cp(world, str(source), ":in/a place")
    assert "0 bytes sent, 4 were there already" in again.stderr
    back = cp(world, ":/volume/in/a place", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert picture(tmp_path / "back") == picture(source)
    one = cp(world, ":in/a place/run.sh", str(tmp_path))
    assert one.returncode == 0, one.stderr
    assert (tmp_path / "run.sh").stat().st_mode & 0o100
    assert movers(world) == []
