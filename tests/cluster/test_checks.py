"""Checks of nodes on real kubelets, by an account with the rights of the manifests and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankfall.nodes.manifests.controller import JOB_RULES
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE

NODES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
# The first serves one word, the second fetches it: both nodes take part.
PAIR = """
import os, socket, time
if os.environ["NODE_RANK"] == "0":
    with socket.create_server(("", 7000)) as server:
        server.settimeout(60)
        server.accept()[0].sendall(b"word")
else:
    for _ in range(50):
        try:
            with socket.create_connection((os.environ["MASTER"], 7000), timeout=5) as there:
                print(there.recv(4))
                break
        except OSError:
            time.sleep(0.2)
    else:
        raise SystemExit("rank 0 is not there")
"""
CONFIG = f"""
[[check]]
name = "disk"
image = "{PYTHON_IMAGE}"
env = {{ SIZE_MIB = "8" }}

[[check]]
name = "network"
image = "{PYTHON_IMAGE}"
command = ["sh", "-c", "getent hosts $KUBERNETES_NAME || exit 1"]
env = {{ KUBERNETES_NAME = "localhost" }}

[[check]]
name = "pair"
image = "{PYTHON_IMAGE}"
command = ["python3", "-c", '''{PAIR}''']
nodes = 2

[[check]]
name = "fails"
image = "{PYTHON_IMAGE}"
command = ["sh", "-c", "echo 7 GPUs, expected 8; exit 1"]

[[check]]
name = "hangs"
image = "{PYTHON_IMAGE}"
command = ["sleep", "1000"]
timeout_s = 2

[[check]]
name = "waits"
image = "{PYTHON_IMAGE}"
command = ["true"]
wait_s = 4

[[check]]
name = "no-gpus"
image = "{PYTHON_IMAGE}"
command = ["true"]
gpus = true
"""


@contextmanager
def tainted(kubectl: Kubectl, node: str, taint: str) -> Iterator[None]:
    kubectl("taint", "node", node, taint)
    try:
        yield
    finally:
        kubectl("taint", "node", node, f"{taint}-")


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_health_s09_s41_checks_run_on_a_tainted_node_and_only_what_passed_is_a_pass(
    bed: Bed, kubectl: Kubectl, namespace: str, nodes: list[str], tmp_path: Path
) -> None:
    account = accounts.create(bed.control, kubectl, "checks", namespace=namespace, rules=JOB_RULES, cluster_rules=NODES)
    config = tmp_path / "health.toml"
    config.write_text(CONFIG)
    node, peer = nodes

    def check(*names: str) -> tuple[int, str]:
        words = [word for name in names for word in ("--check", name)]
        done = subprocess.run(
            [sys.executable, "-m", "rankfall", "nodes", "check", node, *words, "-n", namespace, "--peer", peer, "--config", str(config)],
            env=os.environ | {"KUBECONFIG": str(account)}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        return done.returncode, done.stdout

    with tainted(kubectl, node, "rankfall.dev/faulty=true:NoSchedule"):
        code, said = check("disk", "network", "pair")
        assert code == 0
        assert [line.split(":")[1:3] for line in said.splitlines()] == [
            [" disk", " passed"],
            [" network", " passed"],
            [" pair", " passed"],
        ]
        assert check("fails", "disk") == (69, f"{node}: fails: failed: ended with 1: 7 GPUs, expected 8\n")
        code, said = check("hangs")
        assert (code, "had not ended after 2 s" in said) == (69, True)
        with tainted(kubectl, node, "theirs=x:NoSchedule"):
            code, said = check("waits")
        assert (code, "unable: did not start within 4 s: Unschedulable" in said) == (74, True)
        assert check("no-gpus") == (74, f"{node}: no-gpus: unable: the node offers no nvidia.com/gpu\n")
    assert kubectl.wait_until("get", "jobs", "-n", namespace, "-o", "jsonpath={.kind}", limit_s=30)
    assert kubectl.get("jobs", "-n", namespace)["items"] == []
