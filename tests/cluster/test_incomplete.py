"""Lines that nobody has any more, on real pods: a disk that was full while the kubelet rotated, logs that no server gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.foreign.fall import LOOK
from cluster.run_world import RULES, World, job
from support.helpers import wait_until
from testbed import accounts, faults
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LINES = 60_000
PRINTS = f"""
import os, time
rank = os.environ["RANK"]
for number in range({LINES}):
    print(f"rank {{rank}} line {{number:06d}} of a job that prints a lot", flush=number % 100 == 99)
    if number % 100 == 99:
        time.sleep(0.02)
while not os.path.exists("/tmp/go"):
    time.sleep(0.2)
print("done", flush=True)
"""
LOST = re.compile(r"record incomplete: (\d+) lines of ranks 0, 1 between \S+ and \S+ of attempt 1 are missing")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A home on a disk of 3 MB."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)), check=True)
    yield home
    subprocess.run(("umount", "-l", str(home)), check=True)


@pytest.fixture
def world(bed: Bed, kubectl: Kubectl, namespace: str, tiny: Path) -> World:
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    return World(tiny, kubeconfig=path, kubectl=kubectl, namespace=namespace, program=PRINTS)


def test_i19_p4_what_was_rotated_away_while_the_disk_was_full_is_told_with_the_exact_number(bed, world, tiny):
    spec = job(backend="job", namespace=world.namespace) | {"launcher": "plain", "nnodes": 1}
    spec["command"] = spec["command"][:1]
    spec["kubernetes"]["pod"]["spec"]["nodeName"] = "n1"
    logs = bed.node(1).folder / "pod-logs"
    said = tiny.parent / "said"
    with (
        faults.kubelet_config(bed, 1, containerLogMaxSize="300Ki", containerLogMonitorInterval="3s"),
        said.open("w") as stderr,
        subprocess.Popen(
            (sys.executable, "-m", "rankfall", "run", "--all", "--file", str(world.file(spec))),
            env=world.environment(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as run,
    ):
        wait_until(lambda: "cannot store data from the cluster" in said.read_text(), timeout=90, what="a full disk")
        files = set(logs.glob(f"{world.namespace}_*/main/0.log.*"))
        wait_until(
            lambda: len(set(logs.glob(f"{world.namespace}_*/main/0.log.*")) - files) >= 2,
            timeout=60,
            what="two rotations",
        )
        # Nobody sees a line meanwhile, and why is said again.
        wait_until(lambda: "new lines do not appear" in said.read_text(), timeout=60, what="word of the full disk")
        subprocess.run(("mount", "-o", "remount,size=200m", str(tiny)), check=True)
        wait_until(lambda: "storing continues after" in said.read_text(), timeout=60, what="word that there is room")
        (pod,) = world.kubectl.get("pods", "-n", world.namespace, "-l", "rankfall.dev/run")["items"]
        world.kubectl("exec", "-n", world.namespace, pod["metadata"]["name"], "--", "touch", "/tmp/go")
        assert run.wait(120) == 0, said.read_text()
    shown = world.cli("logs", "--no-prefix")
    assert shown.returncode == 65
    status, why = world.document("status"), world.document("why")
    last = json.loads(world.cli("logs", "-o", "json").stdout.splitlines()[-1])
    texts = [
        said.read_text(),
        shown.stderr,
        world.cli("status").stdout,
        " ".join(world.cli("why").stdout.split()),
        why["missing"][0],
        f"record incomplete: {status['incomplete'][0]}",
        f"record incomplete: {last['incomplete'][0]}",
    ]
    found = [LOST.search(text) for text in texts]
    assert all(found), texts
    (lost,) = {int(one[1]) for one in found if one is not None}
    lines = shown.stdout.splitlines()
    assert lost > 0
    assert len(lines) + lost == 2 * (LINES + 1)
    assert len(set(lines)) == len(lines) - 1
    assert status["lost_lines"][0]["lines"] == lost


def test_i19_p15_logs_that_no_kubelet_gives_have_an_exit_code_a_count_and_a_reason(bed, kubectl, namespace, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    path = accounts.create(bed.control, kubectl, "looker", namespace=namespace, rules=LOOK)
    made = World(home, kubeconfig=path, kubectl=kubectl, namespace=namespace)
    pod = {
        "restartPolicy": "Never",
        "nodeName": "n1",
        "containers": [
            {
                "name": "main",
                "image": PYTHON_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", "echo said by pod $JOB_COMPLETION_INDEX"],
            }
        ],
    }
    spec = {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "template": {"spec": pod}}
    talks = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "talks", "namespace": namespace},
        "spec": spec,
    }
    kubectl.apply([talks])
    wait_until(
        lambda: kubectl.get("job", "talks", "-n", namespace).get("status", {}).get("succeeded") == 3,
        timeout=120,
        what="the end of the job",
    )
    with faults.kubelet_down(bed, 1):
        done = made.cli("logs", "job/talks", "-n", namespace, timeout=250)
    assert done.returncode == 65, done.stderr
    assert done.stdout == ""
    assert "lines of slots 0-2" in done.stderr
    assert "the logs of 3 pods could not be read to their end (" in done.stderr
