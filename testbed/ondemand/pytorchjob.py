"""PyTorchJobs by the real Kubeflow training operator (its version 1): its definition, its webhook, its controller as a process.

Of its kinds of job PyTorchJob alone is there; the others need nothing that this one does not show.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from testbed import builds, process, workloads
from testbed.answers import answers
from testbed.bed import Bed
from testbed.client import Object, load
from testbed.controllers import TRAINER_NAMESPACE, hand_certificate, service_at
from testbed.errors import TestbedError

# The operator sets a container's variables, and looks for its port, under this name only.
CONTAINER = "pytorch"
_SERVICE, _SECRET = "training-operator", "training-operator-webhook-cert"
_HOOKS, _HOOK = "validator.training-operator.kubeflow.org", "validator.pytorchjob.training-operator.kubeflow.org"
_PORT, _HEALTH, _METRICS = 9445, 8083, 8084
_READY_S = 90.0
_REMOVED_S = 60.0
# The operator gives each worker a first container that waits for the master's name. Its own image is on a registry.
_INIT_CONTAINER = """
- name: init-pytorch
  image: {image}
  imagePullPolicy: Never
  command:
  - python3
  - -c
  - |
    import socket, time
    while True:
        try:
            socket.gethostbyname("{{{{.MasterAddr}}}}")
            break
        except OSError:
            time.sleep(0.2)
"""


@contextmanager
def run(bed: Bed) -> Iterator[None]:
    """The operator is there, and its webhook answers. Afterwards all PyTorchJobs are gone, with their definition.

    Raises:
        StartError: the operator did not become ready.
        TestbedError: one runs already.
    """
    if process.find(bed.layout, "training-operator"):
        raise TestbedError("this bed has a training operator already", hint="use it, or end it first")
    binary = builds.ensure(["training-operator"], say=bed.say)["training-operator"]
    definition, others = _objects(bed, builds.files("training-operator") / "manifests/base")
    try:
        bed.kubectl.define(definition)
        bed.kubectl.apply(others)
        _start(bed, binary)
        yield
    finally:
        # The webhook first, which would refuse what the rest does; then, with the definition, all jobs and what they own.
        text = yaml.safe_dump_all([*reversed(others), *definition])
        bed.kubectl.run("delete", "--ignore-not-found", f"--timeout={_REMOVED_S:.0f}s", "-f", "-", text=text)
        process.stop(bed.layout, "training-operator")
        # The next one must not start with this one's certificate.
        shutil.rmtree(_own_tmp(bed), ignore_errors=True)


def job(name: str, *, namespace: str, workers: int, nproc: int, pod: Object) -> Object:
    """A PyTorchJob of a master and so many workers.

    Args:
        name: of the job; pods are called ``NAME-master-0`` and ``NAME-worker-I``.
        namespace: of it.
        workers: beside the master.
        nproc: processes a pod; left out it would be the number of the machine's processors.
        pod: spec of :func:`testbed.workloads.torch_pod` with the container's name ``CONTAINER``.
    """

    def replicas(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}

    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "nprocPerNode": str(nproc),
            "pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(workers)},
        },
    }


def _start(bed: Bed, binary: Path) -> None:
    layout = bed.layout
    login = bed.control.kubeconfig("training-operator", user="testbed:training-operator", groups=("system:masters",))
    template = layout.folder / "init-pytorch.yaml"
    template.write_text(_INIT_CONTAINER.format(image=workloads.PYTHON_IMAGE))
    daemon = process.start(
        layout,
        "training-operator",
        [
            str(binary),
            f"--kubeconfig={login}",
            "--enable-scheme=pytorchjob",
            f"--webhook-server-port={_PORT}",
            f"--health-probe-bind-address=:{_HEALTH}",
            f"--metrics-bind-address=:{_METRICS}",
            f"--pytorch-init-container-template-file={template}",
        ],
        namespace=layout.control_namespace,
        env={"MY_POD_NAMESPACE": TRAINER_NAMESPACE},
        own_tmp=_own_tmp(bed),
    )
    hand_certificate(bed.kubectl, daemon, _SECRET, namespace=TRAINER_NAMESPACE, own_tmp=_own_tmp(bed))
    address = str(layout.control_address)
    process.await_ready(daemon, lambda: answers(address, _HEALTH, "/readyz"), limit_s=_READY_S)


def _own_tmp(bed: Bed) -> Path:
    return bed.layout.folder / "training-operator-tmp"


def _objects(bed: Bed, manifests: Path) -> tuple[list[Object], list[Object]]:
    """The definition; then secret, service and webhook."""
    (hooks,) = load(manifests / "webhook/manifests.yaml")
    hooks["metadata"]["name"] = _HOOKS
    hooks["webhooks"] = [hook for hook in hooks["webhooks"] if hook["name"] == _HOOK]
    for hook in hooks["webhooks"]:
        hook["clientConfig"]["service"] |= {"name": _SERVICE, "namespace": TRAINER_NAMESPACE}
    address = str(bed.layout.control_address)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET, "namespace": TRAINER_NAMESPACE}}
    services = service_at(_SERVICE, namespace=TRAINER_NAMESPACE, address=address, port=_PORT)
    return load(manifests / "crds/kubeflow.org_pytorchjobs.yaml"), [secret, *services, hooks]
