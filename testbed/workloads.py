"""Jobs for tests of the bed and of the product: torchrun over two nodes as an Indexed Job, a JobSet and a TrainJob.

torch is in no image: the project's own virtual environment and its Python are mounted from the host at the same paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.client import Object

PYTHON_IMAGE = "rankfall.test/python:3.11"
SCRIPT_FOLDER = "/job"
RUNTIME = "torch-testbed"
_PORT = 29500


def script(name: str, *, namespace: str, text: str) -> Object:
    """A ConfigMap with the job's program; pods see it as ``/job/train.py``."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"train.py": text},
    }


def torch_pod(
    *,
    program: str,
    command: Sequence[str],
    mounts: Iterable[Path],
    spread: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    name: str = "node",
) -> Object:
    """The spec of a pod that has torch.

    Args:
        program: name of the ConfigMap of :func:`script`.
        command: of the container.
        mounts: folders of this machine, seen at the same paths.
        spread: labels of pods that no two may share a node with.
        env: of the container; ``NODE_NAME`` is added.
        name: of the container.
    """
    folders = [Path(item) for item in mounts]
    variables: list[dict[str, Any]] = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "OMP_NUM_THREADS", "value": "1"},
        *({"name": key, "value": value} for key, value in (env or {}).items()),
    ]
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        "containers": [
            {
                "name": name,
                "image": PYTHON_IMAGE,
                "imagePullPolicy": "Never",
                "command": list(command),
                "env": variables,
                "volumeMounts": [
                    {"name": "script", "mountPath": SCRIPT_FOLDER},
                    *(
                        {"name": f"host-{index}", "mountPath": str(path), "readOnly": True}
                        for index, path in enumerate(folders)
                    ),
                ],
            }
        ],
        "volumes": [
            {"name": "script", "configMap": {"name": program}},
            *(
                {"name": f"host-{index}", "hostPath": {"path": str(path), "type": "Directory"}}
                for index, path in enumerate(folders)
            ),
        ],
    }
    if spread:
        term = {"labelSelector": {"matchLabels": dict(spread)}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return spec


def sleeper(
    name: str, *, namespace: str, image: str = PYTHON_IMAGE, container: Mapping[str, Any] | None = None, **spec: Any
) -> Object:
    """A pod that sleeps for ten minutes, or until it is deleted.

    Args:
        name: of the pod.
        namespace: in which it is.
        image: of its container.
        container: further fields of that.
        spec: further fields of the pod's spec.
    """
    main = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    usual = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**usual, **spec, "containers": [{**main, **(container or {})}]},
    }


def torchrun(python: Path, *, nnodes: int, nproc: int, rank: str, master: str) -> list[str]:
    """A command that starts torchrun in a shell, which fills in the variables of ``rank``."""
    words = (
        f"exec {python} -m torch.distributed.run --nnodes={nnodes} --nproc-per-node={nproc} --node-rank={rank} "
        f"--master-addr={master} --master-port={_PORT} {SCRIPT_FOLDER}/train.py"
    )
    return ["sh", "-c", words]


def headless_service(name: str, *, namespace: str, selector: Mapping[str, str]) -> Object:
    """A service that gives each pod a name, also before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(selector)},
    }


def indexed_job(name: str, *, namespace: str, nnodes: int, pod: Object) -> list[Object]:
    """An Indexed Job and its headless service; pods are called ``NAME-INDEX.NAME``."""
    return [
        headless_service(name, namespace=namespace, selector={"job-name": name}),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "completionMode": "Indexed",
                "completions": nnodes,
                "parallelism": nnodes,
                "backoffLimit": 0,
                "template": {"spec": {**pod, "subdomain": name}},
            },
        },
    ]


def jobset(name: str, *, namespace: str, nnodes: int, pod: Object) -> list[Object]:
    """A JobSet of one replicated job ``node``; pods are called ``NAME-node-0-INDEX.NAME``."""
    return [
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "replicas": 1,
                        "template": {
                            "spec": {
                                "completions": nnodes,
                                "parallelism": nnodes,
                                "backoffLimit": 0,
                                "template": {"spec": pod},
                            }
                        },
                    }
                ]
            },
        }
    ]


def torch_runtime(pod: Object) -> Object:
    """A ClusterTrainingRuntime of the Trainer with torch; its jobs give the script and the number of nodes."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": RUNTIME},
        "spec": {
            # Trainer 2.3 has no number of processes here.
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                                "spec": {"backoffLimit": 0, "template": {"spec": pod}},
                            },
                        }
                    ]
                }
            },
        },
    }


def trainjob(name: str, *, namespace: str, nnodes: int, nproc: int, command: Sequence[str]) -> Object:
    """A TrainJob on :func:`torch_runtime`."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {"numNodes": nnodes, "numProcPerNode": nproc, "command": list(command)},
        },
    }
