"""The manifests on a real API server: they are taken strictly, the account may do what it must and nothing else, and the policy guards the rest of a Node."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError
from rankfall.kube.resources import NODES
from rankfall.model.node_health.records import ANNOTATION
from rankfall.nodes.manifests.cluster import cluster_objects
from rankfall.nodes.manifests.controller import NAME, SWITCHES
from support.helpers import wait_until
from testbed import kubeconfig
from testbed.bed import Bed
from testbed.client import Kubectl

IMAGE = "registry.example/rankfall@sha256:" + "a" * 64


@pytest.fixture
def installed(bed: Bed, kubectl: Kubectl) -> Iterator[tuple[str, Kubectl]]:
    """The objects without their pods; the namespace, and kubectl as the controller's account."""
    namespace = f"guard-{uuid.uuid4().hex[:6]}"
    objects = cluster_objects(namespace=namespace, image=IMAGE, admission=True)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kubectl("apply", "-f", "-", text=json.dumps(objects[0]))
    # Strictly: an unknown field anywhere would be refused.
    kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", text=some(objects, pods=True))
    kubectl("apply", "--server-side", "--validate=strict", "-f", "-", text=some(objects[1:], pods=False))
    token = kubectl("create", "token", NAME, "-n", namespace).strip()
    path = bed.layout.kubeconfig(f"{namespace}-{NAME}")
    kubeconfig.write(path, server=bed.control.server, authority=bed.control.authority.cert, user=NAME, token=token)
    mine = Kubectl(kubectl.program, path)
    # New rights take a moment to be in force.
    assert mine.wait_until("auth", "can-i", "patch", "nodes", "--subresource=status", limit_s=30)
    yield namespace, mine
    kubectl.run("delete", "-f", "-", "--wait=false", "--ignore-not-found", text=text)


def some(objects: list[dict[str, Any]], *, pods: bool) -> str:
    """Those that start pods, or the others."""
    items = [each for each in objects if (each["kind"] in {"Deployment", "DaemonSet"}) == pods]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    name = f"h{uuid.uuid4().hex[:6]}"
    taint = {"key": "maintenance", "value": "x", "effect": "NoSchedule"}
    meta = {"name": name, "labels": {"a": "b"}, "annotations": {"other": "1"}}
    kubectl.apply([{"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": [taint]}}])
    yield name
    kubectl("delete", "node", name, "--ignore-not-found")


OURS = {"key": "rankfall.dev/faulty", "value": "true", "effect": "NoSchedule"}
# What the controller writes: record and taint in one request.
ALLOWED: list[tuple[str, Any, str]] = [
    ("json", [{"op": "add", "path": "/spec/taints/-", "value": OURS}, {"op": "add", "path": f"/metadata/annotations/{ANNOTATION.replace('/', '~1')}", "value": "{}"}], ""),
    ("strategic", {"status": {"conditions": [{"type": "RankfallHealthy", "status": "False", "reason": "Quarantined", "message": "m"}]}}, "status"),
]  # fmt: skip
REFUSED: list[tuple[str, Any, str, str]] = [
    ("strategic", {"spec": {"unschedulable": True}}, "", "in a node's spec"),
    ("json", [{"op": "remove", "path": "/spec/taints/0"}], "", "only taints with"),
    ("json", [{"op": "add", "path": "/spec/taints/-", "value": {"key": "mine", "effect": "NoSchedule"}}], "", "only taints with"),
    ("json", [{"op": "add", "path": "/spec/taints/-", "value": {**OURS, "effect": "NoExecute"}}], "", "must have the effect NoSchedule"),
    ("merge", {"metadata": {"annotations": {"another": "x"}}}, "", "only the annotation"),
    ("merge", {"metadata": {"annotations": {"other": None}}}, "", "only the annotation"),
    ("merge", {"metadata": {"annotations": {"other": "2"}}}, "", "only the annotation"),
    ("merge", {"metadata": {"labels": {"a": "c"}}}, "", "no labels"),
    ("merge", {"metadata": {"finalizers": ["rankfall.dev/x"]}}, "", "no labels"),
    ("strategic", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "status", "only the condition"),
    ("merge", {"status": {"capacity": {"nvidia.com/gpu": "9"}}}, "status", "in a node's status"),
]  # fmt: skip


def patched(kubectl: Kubectl, node: str, kind: Any, body: Any, sub: str) -> tuple[int, str]:
    """By the product's own client: kubectl would first read, which this account may not of a status."""

    async def send() -> tuple[int, str]:
        async with Kube(load_access(kubeconfig=str(kubectl.kubeconfig))) as kube:
            try:
                await kube.patch(NODES, node, body, kind=kind, subresource=sub or None)
            except ApiError as error:
                return error.status, error.message
        return 0, ""

    return asyncio.run(asyncio.wait_for(send(), 30))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_health_s08_the_controllers_account_writes_what_it_must_and_the_policy_refuses_all_else(
    installed: tuple[str, Kubectl], node: str
) -> None:
    _, mine = installed
    for kind, body, sub in ALLOWED:
        code, said = patched(mine, node, kind, body, sub)
        assert code == 0, said
    # A new policy takes a moment to be in force. Until then the server takes the change: kept, the next one would change nothing and pass for ever.
    kind, body, _, word = REFUSED[0]
    ask = ("patch", "node", node, f"--type={kind}", "-p", json.dumps(body), "--dry-run=server")
    wait_until(lambda: word in mine.run(*ask).stderr, timeout=60, what="the policy")
    for kind, body, sub, word in REFUSED:
        code, said = patched(mine, node, kind, body, sub)
        assert code != 0, body
        assert word in said, body
    for kind, body, sub in ALLOWED[1:]:
        assert patched(
            mine, node, kind, {"status": {"conditions": [{**body["status"]["conditions"][0], "status": "True"}]}}, sub
        ) == (0, "")


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_health_s08_every_other_verb_of_the_controllers_account_is_denied(
    installed: tuple[str, Kubectl], node: str
) -> None:
    namespace, mine = installed
    for words, allowed in (
        (("get", "nodes"), True),
        (("get", "configmap", SWITCHES, "-n", namespace), False),
        (("get", "secrets", "-n", namespace), False),
        (("get", "pods", "-A"), False),
        (("delete", "node", node), False),
        (("create", "namespace", f"{namespace}-x"), False),
        (("create", "configmap", "any", "-n", "default"), False),
        (("create", "job", "any", "--image=x", "-n", namespace), False),
        (("create", "token", NAME, "-n", namespace), False),
        (("delete", "lease", "another", "-n", namespace), False),
        (("get", "events", "-A"), False),
    ):
        done = mine.run(*words)
        assert (done.returncode == 0) == allowed, words
        assert allowed or "forbidden" in done.stderr.lower(), words
