"""The cluster as a place for cases: an account with the rights of one backend and no more, and the cases' program as a ConfigMap."""

from __future__ import annotations

from pathlib import Path

from conformance.drive import SCRIPT, Place
from conformance.program import PROGRAM
from testbed.client import Kubectl
from testbed.workloads import PYTHON_IMAGE, SCRIPT_FOLDER, script

NAME = "story"


def prepare(kubectl: Kubectl, *, namespace: str) -> None:
    """Put the program into a namespace, once for all cases there."""
    kubectl.apply([script(NAME, namespace=namespace, text=PROGRAM)])


def cluster(backend: str, folder: Path, *, kubeconfig: Path, namespace: str) -> Place:
    """A place on the bed.

    Args:
        backend: of the job file.
        folder: of this case on this backend, empty.
        kubeconfig: of the account.
        namespace: that :func:`prepare` was called for.
    """
    pods = {
        "image": PYTHON_IMAGE,
        "image_pull_policy": "Never",
        "namespace": namespace,
        "volumes": [{"name": NAME, "configMap": {"name": NAME}}],
        "volume_mounts": [{"name": NAME, "mountPath": SCRIPT_FOLDER}],
        "pod": {"spec": {"automountServiceAccountToken": False}},
    }
    fields = {"command": [SCRIPT], "cwd": SCRIPT_FOLDER, "kubernetes": pods}
    return Place(backend=backend, folder=folder, fields=fields, env={"KUBECONFIG": str(kubeconfig)})
