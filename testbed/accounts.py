"""Restricted accounts: tests run as the product's own account, so that a missing right shows in a test and not at a user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import kubeconfig
from testbed.client import Kubectl
from testbed.control import ControlPlane

_LIFE = "24h"


def create(
    control: ControlPlane,
    kubectl: Kubectl,
    name: str,
    *,
    namespace: str,
    rules: Sequence[Mapping[str, Any]],
    cluster_rules: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A ServiceAccount with just these rights; the path of its kubeconfig.

    Args:
        control: whose server the kubeconfig names.
        kubectl: with the rights of the administrator.
        name: of the account, its roles and its kubeconfig.
        namespace: made when it is not there.
        rules: of a Role in that namespace.
        cluster_rules: of a ClusterRole.
    """
    whole = f"{namespace}-{name}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        *_role("", name, {"name": name, "namespace": namespace}, rules, subject),
    ]
    if cluster_rules:
        objects += _role("Cluster", whole, {"name": whole}, cluster_rules, subject)
    # In this order, so that the namespace is there for the rest.
    kubectl.apply(objects)
    token = kubectl("create", "token", name, "--namespace", namespace, "--duration", _LIFE).strip()
    path = control.layout.kubeconfig(whole)
    return kubeconfig.write(path, server=control.server, authority=control.authority.cert, user=name, token=token)


def _role(
    kind: str, name: str, meta: dict[str, str], rules: Sequence[Mapping[str, Any]], subject: dict[str, str]
) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": f"{kind}Role", "metadata": meta, "rules": [dict(rule) for rule in rules]},
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": f"{kind}Role", "name": name},
            "subjects": [subject],
        },
    ]
