"""The commands of the quick start for Kubernetes run on the bed as the page shows them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.run_world import RULES, World, job
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SECTION = (ROOT / "docs" / "kubernetes.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
IMAGE = "registry.example/train:1"
# Where the README's image has its script.
SCRIPTS = "/app"


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """What a reader types, in its order."""
    return [line for block in blocks(SECTION, "sh") for line in block.splitlines() if line]


def transcript() -> str:
    """What the README shows of a run."""
    (found,) = blocks(SECTION, "text")
    return found


@pytest.fixture
def image(bed: Bed) -> str:
    """The README's image, on every node: the bed's own with Python, under that name."""
    for index in (1, 2):
        node = bed.node(index)
        ctr = node.enter("ctr", "--address", str(node.socket), "--namespace", "k8s.io")
        subprocess.run(
            [*ctr, "images", "tag", "--force", PYTHON_IMAGE, IMAGE], check=True, capture_output=True, timeout=60
        )
    return IMAGE


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path, image: str) -> World:
    """A reader: a kubeconfig with the rights of the page, and a ``job.yaml`` with what has no flag. Its volumes bring script and torch, which the image lacks."""
    assert image in SECTION
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    home = tmp_path / "home"
    home.mkdir()
    world = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)
    spec = job(backend="job", namespace=namespace, fall="SIGKILL:2:1")
    # What the command line says.
    for field in ("backend", "command", "nnodes", "nproc_per_node"):
        del spec[field]
    del spec["kubernetes"]["image"], spec["kubernetes"]["image_pull_policy"]
    mounts = {mount["name"]: mount for mount in spec["kubernetes"]["volume_mounts"]}
    mounts["script"]["mountPath"] = SCRIPTS
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    return world


@pytest.mark.cluster
@pytest.mark.timeout(420)
def test_every_command_of_the_kubernetes_section_works(world: World, tmp_path: Path) -> None:
    env = world.environment()
    # As wide as the terminal of the transcript was.
    env |= {"PATH": f"{BIN}:{env['PATH']}", "COLUMNS": "140"}
    said: dict[str, str] = {}
    left: dict[str, list[str]] = {}
    for line in commands():
        # A shell and one stream, because a reader has a terminal.
        done = subprocess.run(
            ("sh", "-c", f"{line} 2>&1"),
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        print(f"$ {line}\n{done.stdout}")
        assert done.returncode == 0, line
        what = "plan" if "--dry-run" in line else line.split()[1]
        said[what], left[what] = done.stdout, world.objects()
    assert list(said) == ["plan", "run", "status", "logs", "why", "submit", "ps", "cancel"]

    kinds = [item["kind"] for item in yaml.safe_load(said["plan"].partition("\nnothing was started")[0])["objects"]]
    assert kinds == ["Job", "Service", "ConfigMap"]
    assert left["plan"] == []

    # The answer stands in the README as it is given.
    for start in ("rank    ", "cause   ", "action  "):
        (shown,) = (line for line in transcript().splitlines() if line.startswith(start))
        assert shown in said["run"].splitlines()
    (run,) = re.findall(r"^rankfall: run (\S+)$", said["run"], re.MULTILINE)
    assert f"rankfall: run {run} succeeded in attempt 2" in said["run"]
    assert re.search(rf"^pod     {run}-a1-1-\S+ on n[12]$", said["why"], re.MULTILINE)
    assert f"Run {run} succeeded in attempt 2 after" in said["status"]
    assert "[rank 2] step 2\n" in said["logs"]
    # Of an ended run the last attempt's objects stay; of a cancelled one nothing does.
    assert f"job.batch/{run}-a2" in left["run"]
    assert not any(f"{run}-a1" in name for name in left["run"])
    assert left["cancel"] == left["why"]
