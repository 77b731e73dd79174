"""Which rights requests need, as the API server's authoriser sees them: from a Role's rules, and from a log of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Triple = tuple[str, str, str]

# Of no Role in a namespace: Nodes, and what kubelets say of them.
OF_NODES = re.compile(
    r"/api/v1/(nodes(/.*)?|namespaces/default/events)|/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/.*"
)
_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/[^/]+/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>.+))?)?$"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def granted(rules: Iterable[Mapping[str, Any]]) -> set[Triple]:
    """Each right by itself: group, resource, verb."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(method: str, path: str, *, watching: bool) -> Triple | None:
    """What one request needs; None: nothing in a namespace, as discovery.

    Args:
        method: of HTTP.
        path: without its query.
        watching: whether the query says ``watch``.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    resource = "/".join(part for part in (found["plural"], found["sub"]) if part)
    reading = "watch" if watching else "get" if found["name"] else "list"
    return found["group"] or "", resource, _VERBS.get(method, reading)
