"""Several roles as Jobs of their own: the first owns the others and is released last, whatever is killed; all are stopped and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.kubernetes.launch_server import Api
from backends.kubernetes.launch_stories import LABELS, NAME, launched, manifest, tell
from backends.kubernetes.test_launch_failures import killed
from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.kubernetes.lifecycle.errors import Vanished
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan
from rankfall.model import JobSpec
from rankfall.rundir import RunDir

SECOND = f"{NAME}-worker"
# The first Job, config map, service, the second Job; a look at the second, its release, the first one's release.
PLAIN = range(1, 8)


def second() -> dict[str, Any]:
    made = manifest("Job", spec={"parallelism": 3, "template": {"metadata": {"labels": dict(LABELS)}}})
    made["metadata"]["name"] = SECOND
    return made


def both(api: Api, *, released: bool = True) -> None:
    """Exactly the two Jobs, the second one owned by the first."""
    jobs = {job["metadata"]["name"]: job for job in api.all("jobs")}
    assert set(jobs) == {NAME, SECOND}
    assert all(job["spec"]["suspend"] is not released for job in jobs.values())
    (reference,) = jobs[SECOND]["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"]) == (jobs[NAME]["metadata"]["uid"], False)
    assert [api.count_made(plural) for plural in ("jobs", "configmaps", "services")] == [2, 1, 1]


def test_the_others_come_last_and_the_first_is_released_last() -> None:
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, others=[second()])
        assert done.requests == len(PLAIN)
        assert [path.rpartition("/")[2] for method, path in api.seen if method == "PATCH"] == [SECOND, NAME]
        both(api)

    tell(story)


def test_none_of_a_held_launch_runs() -> None:
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            await launched(kube, others=[second()], hold=True)
        both(api, released=False)

    tell(story)


@pytest.mark.parametrize("when", ["kill before", "kill after"])
@pytest.mark.parametrize("number", PLAIN)
def test_launch_s12_killed_at_each_request_there_is_one_job_a_role(number: int, when: str) -> None:
    async def story(api: Api) -> None:
        api.faults = {number: when}
        await killed(api, others=[second()])
        async with api.kube() as kube:
            await launched(kube, others=[second()])
        both(api)

    tell(story)


@pytest.mark.parametrize("fault", ["before", "after", 409, 429, 503])
@pytest.mark.parametrize("number", PLAIN)
def test_launch_s12_a_lost_or_refused_request_for_a_role_is_settled_in_the_same_call(
    number: int, fault: str | int
) -> None:
    async def story(api: Api) -> None:
        api.faults = {number: fault}
        async with api.kube() as kube:
            await launched(kube, others=[second()])
        both(api)

    tell(story)


def test_a_role_that_somebody_deleted_meanwhile_is_not_taken_for_launched() -> None:
    async def story(api: Api) -> None:
        def fault(request: Any) -> None:
            if request.method == "GET" and request.path.endswith(SECOND):
                api.objects.pop(("jobs", SECOND), None)

        api.fault = fault
        async with api.kube() as kube:
            with pytest.raises(Vanished, match=SECOND):
                await launched(kube, others=[second()])
        # What was made is taken back, so that nothing waits there for ever.
        assert api.all("jobs") == []

    tell(story)


class Place:
    """A launched attempt of two roles, and the backend that has it."""

    def __init__(self, api: Api, folder: Path) -> None:
        self.api = api
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (folder / "config").write_text(yaml.safe_dump(config))
        run = RunDir.create(JobSpec(name="train", backend="job", command=("train.py",)), home=folder / "home")
        place = ClusterPlan(
            backend="job",
            object=NAME,
            jobs={"ps": NAME, "worker": SECOND},
            context="c",
            kubeconfig=str(folder / "config"),
            namespace="here",
            selector=",".join(f"{key}={value}" for key, value in LABELS.items()),
            container="main",
            token="",
            bases={"ps": 0, "worker": 2},
        )
        slot = SlotPlan(
            slot=0,
            role="ps",
            node="",
            argv=(),
            env={},
            cwd="",
            slot_dir=str(run.slot_dir(1, "ps", 0)),
            stream_dir=str(run.stream_dir(1, "ps", 0)),
        )
        self.plan = Plan(attempt=1, launcher="plain", slots=(slot,), cluster=place)
        self.marker = run.path / "kube" / "attempt-1" / "submitted.json"
        self.backend = ClusterBackend()

    async def launch(self) -> None:
        async with self.api.kube() as kube:
            done = await launched(kube, others=[second()])
        self.marker.parent.mkdir(parents=True, exist_ok=True)
        self.marker.write_text(f'{{"uid": "{done.uid}"}}')

    async def call(self, work: Callable[..., Any], *words: Any, **options: Any) -> Any:
        return await asyncio.to_thread(work, *words, **options)


def with_place(folder: Path, story: Callable[[Place], Any]) -> None:
    async def run(api: Api) -> None:
        place = Place(api, folder)
        await place.launch()
        try:
            await story(place)
        finally:
            await place.call(place.backend.release)

    tell(run)


def test_a_stop_suspends_every_role(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        assert await place.call(place.backend.stop, place.plan, [0], grace=1.0, reason="enough") == (0,)
        assert [job["spec"]["suspend"] for job in place.api.all("jobs")] == [True, True]

    with_place(tmp_path, story)


def test_clear_removes_the_jobs_of_all_roles(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        await place.call(place.backend.clear, place.plan)
        assert place.api.all("jobs") == []
        assert place.api.all("pods") == []

    with_place(tmp_path, story)


@pytest.mark.parametrize("name", [NAME, SECOND])
def test_a_job_of_any_role_that_somebody_deleted_withdraws_the_attempt(tmp_path: Path, name: str) -> None:
    async def story(place: Place) -> None:
        assert await place.call(place.backend.deleted_externally, place.plan) is None
        place.api.objects.pop(("jobs", name))
        assert (
            await place.call(place.backend.deleted_externally, place.plan) == f"job {name} was deleted in the cluster"
        )

    with_place(tmp_path, story)
