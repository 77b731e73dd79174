"""A bed comes and goes and leaves nothing; two beds share nothing. This one has a number of its own, beside that of the other tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.helpers import wait_until
from testbed import bed as beds
from testbed import cgroups, network, process
from testbed.__main__ import assemble
from testbed.layout import Layout

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
MINE = 41


def traces(layout: Layout) -> dict[str, object]:
    """Everything of a bed that a machine could still have."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": sorted(process.marked(layout)),
        "namespaces": [name for name in network.namespaces() if name.startswith((f"{layout.name}-", "cni-"))],
        "links": [name for name in network.links() if name == layout.name or name.startswith(f"{layout.name}-")],
        "routes": [
            line
            for line in network.run("ip", "route").splitlines()
            if f" {layout.network.network_address}"[:8] in f" {line}"
        ],
        "cgroups": [str(path) for top in cgroups.hierarchies() for path in top.glob(f"{layout.name}-*")],
        "mounts": [line for line in mounts if str(layout.folder) in line],
        "folder": layout.folder.exists(),
        "elsewhere": [path for path in PLACES if Path(path).exists()],
    }


# Where Kubernetes and containerd write by default.
PLACES = (
    "/run/containerd",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/log/containers",
    "/var/log/pods",
    "/var/run/kubernetes",
    "/usr/libexec/kubernetes",
    "/tmp/k8s-webhook-server",
)


@pytest.fixture
def layout(bed: beds.Bed):
    del bed  # it says whether this machine can at all
    mine = Layout(MINE)
    beds.down(mine)
    yield mine
    beds.down(mine)


COMMAND = (sys.executable, "-m", "testbed", "--bed", str(MINE), "up", "--nodes", "1")


def kill_an_up(layout: Layout) -> None:
    """An ``up`` that is killed half-way."""
    killed = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    for line in killed.stderr:
        if "API server" in line:
            break
    # The line is the announcement.
    wait_until(lambda: process.find(layout, "kube-apiserver") is not None, timeout=60, what="the API server's process")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stderr.close()
    assert process.find(layout, "kube-apiserver") is not None
    assert not beds.is_up(layout)


def reboot(layout: Layout) -> None:
    """What a reboot leaves: the files, and nothing that lives in the kernel."""
    process.end(list(process.marked(layout)), how=signal.SIGKILL)
    cgroups.remove(f"{layout.name}-")
    network.down(layout)
    assert layout.folder.exists()
    assert not beds.is_up(layout)


def test_up_and_down_five_times_leave_the_machine_as_it_was_whatever_was_there(bed, layout, namespace):
    before = traces(layout)
    made = assemble(layout)

    def up() -> None:
        made.up(nodes=1)
        assert beds.is_up(layout)
        assert {item["metadata"]["name"] for item in made.kubectl.get("nodes")["items"]} == {"n1"}
        # What is in one bed is not in the other.
        assert made.kubectl.run("get", "namespace", namespace).returncode

    def down() -> None:
        beds.down(layout)
        assert not beds.is_up(layout)
        assert traces(layout) == before

    up()
    down()

    kill_an_up(layout)
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ready in" in done.stderr
    assert beds.is_up(layout)
    down()

    up()
    reboot(layout)
    up()
    down()

    kill_an_up(layout)
    down()

    up()
    down()
    # Ending one left the other alone.
    assert bed.kubectl.get("namespace", namespace)["status"]["phase"] == "Active"


def test_two_programs_do_not_start_one_bed_at_once(layout):
    first = assemble(layout)
    with first._alone():
        done = subprocess.run(
            (sys.executable, "-m", "testbed", "--bed", str(MINE), "up"), capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "another program" in done.stderr
    assert "Traceback" not in done.stderr
