"""The product's own image and manifests on the bed: the controller's pod runs as nobody with a read-only root, leads, taints, and is taken back by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfall.nodes.manifests.cluster import cluster_objects
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.ondemand import product_image

PAGE = Path(__file__).resolve().parents[2] / "docs" / "node-health.md"


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    name = f"h{uuid.uuid4().hex[:6]}"
    kubectl.apply([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}])
    yield name
    kubectl("delete", "node", name, "--ignore-not-found")


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_health_s08_the_controller_runs_from_its_image_and_its_manifests_and_taints_with_its_own_account_only(
    bed: Bed, kubectl: Kubectl, node: str
) -> None:
    namespace = f"guard-{uuid.uuid4().hex[:6]}"
    image = product_image.give(bed)
    objects = cluster_objects(namespace=namespace, image=image, agent=False, admission=True)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kubectl.create_namespace(namespace)
    try:
        kubectl("apply", "--server-side", "--validate=strict", "-f", "-", text=text)
        done = kubectl.run(
            "rollout", "status", "deployment/rankfall-controller", "-n", namespace, "--timeout=150s", timeout_s=170
        )
        state = kubectl.run("get", "pods", "-n", namespace, "-o", "yaml").stdout
        assert done.returncode == 0, state
        bad = {
            "type": "KernelDeadlock",
            "status": "True",
            "reason": "DockerHung",
            "message": "task blocked",
            "lastTransitionTime": "2026-11-22T00:00:00Z",
        }
        patch = {"status": {"conditions": [bad]}}
        kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", json.dumps(patch))
        taint = "jsonpath={.spec.taints[?(@.key=='rankfall.dev/faulty')].effect}"
        tainted = kubectl.wait_until("get", "node", node, "-o", taint, limit_s=60)
        logs = kubectl.run(
            "logs", "-n", namespace, "-l", "app.kubernetes.io/name=rankfall-controller", "--prefix", "--tail=50"
        ).stdout
        assert tainted, logs
        assert node in logs
        done = subprocess.run(
            [sys.executable, "-m", "rankfall", "nodes", "reset", "--node", node],
            env=os.environ | {"KUBECONFIG": str(kubectl.kubeconfig)}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == f"{node}: cleared; taint rankfall.dev/faulty is removed\n"
    finally:
        kubectl.run("delete", "-f", "-", "--wait=false", "--ignore-not-found", text=text)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_health_what_the_dockerfile_builds_runs_controller_and_agents_by_digest(
    bed: Bed, kubectl: Kubectl, nodes: list[str]
) -> None:
    """deploy/Dockerfile by a real builder, the manifests as they are made for anybody; the agents' liveness probe answers."""
    namespace = f"guard-{uuid.uuid4().hex[:6]}"
    image = product_image.give(bed)
    assert re.fullmatch(r"rankfall\.test/rankfall@sha256:[0-9a-f]{64}", image)
    objects = cluster_objects(namespace=namespace, image=image, admission=True)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        kubectl("apply", "--server-side", "-f", "-", text=text)
        for each in ("deployment/rankfall-controller", "daemonset/rankfall-agent"):
            done = kubectl.run("rollout", "status", each, "-n", namespace, "--timeout=200s", timeout_s=220)
            assert done.returncode == 0, kubectl.run("get", "pods", "-n", namespace, "-o", "yaml").stdout
        pods = kubectl.get("pods", "-n", namespace)["items"]
        assert {container["image"] for pod in pods for container in pod["spec"]["containers"]} == {image}
        agents = [pod for pod in pods if pod["metadata"]["labels"]["app.kubernetes.io/name"] == "rankfall-agent"]
        assert {pod["spec"]["nodeName"] for pod in agents} >= set(nodes)
        for pod in agents:
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:8081/proxy/healthz"
            assert kubectl("get", "--raw", path) == "ok\n"
        reading = "jsonpath={.status.conditions[?(@.reason=='Reading')].type}"
        assert all(kubectl.wait_until("get", "node", each, "-o", reading, limit_s=60) for each in nodes)
    finally:
        kubectl.run("delete", "-f", "-", "--ignore-not-found", "--timeout=60s", text=text)


@pytest.mark.cluster
@pytest.mark.timeout(500)
def test_every_command_of_the_ten_minutes_works(bed: Bed, kubectl: Kubectl, nodes: list[str], tmp_path: Path) -> None:
    """The page's commands as they stand there, but for the image, which is the bed's."""
    section = PAGE.read_text().partition("\n## From nothing to a guarded cluster\n")[2].partition("\n## ")[0]
    block = section.partition("```sh\n")[2].partition("```")[0]
    image = product_image.give(bed)
    block = re.sub(r"registry\.example/rankfall@sha256:[0-9a-f]{64}", image, block)
    assert f" {nodes[0]} " in block
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(kubectl.program)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig), "PATH": path}
    said = {}
    try:
        for line in block.splitlines():
            done = subprocess.run(
                ["sh", "-c", f"{line} 2>&1"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=320, check=False
            )  # fmt: skip
            print(f"$ {line}\n{done.stdout}")
            assert done.returncode == 0, line
            said[" ".join(line.split()[:3])] = done.stdout
    finally:
        kubectl.run("delete", "-f", str(tmp_path / "guard.yaml"), "--ignore-not-found", "--timeout=60s")
    assert all(name in said["rankfall nodes list"] for name in nodes)
    assert "a drill" in said["rankfall nodes describe"]
    assert said["rankfall nodes reset"].startswith(f"{nodes[0]}: cleared")
