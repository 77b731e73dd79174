"""What the tests of launch and removal share: manifests of one attempt, and one call of each with small times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from backends.kubernetes.launch_server import Api, serving
from rankfall.backends.kubernetes.lifecycle.launch import Launched, launch
from rankfall.backends.kubernetes.lifecycle.remove import Removed, remove
from rankfall.backends.kubernetes.manifests.names import ANNOTATION_REQUEST, LABEL_ATTEMPT, LABEL_RUN
from rankfall.kube.client import Kube
from rankfall.kube.resources import JOBS, JOBSETS, TRAINJOBS

RUN = "train-0a1b2c"
NAME = f"{RUN}-a1"
LABELS = {LABEL_RUN: RUN, LABEL_ATTEMPT: "1"}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
TOKEN = "0f" * 16
RESOURCES = {"Job": JOBS, "JobSet": JOBSETS, "TrainJob": TRAINJOBS}


def manifest(kind: str, **fields: Any) -> dict[str, Any]:
    versions = {
        "Job": "batch/v1",
        "JobSet": "jobset.x-k8s.io/v1alpha2",
        "TrainJob": "trainer.kubeflow.org/v1alpha1",
        "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    }
    meta = {"name": NAME, "namespace": "here", "labels": dict(LABELS)}
    return {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": meta, "spec": {}, **fields}


def workload(kind: str = "Job") -> dict[str, Any]:
    spec = {"parallelism": 2, "template": {"metadata": {"labels": dict(LABELS)}}}
    return manifest(kind, spec=spec)


COMPANIONS = (manifest("ConfigMap"), manifest("Service"))


def old(kind: str = "Job", *, request: str = "another", run: str = RUN, suspend: bool = False) -> dict[str, Any]:
    """An object that an earlier launch made."""
    made = workload(kind)
    made["metadata"] |= {"labels": {**LABELS, LABEL_RUN: run}, "annotations": {ANNOTATION_REQUEST: request}}
    made["spec"] |= {"suspend": suspend}
    return made


async def launched(kube: Kube, said: list[str] | None = None, *, kind: str = "Job", **options: Any) -> Launched:
    options = {"request_token": TOKEN, "hold": False, "wait_s": 20.0, "companions": COMPANIONS, **options}
    companions = options.pop("companions")
    say = (said if said is not None else []).append
    return await launch(kube, workload(kind), companions, resource=RESOURCES[kind], say=say, **options)


async def removed(kube: Kube, said: list[str] | None = None, *, kind: str = "Job", **options: Any) -> Removed:
    options = {"uid": None, "wait_s": 20.0, "pods_selector": SELECTOR, **options}
    say = (said if said is not None else []).append
    return await remove(kube, resource=RESOURCES[kind], name=NAME, namespace="here", say=say, **options)


class Told(list[str]):
    """Lines that were said; ``first`` is set with the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()

    def append(self, line: str) -> None:
        super().append(line)
        self.first.set()


def tell(story: Callable[[Api], Awaitable[None]]) -> None:
    """Run a story on a server of its own."""

    async def run() -> None:
        async with serving() as api:
            await story(api)

    asyncio.run(run())


def whole(api: Api, *, uid: str | None = None, released: bool = True, pods: int = 2) -> None:
    """Exactly one job, with its companions, and its pods when it was released."""
    [job] = api.all("jobs")
    found = job["metadata"]["uid"]
    assert uid in {None, found}
    assert job["spec"]["suspend"] is not released
    assert job["metadata"]["annotations"][ANNOTATION_REQUEST] == TOKEN
    for plural in ("configmaps", "services"):
        [item] = api.all(plural)
        [reference] = item["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (found, False)
        assert "blockOwnerDeletion" not in reference
    assert len(api.all("pods")) == (pods if released else 0)
