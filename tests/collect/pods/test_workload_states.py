"""The watch of a workload: how it ended before it was gone, and which pods are of which gang of a TrainJob."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.kubernetes.launch_server import Api, Refusal
from backends.kubernetes.launch_stories import tell
from rankfall.collect.pods import cluster_context, workload_states
from rankfall.collect.pods.cluster_context import ContextCollector
from rankfall.collect.pods.workload_states import WorkloadStates, pods_of_gang
from rankfall.kube.object_fields import JOB_UID, JOBSET_EXECUTION, JOBSET_NAME, JOBSET_RESTART, JOBSET_UID
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.cluster.workload_state import end_of, first_gang, workload_facts
from rankfall.rundir.layout import context_path
from support.patience import scaled

NAME = "train-a1"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for name in ("REFUSED_S", "AGAIN_S", "POLL_INTERVAL_S"):
        monkeypatch.setattr(cluster_context, name, 0.01)
    monkeypatch.setattr(workload_states, "_LISTED_S", 0.05)


def source(backend: str, *, gang: str = "") -> PodSource:
    return PodSource(
        context="c",
        namespace="here",
        selector="a=b",
        container="main",
        token="",
        bases={"worker": 0},
        backend=backend,
        object=NAME,
        gang=gang,
    )


def watched(kube, run: Path, *, backend: str = "job", gang: str = "", full: Any = pytest.fail) -> WorkloadStates:
    return WorkloadStates(kube, run=run, attempt=1, source=source(backend, gang=gang), full=full)


def made(api: Api, plural: str, name: str = NAME, *, owner: dict[str, Any] | None = None, **fields: Any) -> Any:
    meta: dict[str, Any] = {"name": name, **fields}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": owner["kind"], "uid": owner["metadata"]["uid"]}]
    # Suspended, so that the server makes no pods for it.
    item = {"metadata": meta, "spec": {"suspend": True}}
    api._create(plural, item)
    return api.objects[plural, name]


def gang(api: Api, trainjob: dict[str, Any], created: str) -> tuple[Any, Any]:
    """A JobSet of the TrainJob, in place of the one before, and its Job."""
    for kind, name in (("jobs", f"{NAME}-node-0"), ("jobsets", NAME)):
        gone = api.objects.pop((kind, name), None)
        if gone is not None:
            api._tell("DELETED", kind, gone)
    one = made(api, "jobsets", owner=trainjob, creationTimestamp=created)
    job = made(api, "jobs", f"{NAME}-node-0", owner=one, labels={JOBSET_NAME: NAME})
    return one, job


def pod(job: dict[str, Any] | None, created: str = "2026-11-21T19:00:00Z", **labels: str) -> dict[str, Any]:
    own = {JOB_UID: job["metadata"]["uid"]} if job is not None else {}
    return {"metadata": {"labels": own | labels, "creationTimestamp": created}}


def around(watch: WorkloadStates) -> ContextCollector:
    """The feed that has the watches."""
    path = context_path(watch._file._path.parents[2], 1)
    return ContextCollector(
        watch._kube, path=path, source=watch._source, pods=lambda: (), full=lambda _: None, workload=watch
    )


async def take(watch: WorkloadStates) -> None:
    await watch.take()
    feed = around(watch)
    await feed.take()
    feed.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(scaled(20)):
        while not true():  # noqa: ASYNC110 - it happens in another task, which tells nobody
            await asyncio.sleep(0.005)


def run_with(run: Path, story: Callable[[Api, WorkloadStates], Awaitable[None]], **fields: Any) -> None:
    """A story with a watch at work."""

    async def whole(api: Api) -> None:
        async with api.kube() as kube:
            watch = watched(kube, run, **fields)
            feed = around(watch)
            task = asyncio.create_task(feed.run())
            try:
                await story(api, watch)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                feed.close()
                watch.close()

    tell(whole)


def facts(run: Path) -> Any:
    return workload_facts(run, 1)


@pytest.mark.parametrize(("condition", "phase"), [("Complete", "succeeded"), ("Failed", "failed"), ("", None)])
def test_i19_p7_how_a_workload_ended_is_known_when_it_is_gone_a_moment_later(tmp_path, condition, phase):
    async def story(api: Api, watch: WorkloadStates) -> None:
        await until(watch._listed.is_set)
        job = made(api, "jobs")
        if condition:
            api.ends("jobs", NAME, condition)
        api._delete("jobs", job, None)
        api._work()
        await api.wake()
        uid = job["metadata"]["uid"]
        await until(lambda: uid in facts(tmp_path) and facts(tmp_path)[uid].gone)
        fact = facts(tmp_path)[uid]
        assert not fact.vanished
        state = end_of(facts(tmp_path), uid)
        assert (state.phase if state is not None else None) == phase

    run_with(tmp_path, story)


def test_i19_p6_of_what_went_while_nobody_watched_the_last_state_is_not_known(tmp_path):
    async def first(api: Api) -> None:
        job = made(api, "jobs")
        async with api.kube() as kube:
            watch = watched(kube, tmp_path)
            await take(watch)
            watch.close()
            uid = job["metadata"]["uid"]
            assert not facts(tmp_path)[uid].gone
            del api.objects["jobs", NAME]
            watch = watched(kube, tmp_path)
            await take(watch)
            watch.close()
            assert (facts(tmp_path)[uid].gone, facts(tmp_path)[uid].vanished) == (True, True)
            assert end_of(facts(tmp_path), uid) is None

    tell(first)


def of(execution: int | None, *, restart: int = 0, uid: str = "s") -> dict[str, Any]:
    """A pod of a JobSet's start."""
    made = pod(None, **{JOBSET_RESTART: str(restart), JOBSET_UID: uid})
    marks = {} if execution is None else {JOBSET_EXECUTION: str(execution)}
    return {"metadata": made["metadata"] | {"annotations": marks}}


def stored(run: Path, attempt: int, execution: int) -> None:
    writer = JournalWriter(journal_path(run, attempt))
    writer.add(PodFact(seen_ns=1, name="p", uid=f"u{attempt}", execution=execution))
    writer.close()


def test_i32_the_first_pod_of_an_attempt_fixes_its_execution(tmp_path):
    async def story(api: Api, watch: WorkloadStates) -> None:
        uid = made(api, "jobsets")["metadata"]["uid"]
        await api.wake()
        await until(lambda: watch._facts)
        seen = [await watch.mine(of(n, uid=uid)) for n in (None, 4, 4, 3, 5, None)]
        assert seen == [True, True, True, False, False, True]

    run_with(tmp_path, story, backend="jobset")


@pytest.mark.parametrize(("stored_in", "taken"), [(None, [True, True]), (1, [True, False]), (7, [False, True])])
def test_i32_pods_of_an_earlier_attempt_and_of_another_supervisors_choice_stay_apart(tmp_path, stored_in, taken):
    if stored_in is not None:
        # This attempt is number 1; attempt 7 stands for an earlier one.
        stored(tmp_path, stored_in, 2)

    async def story(api: Api) -> None:
        async with api.kube() as kube:
            found = []
            for execution in (2, 3):
                place = msgspec.structs.replace(source("jobset"), apart=(7,))
                watch = WorkloadStates(kube, run=tmp_path, attempt=1, source=place, full=pytest.fail)
                found.append(await watch.mine(of(execution)))
                watch.close()
            assert found == taken

    tell(story)


def test_i32_a_pod_that_outlives_a_suspension_is_not_of_the_present_start(tmp_path):
    async def story(api: Api, watch: WorkloadStates) -> None:
        one = made(api, "jobsets")
        one["status"] = {"restarts": 1, "executionAttempts": 5}
        await api.wake()
        await until(lambda: any(fact.state.execution == 5 for fact in watch._facts.values()))
        uid = one["metadata"]["uid"]
        assert not await watch.mine(of(4, restart=1, uid=uid))
        # Of a restart that nobody saw: its own attempt takes it.
        assert await watch.mine(of(3, restart=0, uid=uid))

    run_with(tmp_path, story, backend="jobset")


def test_i32_pods_of_one_execution_are_listed_where_it_is_known(tmp_path):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            pods = [of(1), of(2), of(None)]
            found = await pods_of_gang(kube, pods, "", NAME, namespace="here", execution=2)
            assert found == pods[1:]
            assert await pods_of_gang(kube, pods, "", NAME, namespace="here") == pods

    tell(story)


def test_i19_p10_the_first_jobset_is_the_gang_and_pods_of_another_one_are_not_its_own(tmp_path):
    async def story(api: Api, watch: WorkloadStates) -> None:
        trainjob = made(api, "trainjobs")
        one, old = gang(api, trainjob, "2026-11-21T19:00:00Z")
        await api.wake()
        await until(lambda: watch.gang)
        assert watch.gang == one["metadata"]["uid"] == first_gang(facts(tmp_path))
        assert await watch.mine(pod(old))
        two, new = gang(api, trainjob, "2026-11-21T19:10:00Z")
        await api.wake()
        await until(lambda: two["metadata"]["uid"] in facts(tmp_path))
        assert watch.gang == one["metadata"]["uid"]
        assert not await watch.mine(pod(new))
        # Newer JobSets put their own UID on their pods.
        assert not await watch.mine(pod(None, **{JOBSET_UID: two["metadata"]["uid"]}))
        assert await watch.mine(pod(None, **{JOBSET_UID: one["metadata"]["uid"]}))
        # Whose Job is gone: by time.
        assert await watch.mine(pod(None, "2026-11-21T19:09:59Z"))
        assert not await watch.mine(pod(None, "2026-11-21T19:10:00Z"))

    run_with(tmp_path, story, backend="trainjob")


def test_i19_p10_a_start_of_the_new_gang_takes_its_pods_alone(tmp_path):
    async def story(api: Api, watch: WorkloadStates) -> None:
        trainjob = made(api, "trainjobs")
        two, new = gang(api, trainjob, "2026-11-21T19:10:00Z")
        made(api, "jobs", "of-nobody", labels={JOBSET_NAME: NAME})
        await api.wake()
        watch._source = source("trainjob", gang=two["metadata"]["uid"])
        await until(lambda: two["metadata"]["uid"] in facts(tmp_path))
        assert await watch.mine(pod(new))
        # It runs, so its Jobs are there: a pod whose Job is not is an older one's.
        assert not await watch.mine(pod(None))
        items = [pod(new), pod(None)]
        assert await pods_of_gang(watch._kube, items, two["metadata"]["uid"], NAME, namespace="here") == items[:1]
        assert await pods_of_gang(watch._kube, items, "", NAME, namespace="here") == items

    run_with(tmp_path, story, backend="trainjob")


def test_i19_p10_a_pod_of_a_gang_that_is_gone_itself_is_its_own(tmp_path):
    async def story(api: Api, watch: WorkloadStates) -> None:
        one, job = gang(api, made(api, "trainjobs"), "2026-11-21T19:00:00Z")
        await api.wake()
        await until(lambda: watch.gang and watch._sets)
        del api.objects["jobsets", NAME], api.objects["jobs", f"{NAME}-node-0"]
        api._tell("DELETED", "jobsets", one)
        await api.wake()
        await until(lambda: facts(tmp_path)[one["metadata"]["uid"]].gone)
        assert await watch.mine(pod(job))
        assert not await watch.mine(pod(None))

    run_with(tmp_path, story, backend="trainjob")


@pytest.mark.parametrize("seen", [True, False])
def test_i19_p6_a_job_that_a_jobset_makes_when_it_is_deleted_already_is_not_its_own(tmp_path, seen):
    # Seen on the test bed: its pods cannot be scheduled beside the old ones, and are gone a second later.
    async def story(api: Api, watch: WorkloadStates) -> None:
        one = made(api, "jobsets")
        job = made(api, "jobs", f"{NAME}-node-0", owner=one, labels={JOBSET_NAME: NAME})
        await api.wake()
        await until(lambda: watch._sets)
        assert await watch.mine(pod(job))
        del api.objects["jobsets", NAME], api.objects["jobs", f"{NAME}-node-0"]
        api._tell("DELETED", "jobsets", one)
        await api.wake()
        await until(lambda: facts(tmp_path)[one["metadata"]["uid"]].gone)
        again = made(api, "jobs", f"{NAME}-node-0", owner=one, labels={JOBSET_NAME: NAME})
        if seen:
            await api.wake()
            await until(lambda: again["metadata"]["uid"] in watch._sets)
        assert not await watch.mine(pod(again))
        assert await watch.mine(pod(job))

    run_with(tmp_path, story, backend="jobset")


@pytest.mark.parametrize("denied", ["jobs", "jobsets"])
def test_i19_p10_who_may_not_see_sets_or_jobs_takes_every_pod(tmp_path, denied):
    async def story(api: Api, watch: WorkloadStates) -> None:
        api.refusals["GET", denied] = Refusal(403)
        trainjob = made(api, "trainjobs")
        _, job = gang(api, trainjob, "2026-11-21T19:00:00Z")
        await api.wake()
        await until(watch._listed.is_set)
        assert await watch.mine(pod(job))
        if denied == "jobs":
            assert watch._denied
        else:
            assert not watch.gang

    run_with(tmp_path, story, backend="trainjob")


def test_i19_p10_one_look_reads_the_gang_before_the_pods(tmp_path):
    async def story(api: Api) -> None:
        trainjob = made(api, "trainjobs")
        one, job = gang(api, trainjob, "2026-11-21T19:00:00Z")
        async with api.kube() as kube:
            watch = watched(kube, tmp_path, backend="trainjob")
            await watch.take()
            assert watch.gang == one["metadata"]["uid"]
            assert await watch.mine(pod(job))
            watch.close()

    tell(story)


@pytest.mark.parametrize("backend", ["job", "pod"])
def test_a_workload_without_gangs_below_it_has_every_pod(tmp_path, backend):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            watch = watched(kube, tmp_path, backend=backend)
            assert await watch.mine(pod(None))
            watch.close()

    tell(story)


def test_a_trainjobs_end_has_the_restarts_and_the_gang_of_its_set(tmp_path):
    async def story(api: Api) -> None:
        trainjob = made(api, "trainjobs")
        one, _ = gang(api, trainjob, "2026-11-21T19:00:00Z")
        one["status"] = {"restarts": 2}
        api.ends("trainjobs", NAME, "Failed")
        async with api.kube() as kube:
            watch = watched(kube, tmp_path, backend="trainjob")
            await take(watch)
            watch.close()
        state = end_of(facts(tmp_path), trainjob["metadata"]["uid"])
        assert state is not None
        assert (state.phase, state.restarts, state.gang) == ("failed", 2, one["metadata"]["uid"])

    tell(story)


def test_what_a_full_disk_does_not_take_is_written_later(tmp_path):
    said: list[OSError] = []

    async def story(api: Api) -> None:
        job = made(api, "jobs")
        async with api.kube() as kube:
            watch = watched(kube, tmp_path, full=said.append)
            whole = watch._file.add

            def full(fact: Any) -> bool:
                raise OSError(28, "No space left on device")

            watch._file.add = full  # type: ignore[method-assign]
            await take(watch)
            assert said
            assert not facts(tmp_path)
            watch._file.add = whole  # type: ignore[method-assign]
            assert watch.write_left()
            assert not watch.write_left()
            assert job["metadata"]["uid"] in facts(tmp_path)
            watch.close()

    tell(story)
