"""The cluster of a soak: its fake nodes, what they are and have on them, and the account of the controllers."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.health.soak_faults import POOL_LABEL, pool
from testbed import accounts, process
from testbed.bed import Bed
from testbed.errors import StartError
from testbed.ondemand import kwok

SPACE: Final = "soak-health"


def boot(node: str) -> str:
    """Boot id of a fake node."""
    return f"boot-{node}"


def booted(index: int, node: dict[str, Any]) -> None:
    """A boot id of its own for a fake node."""
    del index
    meta = node["metadata"]
    # The cluster itself copies it from the one without "beta".
    meta["labels"]["beta.kubernetes.io/os"] = "linux"
    # With both addresses: KWOK takes away what it finds there where one is missing and the cluster has called the node lost for a moment.
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": meta["name"]}]
    node["status"] = {"nodeInfo": {"bootID": boot(meta["name"])}, "addresses": addresses}


def shaped(index: int, node: dict[str, Any]) -> None:
    """A boot id and a pool for a fake node; some are cordoned by a person, some bear a taint of others."""
    booted(index, node)
    node["metadata"]["labels"][POOL_LABEL] = pool(index)
    spec = node["spec"]
    if index % 7 == 0:
        spec["taints"].append({"key": "theirs", "value": "1", "effect": "NoSchedule"})
    if index % 11 == 0:
        spec["unschedulable"] = True


def initialised(nodes: dict[str, Any]) -> bool:
    """Whether KWOK made all of them ready and left their boot ids as they were."""
    return all(
        node["status"].get("nodeInfo", {}).get("bootID") == boot(name)
        and any((each["type"], each["status"]) == ("Ready", "True") for each in node["status"].get("conditions", ()))
        for name, node in nodes.items()
    )


def await_initialised(bed: Bed, names: Sequence[str], *, limit_s: float) -> None:
    """Wait until the fake nodes are so.

    Raises:
        StartError: they do not become ready.
    """
    if not process.poll(lambda: initialised(nodes_of(bed, names)), limit_s):
        raise StartError("the fake nodes do not become ready", hint="python -m testbed logs kwok tells why")


def nodes_of(bed: Bed, names: Sequence[str]) -> dict[str, Any]:
    """The fake Nodes as they are."""
    known = set(names)
    items = bed.kubectl.get("nodes", "-l", kwok.LABEL)["items"]
    return {each["metadata"]["name"]: each for each in items if each["metadata"]["name"] in known}


def events_of(bed: Bed, names: Sequence[str], *, since: dt.datetime) -> list[Any]:
    """Events that controllers wrote on these nodes since then."""
    known = set(names)
    return [
        each
        for each in bed.kubectl.get("events", "-n", "default")["items"]
        if each.get("source", {}).get("component") == "rankfall-controller"
        and each["involvedObject"]["name"] in known
        and dt.datetime.fromisoformat(each["firstTimestamp"]) >= since
    ]


@contextlib.contextmanager
def account(bed: Bed, space: str = SPACE) -> Iterator[Path]:
    """A kubeconfig with the rights of the controller's manifests alone.

    Args:
        bed: that is up.
        space: namespace of the controller's own objects; gone afterwards.
    """
    from rankfall.nodes.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES

    # What an earlier one left would be gone in the middle of this one.
    bed.kubectl.run("delete", "namespace", space, "--ignore-not-found", "--timeout=60s")
    path = accounts.create(
        bed.control, bed.kubectl, "controller", namespace=space, rules=OWN_RULES, cluster_rules=CLUSTER_RULES
    )
    group = "rbac.authorization.k8s.io"
    meta = {"name": space, "namespace": "default"}
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": space}
    bed.kubectl.apply([
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in EVENT_RULES]},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": space}, "subjects": [subject],
        },
    ])  # fmt: skip
    try:
        yield path
    finally:
        bed.kubectl.run("delete", "namespace", space, "--wait=false")
