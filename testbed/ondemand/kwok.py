"""A fleet of fake nodes and pods by KWOK: a thousand pods whose logs and exec the API server serves as it does those of real ones.

KWOK reads logs with the kubelet's own reader, so tail, time stamps, previous logs and a follow that stays open at the end of the file are the
real thing. What it does not do: a container's state does not follow its log, so ends and restarts are better proved on the real nodes. What
is executed "in" a fake pod runs on this machine, as the user of the bed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from testbed import builds, limits, process
from testbed.answers import answers
from testbed.bed import Bed
from testbed.client import Object, load
from testbed.errors import TestbedError
from testbed.ondemand.fake import Fleet

LABEL = "rankfall.test/fleet"
# Put both into a pod's spec to have it on a fake node; pods without them never get there.
SELECTOR = {LABEL: "true"}
TOLERATION = {"key": LABEL, "operator": "Exists", "effect": "NoSchedule"}

_PORT = 10247
_READY_S, _RUNNING_S = 60.0, 300.0
# KWOK renews after a quarter of it; the bed's controllers call a node lost after 20 s.
_LEASE_S = 16
_WORKERS = 8
_BATCH = 200
# Pod running, pod deleted. Not the one that ends a Job's pods at once.
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)

Variables = Callable[[int], Mapping[str, str]]
Change = Callable[[int, Object], None]


def nothing(index: int) -> Mapping[str, str]:
    """No variables."""
    del index
    return {}


def as_it_is(index: int, node: Object) -> None:
    """No change."""
    del index, node


@contextmanager
def fleet(
    bed: Bed,
    *,
    nodes: int = 4,
    pods: int = 1000,
    variables: Variables = nothing,
    labels: Variables = nothing,
    change: Change = as_it_is,
    lease_s: int = _LEASE_S,
) -> Iterator[Fleet]:
    """Fake nodes ``fake-I`` and running pods ``fleet-I``, each with a log file that a test writes to.

    Other pods may be put on the fake nodes with ``SELECTOR`` and ``TOLERATION``, by a Job for instance; they all show the log ``log(None)``.

    Args:
        bed: that is up.
        nodes: how many.
        pods: how many, spread evenly.
        variables: environment that ``exec`` in pod I has, beside ``POD_NAME``.
        labels: of pod I.
        change: changes Node I before it is made; its boot id and labels, for instance.
        lease_s: of the nodes' leases, which are renewed after a quarter of it; the bed's controllers call a node lost after 20 s.

    Raises:
        TestbedError: a fleet runs already, or its pods did not become ready.
    """
    if process.find(bed.layout, "kwok"):
        raise TestbedError("this bed has a fleet already", hint="one at a time: KWOK manages all fake nodes")
    found = Fleet(
        namespace=f"fleet-{uuid.uuid4().hex[:8]}",
        pods=tuple(f"fleet-{index}" for index in range(pods)),
        nodes=tuple(f"fake-{index}" for index in range(nodes)),
        folder=Path(tempfile.mkdtemp(prefix="kwok-", dir=bed.layout.folder)),
    )
    try:
        bed.kubectl.create_namespace(found.namespace)
        limits.raise_follows(bed.layout)
        for pod in (*found.pods, None):
            found.log(pod).touch()
        _start(bed, found, variables, lease_s)
        made = [_node(name) for name in found.nodes]
        for index, node in enumerate(made):
            change(index, node)
        _create(bed, made)
        _create(bed, [_pod(found, index, labels(index)) for index in range(pods)])
        _await(bed, found)
        yield found
    finally:
        _remove(bed, found)


def _start(bed: Bed, found: Fleet, variables: Variables, lease_s: int) -> None:
    binary = builds.ensure(["kwok"], say=bed.say)["kwok"]
    address = str(bed.layout.control_address)
    serving = bed.control.authority.issue("kwok-serving", user="kwok", hosts=(address,))
    login = bed.control.kubeconfig("kwok", user="testbed:kwok", groups=("system:masters",))
    config = found.folder / "kwok.yaml"
    config.write_text(_config(found, pod_network(bed), variables, lease_s))
    daemon = process.start(
        bed.layout,
        "kwok",
        [
            str(binary),
            f"--kubeconfig={login}",
            f"--config={config}",
            f"--node-ip={address}",
            f"--node-port={_PORT}",
            f"--server-address={address}:{_PORT}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
        ],
        namespace=bed.layout.control_namespace,
    )
    process.await_ready(daemon, lambda: answers(address, _PORT, "/healthz"), limit_s=_READY_S)


def pod_network(bed: Bed) -> IPv4Network:
    """Where the addresses of fake pods come from; nothing answers there."""
    return IPv4Network((int(bed.layout.network.network_address) + 64 * 256, 18))


def _config(found: Fleet, network: IPv4Network, variables: Variables, lease_s: int) -> str:
    options = {
        # Everything is in this file, so the cluster needs no definitions of KWOK's own.
        "enableCRDs": [],
        "cidr": str(network),
        "manageNodesWithLabelSelector": f"{LABEL}=true",
        "enableDebuggingHandlers": True,
        "nodeLeaseDurationSeconds": lease_s,
        "nodeLeaseParallelism": _WORKERS,
        "nodePlayStageParallelism": _WORKERS,
        "podPlayStageParallelism": _WORKERS,
        "podsOnNodeSyncParallelism": _WORKERS,
        "enablePodsOnNodeSyncStreamWatch": True,
    }
    objects: list[Object] = [
        {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options},
        *load(*(builds.files("kwok") / "kustomize/stage" / path for path in _STAGES)),
    ]
    for index, pod in enumerate(found.pods):
        meta = {"name": pod, "namespace": found.namespace}
        log = {"logsFile": str(found.log(pod)), "previousLogsFile": str(found.previous(pod)), "follow": True}
        envs = [{"name": key, "value": value} for key, value in {"POD_NAME": pod, **variables(index)}.items()]
        objects += [
            _kwok("Logs", meta, {"logs": [log]}),
            _kwok("Exec", meta, {"execs": [{"local": {"envs": envs}}]}),
        ]
    objects += [
        _kwok("ClusterLogs", {"name": "others"}, {"logs": [{"logsFile": str(found.log()), "follow": True}]}),
        _kwok("ClusterExec", {"name": "others"}, {"execs": [{"local": {}}]}),
    ]
    # JSON is YAML, and a thousand objects are written in a moment instead of seconds.
    return "\n---\n".join(json.dumps(item) for item in objects)


def _kwok(kind: str, meta: Mapping[str, str], spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": dict(meta), "spec": dict(spec)}


def _node(name: str) -> Object:
    taint = {"key": LABEL, "value": "true", "effect": "NoSchedule"}
    labels = SELECTOR | {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint]},
    }


def _pod(found: Fleet, index: int, labels: Mapping[str, str]) -> Object:
    meta = {"name": found.pods[index], "namespace": found.namespace, "labels": SELECTOR | dict(labels)}
    spec = {
        # Named here, so that the scheduler need not look at a thousand pods one by one.
        "nodeName": found.nodes[index % len(found.nodes)],
        "tolerations": [TOLERATION],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "rankfall.test/fake:1"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _create(bed: Bed, objects: Sequence[Object]) -> None:
    for start in range(0, len(objects), _BATCH):
        batch = {"apiVersion": "v1", "kind": "List", "items": objects[start : start + _BATCH]}
        bed.kubectl("create", "--validate=false", "-f", "-", text=json.dumps(batch))


def _await(bed: Bed, found: Fleet) -> None:
    def running() -> bool:
        words = ("get", "pods", "-n", found.namespace, "--field-selector=status.phase=Running", "-o", "name")
        return len(bed.kubectl(*words).split()) >= len(found.pods)

    if not process.poll(running, _RUNNING_S):
        raise TestbedError("the fleet's pods do not become ready", hint="python -m testbed logs kwok tells why")


def _remove(bed: Bed, found: Fleet) -> None:
    for words in (
        # One request for all, and no grace: nobody is there who could end them.
        ("delete", "--raw", f"/api/v1/namespaces/{found.namespace}/pods?gracePeriodSeconds=0"),
        ("delete", "namespace", found.namespace, "--ignore-not-found", "--wait=false"),
        ("delete", "nodes", "-l", f"{LABEL}=true", "--ignore-not-found"),
    ):
        bed.kubectl.run(*words, timeout_s=_RUNNING_S)
    process.stop(bed.layout, "kwok")
    limits.restore(bed.layout)
    # After KWOK, which would make them again. Nothing keeps a lease, so there is nothing to wait for: of a thousand that alone takes minutes.
    leases = ("delete", "leases", "-n", "kube-node-lease", "--ignore-not-found", "--wait=false", *found.nodes)
    bed.kubectl.run(*leases, timeout_s=_RUNNING_S)
    shutil.rmtree(found.folder, ignore_errors=True)
