"""Volumes: one that pods on all nodes share, and one that is bound to one node."""

from __future__ import annotations

from typing import Any

from testbed.client import Object
from testbed.layout import Layout

SHARED_CLASS, LOCAL_CLASS = "shared", "local"


def objects(layout: Layout, *, node: str) -> list[Object]:
    """Storage classes and one volume of each: ``shared-1`` (many writers) and ``local-1`` (one node's).

    Args:
        layout: of the bed; the nodes are one machine, so a folder of it is seen by all of them.
        node: that the local volume is bound to.
    """
    shared, local = layout.folder / "volumes" / "shared", layout.folder / "volumes" / "local"
    for folder in (shared, local):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    selector = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    bound = {"required": {"nodeSelectorTerms": [{"matchExpressions": [selector]}]}}
    return [
        _storage_class(SHARED_CLASS),
        _storage_class(LOCAL_CLASS),
        _volume("shared-1", SHARED_CLASS, "ReadWriteMany", {"hostPath": {"path": str(shared)}}),
        _volume("local-1", LOCAL_CLASS, "ReadWriteOnce", {"local": {"path": str(local)}, "nodeAffinity": bound}),
    ]


def _storage_class(name: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer" if name == LOCAL_CLASS else "Immediate",
    }


def _volume(name: str, storage_class: str, mode: str, source: dict[str, Any]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": storage_class,
            "capacity": {"storage": "10Gi"},
            "accessModes": [mode],
            "persistentVolumeReclaimPolicy": "Retain",
            **source,
        },
    }
