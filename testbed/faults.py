"""What can befall a cluster, each as a context that undoes it: parts and nodes that die, cables, taints, small logs, killed containers.

Faults between a client and the API server are the proxy's (``testbed.proxy``).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from testbed import cgroups, network, process
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.errors import TestbedError

_READY_S = 90


@contextmanager
def part_down(bed: Bed, name: str, *, how: signal.Signals = signal.SIGKILL) -> Iterator[None]:
    """A part of the control plane is away; it is back, and answers, afterwards.

    Args:
        bed: whose part it is.
        name: ``etcd``, ``kube-apiserver``, ``kube-controller-manager``, ``kube-scheduler``, ``jobset`` or ``trainer``.
        how: SIGKILL, or SIGTERM for a clean shutdown.
    """
    starts: dict[str, Callable[[], None]] = {
        "etcd": bed.control.start_etcd,
        "kube-apiserver": bed.control.start_apiserver,
        "kube-controller-manager": bed.control.start_controller_manager,
        "kube-scheduler": bed.control.start_scheduler,
        "jobset": bed.controllers.start_jobset,
        "trainer": bed.controllers.start_trainer,
    }
    if name not in starts:
        raise TestbedError(f"{name!r} is no part of the control plane", hint=f"parts: {', '.join(starts)}")
    process.stop(bed.layout, name, how=how)
    try:
        yield
    finally:
        starts[name]()
        if name == "etcd":
            process.poll(bed.control.healthy, _READY_S)


@contextmanager
def kubelet_down(bed: Bed, index: int, *, how: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Node ``index``'s kubelet is away; its pods live on and nobody reports them."""
    node = bed.node(index)
    node.stop_kubelet(how=how)
    try:
        yield
    finally:
        node.start_kubelet()
        await_ready(bed, index)


@contextmanager
def kubelet_config(bed: Bed, index: int, **fields: object) -> Iterator[None]:
    """Node ``index``'s kubelet runs with other fields of its configuration, as ``containerLogMaxSize="100Ki"``."""
    node = bed.node(index)
    node.stop_kubelet()
    try:
        node.start_kubelet(**fields)
        await_ready(bed, index)
        yield
    finally:
        node.stop_kubelet()
        node.start_kubelet()
        await_ready(bed, index)


@contextmanager
def node_down(bed: Bed, index: int) -> Iterator[None]:
    """A power cut: the node and all its pods are gone at once. Afterwards it comes back as a new machine of the same name."""
    node = bed.node(index)
    node.kill()
    try:
        yield
    finally:
        node.remove_state()
        node.start()
        await_ready(bed, index)


@contextmanager
def cable_out(bed: Bed, index: int) -> Iterator[None]:
    """Nobody reaches node ``index``, and it reaches nobody; everything on it lives on."""
    network.cut(bed.layout, index)
    try:
        yield
    finally:
        network.cut(bed.layout, index, off=False)
        await_ready(bed, index)


@contextmanager
def extra_node(bed: Bed, index: int) -> Iterator[str]:
    """One more real node; its name. Its Node object is removed with it."""
    node = bed.node(index)
    node.start()
    try:
        await_ready(bed, index)
        yield node.name
    finally:
        node.kill()
        node.remove_state()
        bed.kubectl.run("delete", "node", node.name)


@contextmanager
def tainted(
    kubectl: Kubectl, node: str, *, key: str, value: str = "true", effect: str = "NoSchedule"
) -> Iterator[None]:
    """A node has one more taint."""
    kubectl("taint", "node", node, f"{key}={value}:{effect}")
    try:
        yield
    finally:
        kubectl.run("taint", "node", node, f"{key}:{effect}-")


def evict(kubectl: Kubectl, namespace: str, pod: str) -> None:
    """Ask for an eviction through the API, as a drain does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", text=json.dumps(body))


def take_away(kubectl: Kubectl, namespace: str, pod: str, *, condition: str, reason: str, message: str) -> None:
    """Mark a pod in its status and delete it, as controllers do that take pods: Kueue, the device taint manager."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mark = {"type": condition, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
    patch = json.dumps({"status": {"conditions": [mark]}})
    kubectl("patch", "pod", "-n", namespace, pod, "--subresource=status", "--patch", patch)
    kubectl("delete", "pod", "-n", namespace, pod, "--wait=false")


def kill_container(bed: Bed, namespace: str, pod: str, *, container: str | None = None) -> list[int]:
    """SIGKILL for every process of a container at once, its first one last; the ids that were killed.

    So a kubelet ends a container that ran out of memory under cgroup version 2 (``memory.oom.group``); under version 1, as here, the kernel
    kills one process. This emulates the former.
    """
    pids = sorted(processes_of(bed, namespace, pod, container=container), reverse=True)
    for pid in pids:
        # Stopped first, so that none sees another one's death and does something about it.
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def processes_of(bed: Bed, namespace: str, pod: str, *, container: str | None = None) -> set[int]:
    """Ids, as this machine numbers them, of all processes of a container; of the pod's first one where none is named."""
    status = bed.kubectl.get("pod", "-n", namespace, pod)["status"]
    rows = {row["name"]: row for row in status.get("containerStatuses", ())}
    row = rows[container] if container else next(iter(rows.values()))
    identity = str(row["containerID"]).rpartition("/")[2]
    groups = [path for top in cgroups.hierarchies() for path in _groups(top, bed.layout.name, identity)]
    return {pid for group in groups for pid in cgroups.processes(group)}


def await_ready(bed: Bed, index: int) -> None:
    """Wait until a node is ready and the scheduler may use it."""
    name = bed.layout.node_name(index)

    def usable() -> bool:
        found = bed.kubectl.run("get", "node", name, "-o", "json")
        if found.returncode:
            return False  # a new kubelet registers a moment after it answers
        node = json.loads(found.stdout)
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
        taints = node["spec"].get("taints", ())
        return ready and not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)

    if not process.poll(usable, _READY_S):
        raise TestbedError(
            f"node {name} does not get ready, or is still tainted", hint="kubectl describe node tells why"
        )


def _groups(top: Path, prefix: str, identity: str) -> list[Path]:
    return [path for root in top.glob(f"{prefix}-*") for path in root.rglob(identity) if path.is_dir()]
