"""The workload of a launch on the small server: looked at, held, released and removed, and never another one of its name."""

from __future__ import annotations

import pytest

from backends.kubernetes.launch_server import Api
from backends.kubernetes.launch_stories import NAME, launched, tell
from rankfall.backends.kubernetes.workload import Workload
from rankfall.backends.plan import ClusterPlan
from rankfall.kube.errors import Unreachable
from rankfall.kube.loop_thread import EventLoopThread

# The server makes no jobs for it then.
HELD = {"suspend": True}


class Direct:
    """A portal for a story that runs in the client's own loop."""

    def __init__(self, kube):
        self.kube = kube

    def call(self, work):
        return work(self.kube)

    look = EventLoopThread.look


def place(backend):
    return ClusterPlan(
        context="c",
        namespace="here",
        selector="rankfall.dev/run=train-0a1b2c,jobset.sigs.k8s.io/restart-attempt=0",
        container="main",
        token="",
        bases={"worker": 0},
        backend=backend,
        object=NAME,
    )


def workload(kube, uid, *, backend="job"):
    return Workload(Direct(kube), place=place(backend), uid=uid)


@pytest.mark.parametrize(("kind", "backend"), [("Job", "job"), ("JobSet", "jobset")])
def test_it_is_looked_at_held_and_released(kind, backend):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, kind=kind, companions=())
            mine = workload(kube, done.uid, backend=backend)
            assert (await mine.look()).phase == "going"
            assert await mine.hold(suspend=True)
            assert (await mine.look()).phase == "suspended"
            assert await mine.hold(suspend=False)
            assert len(await mine.pods("")) == 2
            stranger = workload(kube, "another", backend=backend)
            assert await stranger.look() is None

    tell(story)


def test_what_is_not_there_is_gone_and_what_cannot_be_seen_is_an_error():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            nothing = workload(kube, "u")
            assert await nothing.look() is None
            assert not await nothing.hold(suspend=True)

    tell(story)


def test_it_is_removed_with_all_its_pods_whatever_start_they_are_of():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, companions=())
            mine = workload(kube, done.uid)
            assert mine.selector == "rankfall.dev/run=train-0a1b2c"
            said = []
            assert await mine.remove(wait_s=5, say=said.append) == "gone"
            assert await mine.look() is None

    tell(story)


def test_of_a_set_that_failed_its_job_says_why():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, kind="JobSet", companions=())
            failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "first failed job"}
            api.get("jobsets", NAME)["status"] = {"conditions": [failed]}
            why = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}
            labels = {"jobset.sigs.k8s.io/jobset-name": NAME, "jobset.sigs.k8s.io/restart-attempt": "0"}
            api.put(
                "jobs", {"metadata": {"name": "child", "labels": labels}, "spec": {}, "status": {"conditions": [why]}}
            )
            state = await workload(kube, done.uid, backend="jobset").look()
            assert (state.phase, state.reason, state.message) == (
                "failed",
                "DeadlineExceeded",
                "first failed job; late",
            )

    tell(story)


@pytest.mark.parametrize("theirs", [True, False])
def test_of_a_trainjob_its_own_set_tells_the_rest(theirs):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            api.put("trainjobs", {"metadata": {"name": NAME}, "spec": {"suspend": False}, "status": {}})
            uid = api.get("trainjobs", NAME)["metadata"]["uid"]
            mine = workload(kube, uid, backend="trainjob")
            assert (await mine.look()).start == ""
            owners = [{"uid": uid if theirs else "other"}]
            api.put(
                "jobsets",
                {"metadata": {"name": NAME, "ownerReferences": owners}, "spec": HELD, "status": {"restarts": 1}},
            )
            state = await mine.look()
            assert (state.phase, state.restarts) == (("suspended", 1) if theirs else ("going", 0))

    tell(story)


def test_a_look_has_a_time(monkeypatch):
    monkeypatch.setattr("rankfall.kube.loop_thread._LOOK_S", 0.0)

    async def story(api: Api) -> None:
        async with api.kube() as kube:
            with pytest.raises(Unreachable, match="no answer within"):
                await workload(kube, "u").look()

    tell(story)
