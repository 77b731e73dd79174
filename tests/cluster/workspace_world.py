"""A volume of a test's own on the bed, its claim, and pods that use it: what ``rankfall cp`` and code directories need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.storage import SHARED_CLASS
from testbed.workloads import sleeper

CLAIM = "team"


@contextmanager
def volume(
    bed: Bed, kubectl: Kubectl, namespace: str, *, name: str = CLAIM, mode: str = "ReadWriteMany"
) -> Iterator[Path]:
    """The folder of this machine behind a claim that is bound."""
    folder = bed.layout.folder / "volumes" / f"{namespace}-{name}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    spec: dict[str, Any] = {
        "storageClassName": SHARED_CLASS,
        "accessModes": [mode],
    }
    persistent = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            **spec,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**spec, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": f"{namespace}-{name}"},
    }
    kubectl.apply([persistent, claim])
    try:
        yield folder
    finally:
        kubectl.run("delete", "persistentvolume", f"{namespace}-{name}", "--wait=false", "--ignore-not-found")
        shutil.rmtree(folder, ignore_errors=True)


def user_of(namespace: str, *, name: str, node: str, claim: str = CLAIM) -> dict[str, Any]:
    """A pod that uses a claim on one node until it is deleted."""
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    return sleeper(name, namespace=namespace, nodeName=node, container=mount, volumes=[volume])
