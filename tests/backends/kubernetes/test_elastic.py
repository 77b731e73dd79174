"""The patch that gives a running Job another size, against a server that answers from a list."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.kubernetes.made import compiled, slot_of, spec
from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.kubernetes.workload import set_size
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.kube.errors import Conflict, ObjectNotFound
from rankfall.model import InfrastructureError, JobSpec
from rankfall.rundir import RunDir
from rankfall.rundir.layout import pods_folder


class Kube:
    """One Job; the first so many patches meet another version."""

    def __init__(self, *, size: int = 4, uid: str = "u1", conflicts: int = 0, there: bool = True) -> None:
        self.size, self.uid, self.conflicts, self.there = size, uid, conflicts, there
        self.patches: list[tuple[Any, str, str | None]] = []

    async def get(self, resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        assert (name, namespace) == ("job-a1", "team-a")
        if not self.there:
            raise ObjectNotFound("gone", status=404)
        meta = {"uid": self.uid, "resourceVersion": f"v{len(self.patches)}"}
        return {"metadata": meta, "spec": {"completions": self.size, "parallelism": self.size}}

    async def patch(
        self, resource: Any, name: str, body: Any, *, namespace: str, kind: str, resource_version: str
    ) -> None:
        self.patches.append((body, kind, resource_version))
        if len(self.patches) <= self.conflicts:
            raise Conflict("another version", status=409)
        self.size = body[0]["value"]


def resize(kube: Kube, size: int) -> None:
    asyncio.run(set_size(kube, name="job-a1", namespace="team-a", uid="u1", size=size))  # type: ignore[arg-type]


def test_jobapi_s07_parallelism_and_completions_change_in_one_patch_at_one_version() -> None:
    kube = Kube()
    resize(kube, 6)
    ((body, kind, version),) = kube.patches
    assert [(one["op"], one["path"], one["value"]) for one in body] == [
        ("replace", "/spec/parallelism", 6),
        ("replace", "/spec/completions", 6),
    ]
    assert (kind, version) == ("json", "v0")
    # The same again asks for nothing.
    resize(kube, 6)
    assert len(kube.patches) == 1


def test_another_version_is_read_anew_and_not_for_ever() -> None:
    kube = Kube(conflicts=2)
    resize(kube, 3)
    assert [version for _, _, version in kube.patches] == ["v0", "v1", "v2"]
    with pytest.raises(InfrastructureError, match="changes too often"):
        resize(Kube(conflicts=99), 3)


@pytest.mark.parametrize("kube", [Kube(uid="another"), Kube(there=False)])
def test_a_job_that_is_not_ours_any_more_is_left_alone(kube: Kube) -> None:
    resize(kube, 3)
    assert kube.patches == []


def test_a_gang_that_may_change_shares_no_store_with_its_ranks() -> None:
    def told(**fields: Any) -> bool:
        pod = compiled(spec(**fields)).objects[0]["spec"]["template"]["spec"]
        return any(one["name"] == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" for one in pod["containers"][0]["env"])

    assert told(nnodes=2, nnodes_max=4)
    assert not told(nnodes=2)


def test_only_an_indexed_job_with_c10d_changes_in_place_and_by_the_size_in_its_plan(tmp_path: Path) -> None:
    run = RunDir.create(JobSpec(name="job", command=("train.py",)), home=tmp_path)
    slot = slot_of(run)
    place = ClusterPlan(
        backend="job",
        namespace="team-a",
        context=None,
        kubeconfig=None,
        object="job-a1",
        selector="",
        container="",
        token="",
        bases={"worker": 0},
    )
    plan = Plan(attempt=1, launcher="torchrun", rdzv="c10d", slots=(slot,), cluster=place, sizes={"worker": 6})
    backend = ClusterBackend()
    kube = Kube()
    backend._call = lambda _plan, work: asyncio.run(work(kube))  # type: ignore[method-assign]
    marker = pods_folder(run.path, 1) / "submitted.json"
    marker.parent.mkdir(parents=True)
    marker.write_text('{"uid": "u1", "object": "job-a1"}')
    assert backend.resizes(plan)
    assert backend.resize(plan)
    assert kube.size == 6
    fixed = msgspec.structs.replace(plan, rdzv="static")
    other = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(place, backend="jobset"))
    assert not backend.resizes(fixed)
    assert not backend.resizes(other)
