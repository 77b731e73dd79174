"""Removal: by UID, what is ours alone, and three answers."""

from __future__ import annotations

import asyncio

import pytest

from backends.kubernetes.launch_server import Api, Refusal
from backends.kubernetes.launch_stories import COMPANIONS, NAME, Told, launched, manifest, old, removed, tell
from rankfall.backends.kubernetes.lifecycle import wait_gone
from rankfall.backends.kubernetes.lifecycle.errors import NameTaken
from rankfall.kube.errors import Forbidden


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
@pytest.mark.parametrize("known", [True, False])
def test_launch_s42_object_children_and_pods_are_gone(kind, known):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            companions = COMPANIONS if kind == "Job" else COMPANIONS[:1]
            done = await launched(kube, kind=kind, companions=companions)
            assert len(api.all("pods")) == 2
            assert await removed(kube, kind=kind, uid=done.uid if known else None) == "gone"
            assert not api.objects
            assert await removed(kube, kind=kind, uid=done.uid if known else None) == "gone"

    tell(story)


def test_launch_s42_without_waiting_it_is_ordered_and_one_look_is_taken():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n2")
            said: list[str] = []
            assert await removed(kube, said, uid=done.uid, wait_s=0) == "going"
        assert api.get("jobs", NAME) is None
        assert f"removing job here/{NAME}" in said[-1]

    tell(story)


def test_launch_s42_a_pod_on_a_dead_node_is_still_going_and_named():
    async def story(api: Api) -> None:
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
        api.put("nodes", {"metadata": {"name": "n2"}, "status": {"conditions": [ready]}})
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n2")
            assert await removed(kube, said, uid=done.uid, wait_s=0.4) == "going"
        [pod] = api.all("pods")
        assert f"pod here/{pod['metadata']['name']} on node n2 should have ended" in said[-1]
        assert "the node has not been ready since" in said[-1]
        assert "bring node n2 back, or, once it is certain that the machine is off: kubectl delete pod" in said[-1]

    tell(story)


def test_a_node_that_is_gone_is_told():
    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n1")
            assert await removed(kube, said, uid=done.uid, wait_s=0) == "going"
        assert "(the node no longer exists)" in said[-1]

    tell(story)


def test_the_wait_ends_when_the_last_pod_goes():
    async def story(api: Api) -> None:
        said = Told()
        async with api.kube() as kube:
            done = await launched(kube, kind="JobSet", companions=())
            api.dead_nodes.add("n2")
            async with asyncio.TaskGroup() as group:
                going = group.create_task(removed(kube, said, kind="JobSet", uid=done.uid))
                await said.first.wait()
                # The set itself stays until everything below it is gone.
                assert {kind for kind, _ in api.objects} == {"jobsets", "jobs", "pods"}
                api.dead_nodes.clear()
                api._work()
                await api.wake()
            assert going.result() == "gone"
        assert not api.objects

    tell(story)


def test_launch_s42_a_server_that_cannot_be_asked_leaves_it_unknown():
    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube)
            api.fault = lambda request: 503
            assert await removed(kube, said, uid=done.uid, wait_s=0.3) == "unknown"
            assert "cannot find out whether" in said[-1]
            api.fault = lambda request: 503 if request.method == "GET" else None
            assert await removed(kube, said, uid=done.uid, wait_s=0.3) == "unknown"
            assert "cannot find out whether" in said[-1]
        assert api.get("jobs", NAME) is None

    tell(story)


def test_a_server_that_fails_during_the_wait_leaves_it_unknown():
    async def story(api: Api) -> None:
        said = Told()
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n2")
            api.fault = lambda request: "before" if said.first.is_set() else None
            assert await removed(kube, said, uid=done.uid, wait_s=1.0) == "unknown"
        assert "cannot find out whether" in said[-1]

    tell(story)


@pytest.mark.parametrize("fault", ["before", "after", 409, 429, 500])
def test_a_lost_or_refused_order_is_settled(fault):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube)
            api.faults = {api.number + 1: fault}
            assert await removed(kube, uid=done.uid) == "gone"
        assert not api.objects

    tell(story)


def test_another_object_of_the_name_stays():
    async def story(api: Api) -> None:
        theirs = api.put("jobs", {"metadata": {"name": NAME, "labels": {"a": "b"}}, "spec": {"suspend": True}})
        async with api.kube() as kube:
            assert await removed(kube, uid="some-older-uid") == "gone"
            with pytest.raises(NameTaken, match="not of this run"):
                await removed(kube)
        assert api.all("jobs") == [theirs]

    tell(story)


def test_an_object_of_another_run_stays():
    async def story(api: Api) -> None:
        theirs = api.put("jobs", old(run="other-0a1b2c"))
        async with api.kube() as kube:
            with pytest.raises(NameTaken, match="run other-0a1b2c"):
                await removed(kube)
        assert api.all("jobs") == [theirs]

    tell(story)


def test_the_services_of_others_are_not_waited_for():
    async def story(api: Api) -> None:
        api.put("services", manifest("Service"))
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=())
            assert await removed(kube, kind="TrainJob", uid=done.uid) == "gone"
        assert [kind for kind, _ in api.objects] == ["services"]

    tell(story)


@pytest.mark.parametrize("plural", ["jobs", "services"])
def test_who_may_not_see_the_children_goes_on_without(plural):
    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube, kind="JobSet", companions=())
            api.refusals["GET", plural] = Refusal(403, f"may not list {plural}")
            assert await removed(kube, said, kind="JobSet", uid=done.uid) == "gone"
        assert said == [line for line in said if "continuing without this information" in line]
        assert said

    tell(story)


@pytest.mark.parametrize(("method", "plural"), [("DELETE", "jobs"), ("GET", "pods")])
def test_a_missing_right_is_told_and_not_waited_for(method, plural):
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube)
            api.refusals[method, plural] = Refusal(403, "you may not")
            with pytest.raises(Forbidden, match="you may not"):
                await removed(kube, uid=done.uid)

    tell(story)


def test_only_so_many_are_named():
    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube)
            for number in range(5):
                labels = dict(manifest("Job")["metadata"]["labels"])
                api.put("pods", {"metadata": {"name": f"p{number}", "labels": labels}, "spec": {}})
            assert await removed(kube, said, uid=done.uid, wait_s=0) == "going"
        assert said[-1].endswith("is not being deleted yet; 2 more")
        assert "pod here/p0 on no node" in said[-1]

    tell(story)


def pod(name: str, **meta: object) -> dict[str, object]:
    labels = manifest("Job")["metadata"]["labels"]
    return {"metadata": {"name": name, "labels": labels, **meta}, "spec": {"nodeName": "n1"}}


@pytest.mark.parametrize("known", [True, False])
def test_a_pod_with_a_finalizer_on_a_good_node_is_named_without_a_word_against_the_node(known):
    async def story(api: Api) -> None:
        if known:
            ready = {"type": "Ready", "status": "True"}
            api.put("nodes", {"metadata": {"name": "n1"}, "status": {"conditions": [ready]}})
        else:
            api.refusals["GET", "nodes"] = Refusal(403)
        stamp = "2999-01-01T00:00:00Z"
        api.put("pods", pod("p", finalizers=["example.com/keep"], deletionTimestamp=stamp))
        said: list[str] = []
        async with api.kube() as kube:
            assert await removed(kube, said, wait_s=0) == "going"
        assert said[-1].endswith("pod here/p on node n1 is ending, with finalizer example.com/keep")

    tell(story)


def test_a_stamp_that_cannot_be_read_is_not_past():
    async def story(api: Api) -> None:
        api.put("pods", pod("p", finalizers=["example.com/keep"], deletionTimestamp="soon"))
        said: list[str] = []
        async with api.kube() as kube:
            assert await removed(kube, said, wait_s=0) == "going"
        assert "is ending" in said[-1]

    tell(story)


def test_a_kind_that_is_no_longer_served_has_no_objects():
    async def story(api: Api) -> None:
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=())
            api.refusals["GET", "jobsets"] = Refusal(404, "the server could not find the requested resource")
            assert await removed(kube, kind="TrainJob", uid=done.uid) == "gone"

    tell(story)


def test_a_server_that_says_nothing_leaves_it_unknown(monkeypatch):
    monkeypatch.setattr(wait_gone, "_LOOK_S", 0.2)

    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            api.fault = lambda request: "kill before" if request.path.endswith("/pods") else None
            assert await removed(kube, said, uid="u", wait_s=0) == "unknown"
        assert "no answer in time" in said[-1]

    tell(story)


def test_who_may_list_the_children_and_not_watch_them_goes_on_without():
    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube, kind="JobSet", companions=())
            api.dead_nodes.add("n2")
            api.fault = lambda request: 403 if request.query.get("watch") and request.path.endswith("/jobs") else None
            assert await removed(kube, said, kind="JobSet", uid=done.uid, wait_s=0.5) == "going"
        assert any("continuing without this information" in line for line in said)

    tell(story)


def test_a_long_wait_is_told_again_and_again(monkeypatch):
    monkeypatch.setattr(wait_gone, "_TELL_S", 0.05)

    async def story(api: Api) -> None:
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n2")
            assert await removed(kube, said, uid=done.uid, wait_s=0.5) == "going"
        assert len(said) > 3

    tell(story)


def test_trouble_on_the_way_passes():
    async def story(api: Api) -> None:
        said = Told()
        async with api.kube() as kube:
            done = await launched(kube)
            api.dead_nodes.add("n2")
            once = []

            def fault(request):
                if request.query.get("watch") and not once:
                    once.append(request)
                    return 503
                return None

            api.fault = fault
            async with asyncio.TaskGroup() as group:
                going = group.create_task(removed(kube, said, uid=done.uid))
                while not once:
                    await asyncio.wait([going], timeout=0.05)
                api.dead_nodes.clear()
                api._work()
                await api.wake()
            assert going.result() == "gone"
        assert any("trying again" in line for line in said)

    tell(story)
