"""``rankfall nodes`` on a real API server, by an account that may get, list and patch nodes and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.nodes import commands
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.policy import Policy
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

LEAST = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}]
OURS = {"key": "rankfall.dev/faulty", "value": "true", "effect": "NoSchedule"}
FOREIGN = {"key": "maintenance", "value": "x", "effect": "NoExecute"}
Nodes = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def three(kubectl: Kubectl) -> Iterator[list[str]]:
    """Three Node objects without machines, with a taint of somebody else and a cordon."""
    mark = uuid.uuid4().hex[:6]
    names = [f"h{mark}-{number}" for number in range(3)]
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"test": mark, "number": str(number)}},
            "spec": {"taints": [FOREIGN], "unschedulable": True},
        }
        for number, name in enumerate(names)
    )
    yield names
    kubectl("delete", "nodes", *names, "--ignore-not-found")


@pytest.fixture
def nodes(bed: Bed, kubectl: Kubectl, namespace: str) -> Nodes:
    path = accounts.create(bed.control, kubectl, "nodes", namespace=namespace, rules=[], cluster_rules=LEAST)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rankfall", "nodes", *words],
            env=os.environ | {"KUBECONFIG": str(path)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return call


def keys(kubectl: Kubectl, name: str) -> set[str]:
    """Of its taints, without those of Kubernetes itself: nobody answers for these nodes."""
    taints = kubectl.get("node", name)["spec"].get("taints", [])
    return {each["key"] for each in taints if not each["key"].startswith("node.kubernetes.io/")}


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_health_s05_s06_s20_reset_on_a_real_server_with_the_least_rights(
    kubectl: Kubectl, three: list[str], nodes: Nodes, tmp_path: Path
) -> None:
    mark = three[0].partition("-")[0].removeprefix("h")
    for name in three:
        done = nodes("taint", name, "--reason", "test")
        assert done.stdout == f"{name}: tainted rankfall.dev/faulty=true:NoSchedule\n"
        assert "its condition was not written" in done.stderr
    assert all(keys(kubectl, name) == {"maintenance", "rankfall.dev/faulty"} for name in three)
    before = kubectl.get("nodes", "-l", f"test={mark}")
    dry = nodes("reset", "-l", f"test={mark}", "--dry-run")
    assert dry.returncode == 0
    assert [spec(item) for item in kubectl.get("nodes", "-l", f"test={mark}")["items"]] == [
        spec(item) for item in before["items"]
    ]
    assert nodes("reset", "--node", three[0]).stdout == f"{three[0]}: cleared; taint rankfall.dev/faulty is removed\n"
    assert [keys(kubectl, name) == {"maintenance"} for name in three] == [True, False, False]
    done = nodes("reset", "-l", f"test={mark}", "-y")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert all(keys(kubectl, name) == {"maintenance"} for name in three)
    assert all(kubectl.get("node", name)["spec"]["unschedulable"] for name in three)
    shown = json.loads(nodes("list", "-l", f"test={mark}", "-o", "json").stdout)["nodes"]
    assert [(each["node"], each["state"], each["tainted"], each["cordoned"]) for each in shown] == [
        (name, "healthy", False, True) for name in three
    ]
    done = nodes("reset", "-l", f"test={mark}", "-y")
    assert (done.returncode, done.stdout) == (0, "")
    # The seed's key, by configuration.
    kubectl("taint", "node", three[1], "trainy.konduktor.ai/faulty=true:NoSchedule")
    config = tmp_path / "health.toml"
    config.write_text('[policy]\nkey = "trainy.konduktor.ai/faulty"\n')
    assert nodes("reset", "-y", "-l", f"test={mark}").stdout == ""
    assert nodes("reset", "-y", "-l", f"test={mark}", "--config", str(config)).stdout.startswith(f"{three[1]}: cleared")


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_health_s18_many_hands_on_one_node_lose_no_taint(kubectl: Kubectl, three: list[str], nodes: Nodes) -> None:
    """Others taint the same node all the time while we taint and clear it; each of their taints is there in the end."""
    name, done = three[0], threading.Event()
    theirs: list[str] = []

    def others() -> None:
        number = 0
        while not done.is_set():
            # Not kubectl taint: it sends the whole list that it read, and so brings back what was taken away meanwhile.
            taint = {"key": f"other-{number}", "value": "x", "effect": "NoSchedule"}
            operation = {"op": "add", "path": "/spec/taints/-", "value": taint}
            kubectl("patch", "node", name, "--type=json", "-p", json.dumps([operation]))
            theirs.append(f"other-{number}")
            number += 1

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for _ in range(4):
            assert nodes("taint", name, "--reason", "test").returncode == 0
            assert OURS["key"] in keys(kubectl, name)
            assert nodes("clear", name).returncode == 0
    finally:
        done.set()
        thread.join()
    assert len(theirs) > 4
    assert keys(kubectl, name) == {"maintenance", *theirs}


@pytest.mark.cluster
@pytest.mark.timeout(180)
def test_health_s18_all_taints_are_taken_away_between_our_look_and_our_write(
    bed: Bed, kubectl: Kubectl, namespace: str, three: list[str], nodes: Nodes
) -> None:
    """The server refuses an operation that finds its place no more (422) before it compares versions (409)."""
    name = three[0]
    assert nodes("taint", name, "--reason", "test").returncode == 0
    path = accounts.create(bed.control, kubectl, "nodes", namespace=namespace, rules=[], cluster_rules=LEAST)

    async def story() -> list[commands.Done]:
        policy, rules = Policy(), packaged()
        async with Kube(load_access(kubeconfig=str(path))) as kube:
            seen = await commands.find_nodes(kube, names=[name], policy=policy)
            kubectl("patch", "node", name, "--type=merge", "-p", json.dumps({"spec": {"taints": None}}))
            return await commands.clear(kube, seen, cause=None, rules=rules, policy=policy, dry_run=False)

    (done,) = asyncio.run(asyncio.wait_for(story(), 60))
    assert (done.changed, done.error) == (True, None)
    assert OURS["key"] not in keys(kubectl, name)


def spec(item: dict[str, Any]) -> Any:
    """What a person or we would change; Kubernetes itself adds its own taints to nodes that say nothing."""
    taints = [each for each in item["spec"].get("taints", []) if not each["key"].startswith("node.kubernetes.io/")]
    return item["metadata"]["name"], taints, item["metadata"].get("annotations")
