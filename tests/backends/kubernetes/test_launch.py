"""Launch: the order, the five answers to a name that is taken, and what is left after a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from backends.kubernetes.launch_server import Api, Refusal
from backends.kubernetes.launch_stories import (
    COMPANIONS,
    NAME,
    RUN,
    TOKEN,
    Told,
    launched,
    manifest,
    old,
    removed,
    tell,
    whole,
)
from rankfall.backends.kubernetes.lifecycle.errors import NameTaken, StillThere, Vanished
from rankfall.backends.kubernetes.lifecycle.launch import launch
from rankfall.backends.kubernetes.lifecycle.ownership import ANNOTATION_OWNER
from rankfall.backends.kubernetes.manifests.names import ANNOTATION_REQUEST, LABEL_RUN
from rankfall.kube.errors import Forbidden, Invalid, ServerError
from rankfall.kube.resources import JOBS


def test_workload_first_then_companions_then_release():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube)
        assert (done.outcome, done.requests) == ("created", 4)
        assert [method for method, _ in api.seen] == ["POST", "POST", "POST", "PATCH"]
        assert [path.rpartition("/")[2] for _, path in api.seen] == ["jobs", "configmaps", "services", NAME]
        assert api.made[0][0] == "jobs"
        whole(api, uid=done.uid)

    tell(story)


def test_a_held_one_stays_suspended():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, hold=True)
        assert done.requests == 3
        whole(api, released=False)

    tell(story)


def test_launch_s12_a_second_launch_of_one_request_changes_nothing():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            one = await launched(kube)
            two = await launched(kube)
        assert (two.uid, two.outcome) == (one.uid, "adopted")
        assert [api.count_made(plural) for plural in ("jobs", "configmaps", "services", "pods")] == [1, 1, 1, 2]

    tell(story)


@pytest.mark.parametrize(
    ("kind", "condition"),
    [("Job", "Complete"), ("Job", "Failed"), ("JobSet", "Completed"), ("JobSet", "Failed")],
)
def test_launch_s1_a_finished_one_of_the_run_is_removed_first(kind, condition):
    async def story(api: Api) -> None:
        plural = f"{kind.lower()}s"
        before = api.put(plural, old(kind))
        api.put("configmaps", manifest("ConfigMap"), ownerReferences=[{"uid": before["metadata"]["uid"]}])
        pods = {pod["metadata"]["uid"] for pod in api.all("pods")}
        assert len(pods) == 2
        api.ends(plural, NAME, condition)
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube, said, kind=kind, companions=COMPANIONS[:1])
        assert done.outcome == "recreated"
        assert done.uid == api.get(plural, NAME)["metadata"]["uid"] != before["metadata"]["uid"]
        assert api.count_made(plural) == 2
        assert len(api.all("pods")) == 2
        assert not pods & {pod["metadata"]["uid"] for pod in api.all("pods")}
        assert condition in said[0]
        [item] = api.all("configmaps")
        assert item["metadata"]["ownerReferences"][0]["uid"] == done.uid

    tell(story)


def test_launch_s2_an_alive_one_of_the_run_is_refused_with_owner_and_age():
    async def story(api: Api) -> None:
        before = api.put("jobs", old())
        api.change(
            "jobs",
            NAME,
            creationTimestamp="2020-01-01T00:00:00Z",
            annotations={ANNOTATION_REQUEST: "another", ANNOTATION_OWNER: "alice@laptop\x1b[31m"},
        )
        async with api.kube() as kube:
            with pytest.raises(NameTaken) as caught:
                await launched(kube)
        assert api.get("jobs", NAME)["metadata"]["uid"] == before["metadata"]["uid"]
        assert not [method for method, _ in api.seen if method in {"DELETE", "PATCH"}]
        assert "already runs" in caught.value.message
        assert f"run {RUN}, attempt 1, launched by alice@laptop\\x1b[31m" in caught.value.message
        assert "days old" in caught.value.message
        assert "--replace" in str(caught.value.hint)

    tell(story)


def test_launch_s2_an_alive_one_is_replaced_when_that_is_asked_for():
    async def story(api: Api) -> None:
        before = api.put("jobs", old())
        async with api.kube() as kube:
            done = await launched(kube, replace=True)
        assert done.outcome == "recreated"
        assert done.uid != before["metadata"]["uid"]
        whole(api)

    tell(story)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("run", ["other-0a1b2c", None])
def test_a_foreign_one_is_left_alone(run, replace):
    async def story(api: Api) -> None:
        theirs = old(run=run or "")
        theirs["metadata"]["managedFields"] = [{"manager": "kubectl-create"}]
        if run is None:
            theirs["metadata"]["labels"] = {}
        api.put("jobs", theirs)
        api.ends("jobs", NAME, "Complete")
        async with api.kube() as kube:
            with pytest.raises(NameTaken, match="not of this run") as caught:
                await launched(kube, replace=replace)
        assert ("created by kubectl-create" if run is None else f"run {run}") in caught.value.message
        assert {method for method, _ in api.seen} == {"POST", "GET"}
        assert len(api.made) == 1 + 2

    tell(story)


def test_a_run_of_one_name_and_one_owner_counts_as_ours():
    async def story(api: Api) -> None:
        before = old(run="train-ffffff")
        before["metadata"]["annotations"][ANNOTATION_OWNER] = "alice@laptop"
        api.put("jobs", before)
        api.ends("jobs", NAME, "Failed")
        async with api.kube() as kube:
            with pytest.raises(NameTaken, match="not of this run"):
                await launched(kube, owner="bob@laptop")
            assert (await launched(kube, owner="alice@laptop")).outcome == "recreated"

    tell(story)


def test_launch_s3_one_that_does_not_go_is_named_with_its_finalizer():
    async def story(api: Api) -> None:
        api.put("jobs", old(), finalizers=["example.com/hold"])
        api.ends("jobs", NAME, "Failed")
        said: list[str] = []
        async with api.kube() as kube:
            for _ in range(2):
                with pytest.raises(StillThere, match=r"job here/\S+ waits for finalizer example.com/hold") as caught:
                    await launched(kube, said, wait_s=0.5)
        assert "the program that set the finalizer" in str(caught.value.hint)
        assert any("waiting for the removal of the earlier job" in line for line in said)
        assert api.count_made("jobs") == 1

    tell(story)


def test_launch_s3_one_that_does_not_go_is_named_with_its_pod_and_node():
    async def story(api: Api) -> None:
        ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2020-01-01T00:00:00Z"}
        api.put("nodes", {"metadata": {"name": "n2"}, "status": {"conditions": [ready]}})
        api.put("jobs", old())
        api.ends("jobs", NAME, "Failed")
        api.dead_nodes.add("n2")
        async with api.kube() as kube:
            with pytest.raises(
                StillThere, match=r"pod here/\S+ on node n2 should have ended .* not been ready"
            ) as caught:
                await launched(kube, wait_s=0.5)
        assert "bring node n2 back" in str(caught.value.hint)
        assert api.count_made("jobs") == 1

    tell(story)


def test_one_that_goes_meanwhile_is_waited_for():
    async def story(api: Api) -> None:
        before = api.put("jobs", old(request=TOKEN), finalizers=["example.com/hold"])
        api._delete("jobs", before, None)
        said = Told()
        async with api.kube() as kube, asyncio.TaskGroup() as group:
            launching = group.create_task(launched(kube, said))
            await said.first.wait()
            api.change("jobs", NAME, finalizers=[])
            await api.wake()
        assert launching.result().outcome == "created"
        whole(api)

    tell(story)


@pytest.mark.parametrize("plural", ["jobs", "configmaps", "services"])
@pytest.mark.parametrize(("code", "error"), [(422, Invalid), (403, Forbidden)])
def test_jobapi_s23_a_refusal_is_told_in_the_servers_words_and_leaves_nothing(plural, code, error):
    async def story(api: Api) -> None:
        words = 'admission webhook "quota.example.com" denied the request: no GPUs on Fridays'
        api.refusals["POST", plural] = Refusal(code, words)
        async with api.kube() as kube:
            with pytest.raises(error, match="no GPUs on Fridays"):
                await launched(kube)
        assert not api.objects

    tell(story)


def test_a_refused_release_leaves_nothing():
    async def story(api: Api) -> None:
        api.refusals["PATCH", "jobs"] = Refusal(403, "may not patch jobs")
        async with api.kube() as kube:
            with pytest.raises(Forbidden, match="may not patch jobs"):
                await launched(kube)
        assert not api.objects

    tell(story)


def test_what_cannot_be_taken_back_is_told():
    async def story(api: Api) -> None:
        api.refusals |= {
            ("POST", "services"): Refusal(403, "no services"),
            ("DELETE", "jobs"): Refusal(403, "no deletes"),
        }
        said: list[str] = []
        async with api.kube() as kube:
            with pytest.raises(Forbidden, match="no services"):
                await launched(kube, said)
        assert said[-1].endswith(f"job here/{NAME} remains in the cluster")

    tell(story)


def test_a_running_one_of_the_same_request_survives_a_refused_companion():
    async def story(api: Api) -> None:
        api.put("jobs", old(request=TOKEN))
        api.refusals["POST", "configmaps"] = Refusal(403)
        async with api.kube() as kube:
            with pytest.raises(Forbidden):
                await launched(kube)
        assert api.get("jobs", NAME) is not None

    tell(story)


def test_a_foreign_companion_is_left_alone():
    async def story(api: Api) -> None:
        theirs = api.put("services", {"metadata": {"name": NAME}, "spec": {}})
        async with api.kube() as kube:
            with pytest.raises(NameTaken, match=r"service here/\S+ exists and is not of this run"):
                await launched(kube)
        assert list(api.objects.values()) == [theirs]

    tell(story)


def test_a_companion_of_a_workload_that_is_gone_is_made_anew():
    async def story(api: Api) -> None:
        api.put("configmaps", manifest("ConfigMap"), annotations={ANNOTATION_REQUEST: "another"})
        async with api.kube() as kube:
            await launched(kube)
        whole(api)
        assert api.count_made("configmaps") == 2

    tell(story)


def test_one_that_is_deleted_while_it_is_launched_is_not_made_again():
    async def story(api: Api) -> None:
        def fault(request):
            if request.method == "PATCH" and (job := api.get("jobs", NAME)):
                api._delete("jobs", job, None)
                api._work()

        api.fault = fault
        async with api.kube() as kube:
            with pytest.raises(Vanished, match="deleted by another client"):
                await launched(kube)
        assert not api.objects

    tell(story)


def test_another_one_in_its_place_is_not_released():
    async def story(api: Api) -> None:
        def fault(request):
            if request.method == "PATCH" and api.count_made("jobs") == 1:
                api._delete("jobs", api.all("jobs")[0], None)
                api._work()
                api.put("jobs", old(suspend=True))

        api.fault = fault
        async with api.kube() as kube:
            with pytest.raises(Vanished):
                await launched(kube)
        [job] = api.all("jobs")
        assert job["spec"]["suspend"] is True

    tell(story)


def test_what_must_be_there_first_is_owned_afterwards():
    async def story(api: Api) -> None:
        runtime = manifest("TrainingRuntime")
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=(), first=[runtime])
            again = await launched(kube, kind="TrainJob", companions=(), first=[runtime])
        assert [kind for kind, *_ in api.made] == ["trainingruntimes", "trainjobs"]
        assert again.uid == done.uid
        [item] = api.all("trainingruntimes")
        assert item["metadata"]["ownerReferences"][0]["uid"] == done.uid

    tell(story)


def test_what_must_be_there_first_goes_with_a_finished_workload_and_is_made_anew():
    async def story(api: Api) -> None:
        before = api.put("trainjobs", old("TrainJob"))
        reference = {"uid": before["metadata"]["uid"], "kind": "TrainJob"}
        api.put("trainingruntimes", manifest("TrainingRuntime"), ownerReferences=[reference])
        api.ends("trainjobs", NAME, "Complete")
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")])
        assert done.outcome == "recreated"
        [item] = api.all("trainingruntimes")
        assert [one["uid"] for one in item["metadata"]["ownerReferences"]] == [done.uid]

    tell(story)


def test_launch_s1_the_set_of_a_trainjob_that_is_gone_is_waited_for():
    async def story(api: Api) -> None:
        owner = {"kind": "TrainJob", "uid": "gone"}
        child = old("JobSet", suspend=True)
        api.put("jobsets", child, ownerReferences=[owner], finalizers=["example.com/hold"])
        async with api.kube() as kube:
            with pytest.raises(StillThere, match=r"jobset here/\S+ waits for finalizer example\.com/hold"):
                await launched(kube, kind="TrainJob", companions=(), wait_s=0.4)
            assert api.count_made("trainjobs") == 0
            api.change("jobsets", NAME, finalizers=[])
            done = await launched(kube, kind="TrainJob", companions=())
        assert done.outcome == "created"
        assert not api.all("jobsets")

    tell(story)


def test_a_trainjob_is_never_held_by_its_own_deletion():
    async def story(api: Api) -> None:
        api.put("trainjobs", old("TrainJob"), finalizers=["example.com/hold"])
        async with api.kube() as kube:
            with pytest.raises(StillThere):
                await launched(kube, kind="TrainJob", companions=(), replace=True, wait_s=0.4)
            assert await removed(kube, kind="TrainJob", wait_s=0) == "going"
        assert api.get("trainjobs", NAME)["metadata"]["finalizers"] == ["example.com/hold"]

    tell(story)


def test_a_refused_workload_takes_what_came_first_with_it():
    async def story(api: Api) -> None:
        api.refusals["POST", "trainjobs"] = Refusal(422, "no")
        async with api.kube() as kube:
            with pytest.raises(Invalid):
                await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")])
        assert not api.objects

    tell(story)


def _behind(tries: int) -> Callable[[web.Request], None]:
    """A webhook whose cache learns of the runtime with the request after so many."""
    left = [tries]
    words = (
        f'admission webhook denied the request: TrainingRuntime.example.com "{NAME}" not found: must be created first'
    )

    def look(request: web.Request) -> None:
        if request.method == "POST" and request.path.endswith("/trainjobs"):
            left[0] -= 1
            if left[0] >= 0:
                raise Refusal(403, words)

    return look


def test_a_webhook_that_does_not_see_the_runtime_yet_is_asked_again():
    async def story(api: Api) -> None:
        api.webhook = _behind(2)
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")])
        assert done.outcome == "created"
        assert [kind for kind, *_ in api.made] == ["trainingruntimes", "trainjobs"]

    tell(story)


def test_a_webhook_that_never_sees_the_runtime_is_told_and_nothing_is_left():
    async def story(api: Api) -> None:
        api.webhook = _behind(10_000)
        async with api.kube() as kube:
            with pytest.raises(Forbidden, match="must be created first"):
                await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")], wait_s=0.6)
        assert not api.objects

    tell(story)


def test_two_clients_with_one_request_make_one_job():
    async def story(api: Api) -> None:
        async with api.kube() as one, api.kube() as two, asyncio.TaskGroup() as group:
            tasks = [group.create_task(launched(kube)) for kube in (one, two)]
        assert len({task.result().uid for task in tasks}) == 1
        assert sorted(task.result().outcome for task in tasks) == ["adopted", "created"]
        whole(api)

    tell(story)


def test_the_winner_of_two_different_requests_keeps_the_name():
    async def story(api: Api) -> None:
        api.put("jobs", old())
        api.ends("jobs", NAME, "Failed")
        async with api.kube() as one, api.kube() as two:
            done = await asyncio.gather(launched(one), launched(two, request_token="ee" * 16), return_exceptions=True)
        assert sorted(type(result).__name__ for result in done) == ["Launched", "NameTaken"]
        [job] = api.all("jobs")
        assert job["metadata"]["uid"] in {getattr(result, "uid", None) for result in done}

    tell(story)


def test_a_workload_without_marks_is_a_mistake_of_the_caller():
    async def story(api: Api) -> None:
        bare = {**manifest("Job"), "metadata": {"name": NAME}}
        async with api.kube() as kube:
            with pytest.raises(ValueError, match=LABEL_RUN):
                await launch(kube, bare, (), resource=JOBS, request_token=TOKEN, hold=False, say=print)
        assert not api.seen

    tell(story)


def test_launch_s12_one_of_the_same_request_that_has_ended_is_left_as_it_is():
    async def story(api: Api) -> None:
        before = api.put("jobs", old(request=TOKEN))
        api.ends("jobs", NAME, "Complete")
        async with api.kube() as kube:
            done = await launched(kube, replace=True)
        assert (done.uid, done.outcome, done.requests) == (before["metadata"]["uid"], "adopted", 2)

    tell(story)


def test_what_somebody_else_made_in_the_place_of_a_removed_one_stays():
    async def story(api: Api) -> None:
        def fault(request):
            if request.method == "POST" and api.count_made("jobs") == 1 and not api.all("jobs"):
                api.put("jobs", old())

        api.put("jobs", old())
        api.fault = fault
        async with api.kube() as kube:
            with pytest.raises(NameTaken, match="another client created an object of this name meanwhile"):
                await launched(kube, replace=True)
        assert api.count_made("jobs") == 2
        assert len(api.all("jobs")) == 1

    tell(story)


def test_launch_s3_a_companion_that_does_not_go_is_named():
    async def story(api: Api) -> None:
        made = api.put("configmaps", manifest("ConfigMap"), finalizers=["example.com/hold"])
        api._delete("configmaps", made, None)
        async with api.kube() as kube:
            with pytest.raises(StillThere, match=r"configmap here/\S+ waits for finalizer example\.com/hold"):
                await launched(kube, wait_s=0.5)
        assert [kind for kind, _ in api.objects] == ["configmaps"]

    tell(story)


def test_an_old_one_that_cannot_be_seen_is_not_taken_for_gone():
    async def story(api: Api) -> None:
        api.put("jobs", old())
        api.fault = lambda request: 503 if request.path.endswith("/pods") else None
        async with api.kube() as kube:
            with pytest.raises(ServerError):
                await launched(kube, replace=True, wait_s=0.5)
        assert api.count_made("jobs") == 1

    tell(story)
