"""The cluster of a soak: its fake nodes, what they are and have on them, and the account of the controllers."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.health.soak_faults import POOL_LABEL, pool
from testbed import accounts
from testbed.bed import Bed
from testbed.ondemand import kwok

SPACE: Final = "soak-health"


def boot(node: str) -> str:
    """Boot id of a fake node."""
    return f"boot-{node}"


def shaped(index: int, node: dict[str, Any]) -> None:
    """A boot id and a pool for a fake node; some are cordoned by a person, some bear a taint of others."""
    meta, spec = node["metadata"], node["spec"]
    # The cluster itself copies the second of these from the first.
    meta["labels"] |= {POOL_LABEL: pool(index), "beta.kubernetes.io/os": "linux"}
    # With both addresses: KWOK takes away what it finds there where one is missing and the cluster has called the node lost for a moment.
    addresses = [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": meta["name"]}]
    node["status"] = {"nodeInfo": {"bootID": boot(meta["name"])}, "addresses": addresses}
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
def account(bed: Bed) -> Iterator[Path]:
    """A kubeconfig with the rights of the controller's manifests alone."""
    from rankfall.health.manifests.controller import CLUSTER_RULES, EVENT_RULES, OWN_RULES

    path = accounts.create(
        bed.control, bed.kubectl, "controller", namespace=SPACE, rules=OWN_RULES, cluster_rules=CLUSTER_RULES
    )
    group = "rbac.authorization.k8s.io"
    meta = {"name": SPACE, "namespace": "default"}
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": SPACE}
    bed.kubectl.apply([
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [dict(each) for each in EVENT_RULES]},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": SPACE}, "subjects": [subject],
        },
    ])  # fmt: skip
    try:
        yield path
    finally:
        bed.kubectl.run("delete", "namespace", SPACE, "--wait=false")
