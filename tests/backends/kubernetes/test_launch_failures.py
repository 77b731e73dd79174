"""Whatever is cut, refused for a moment or killed on the way: the same call again ends with exactly one of everything."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.kubernetes.launch_server import Api
from backends.kubernetes.launch_stories import NAME, launched, manifest, old, tell, whole
from rankfall.backends.kubernetes.lifecycle.errors import StillThere
from rankfall.kube.errors import CredentialsError, KubeError, Unreachable
from support.patience import scaled

# Requests of an undisturbed launch: workload, config map, service, release.
PLAIN = range(1, 5)
# Of one over a finished job: create, look, delete, two looks at what is left (object, pods), then the plain ones.
OVER = range(1, 10)


async def killed(api: Api, **options) -> None:
    """A client that dies at the request whose fault says so; its connections go with it."""
    async with api.kube() as kube:
        launching = asyncio.create_task(launched(kube, **options))
        dying = asyncio.create_task(api.killed.wait())
        await asyncio.wait([launching, dying], return_when=asyncio.FIRST_COMPLETED)
        assert api.killed.is_set(), launching
        dying.cancel()
        launching.cancel()
        await asyncio.gather(launching, dying, return_exceptions=True)


@pytest.mark.parametrize("when", ["kill before", "kill after"])
@pytest.mark.parametrize("number", PLAIN)
def test_launch_s12_killed_at_each_request_and_started_again(number, when):
    async def story(api: Api) -> None:
        api.faults = {number: when}
        await killed(api)
        async with api.kube() as kube:
            done = await launched(kube)
        whole(api, uid=done.uid)
        assert [api.count_made(plural) for plural in ("jobs", "configmaps", "services", "pods")] == [1, 1, 1, 2]

    tell(story)


@pytest.mark.parametrize("when", ["kill before", "kill after"])
@pytest.mark.parametrize("number", OVER)
def test_launch_s12_killed_while_a_finished_one_is_removed_and_started_again(number, when):
    async def story(api: Api) -> None:
        before = api.put("jobs", old())
        api.put("services", manifest("Service"), ownerReferences=[{"uid": before["metadata"]["uid"]}])
        api.ends("jobs", NAME, "Failed")
        api.faults = {number: when}
        await killed(api)
        async with api.kube() as kube:
            done = await launched(kube)
        whole(api, uid=done.uid)
        assert done.uid != before["metadata"]["uid"]
        assert [api.count_made(plural) for plural in ("jobs", "configmaps", "services", "pods")] == [2, 1, 2, 4]

    tell(story)


def test_launch_s1_a_launch_over_a_finished_one_takes_so_many_requests():
    async def story(api: Api) -> None:
        api.put("jobs", old())
        api.ends("jobs", NAME, "Failed")
        async with api.kube() as kube:
            assert (await launched(kube)).requests == len(OVER)

    tell(story)


def test_launch_s1_killed_after_the_delete_the_next_one_still_waits_for_the_pods():
    async def story(api: Api) -> None:
        api.put("jobs", old())
        api.ends("jobs", NAME, "Failed")
        api.dead_nodes.add("n2")
        api.faults = {3: "kill after"}
        await killed(api)
        async with api.kube() as kube:
            with pytest.raises(StillThere, match="on node n2"):
                await launched(kube, wait_s=0.4)
            assert api.count_made("jobs") == 1
            api.dead_nodes.clear()
            await launched(kube)
        whole(api)

    tell(story)


@pytest.mark.parametrize("when", ["kill before", "kill after"])
@pytest.mark.parametrize("number", range(1, 6))
def test_launch_s12_killed_beside_a_runtime_and_started_again(number, when):
    async def story(api: Api) -> None:
        runtime = manifest("TrainingRuntime")
        options = {"kind": "TrainJob", "companions": (), "first": [runtime]}
        api.faults = {number: when}
        await killed(api, **options)
        async with api.kube() as kube:
            done = await launched(kube, **options)
        [job] = api.all("trainjobs")
        [item] = api.all("trainingruntimes")
        assert job["metadata"]["uid"] == done.uid == item["metadata"]["ownerReferences"][0]["uid"]
        assert job["spec"]["suspend"] is False
        assert [api.count_made(plural) for plural in ("trainjobs", "trainingruntimes")] == [1, 1]

    tell(story)


@pytest.mark.parametrize("fault", ["before", "after", 409, 410, 429, 500, 503])
@pytest.mark.parametrize("number", PLAIN)
def test_launch_s12_a_lost_or_refused_request_is_settled_in_the_same_call(number, fault):
    async def story(api: Api) -> None:
        api.faults = {number: fault}
        said: list[str] = []
        async with api.kube() as kube:
            done = await launched(kube, said)
        assert done.outcome == ("adopted" if (number, fault) == (1, "after") else "created")
        whole(api, uid=done.uid)
        assert [api.count_made(plural) for plural in ("jobs", "configmaps", "services", "pods")] == [1, 1, 1, 2]
        assert api.number <= 8

    tell(story)


@pytest.mark.parametrize("fault", ["before", "after", 409, 500])
@pytest.mark.parametrize("number", range(1, 7))
def test_launch_s12_a_lost_request_beside_a_runtime_is_settled_in_the_same_call(number, fault):
    async def story(api: Api) -> None:
        api.faults = {number: fault}
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")])
        [item] = api.all("trainingruntimes")
        assert [one["uid"] for one in item["metadata"]["ownerReferences"]] == [done.uid]
        assert [api.count_made(plural) for plural in ("trainjobs", "trainingruntimes")] == [1, 1]

    tell(story)


def test_a_runtime_that_vanishes_while_it_gets_its_owner_is_made_anew():
    async def story(api: Api) -> None:
        def fault(request):
            if request.method == "PATCH" and api.count_made("trainingruntimes") == 1:
                api._delete("trainingruntimes", api.all("trainingruntimes")[0], None)
                api._work()

        api.fault = fault
        async with api.kube() as kube:
            done = await launched(kube, kind="TrainJob", companions=(), first=[manifest("TrainingRuntime")])
        [item] = api.all("trainingruntimes")
        assert [one["uid"] for one in item["metadata"]["ownerReferences"]] == [done.uid]

    tell(story)


@pytest.mark.parametrize("number", PLAIN)
def test_a_401_that_stays_is_told_as_what_it_is_and_the_next_call_goes_on(number):
    async def story(api: Api) -> None:
        api.faults = {number: 401, number + 1: 401}
        async with api.kube() as kube:
            with pytest.raises(CredentialsError, match="401"):
                await launched(kube)
            done = await launched(kube)
        whole(api, uid=done.uid)
        assert api.count_made("jobs") == 1

    tell(story)


def test_a_server_that_stays_away_is_waited_for_as_long_as_was_said():
    async def story(api: Api) -> None:
        api.fault = lambda request: "before"
        said: list[str] = []
        async with api.kube() as kube:
            with pytest.raises(Unreachable):
                await launched(kube, said, wait_s=0.5)
        assert "checking whether the request took effect" in said[0]

    tell(story)


FAULTS = st.sampled_from(["before", "after", "kill before", "kill after", 401, 409, 410, 429, 500, 503])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    faults=st.dictionaries(st.integers(1, 25), FAULTS, max_size=8),
    before=st.sampled_from(["nothing", "finished", "same"]),
)
def test_launch_s12_any_sequence_of_failures_ends_with_one_of_everything(faults, before):
    async def story(api: Api) -> None:
        if before == "finished":
            api.put("jobs", old())
            api.ends("jobs", NAME, "Failed")
        elif before == "same":
            async with api.kube() as kube:
                await launched(kube)
            api.number = 0
        # Each answer of 429 costs a second; more of them prove nothing more.
        busy = [number for number, fault in faults.items() if fault == 429]
        api.faults = {number: fault for number, fault in faults.items() if number not in busy[1:]}
        made = len([kind for kind, *_ in api.made if kind == "jobs"])
        for _ in range(len(faults) + 1):
            api.killed.clear()
            try:
                async with asyncio.timeout(scaled(30)):
                    await attempt(api)
                break
            except (KubeError, Killed):
                continue
        else:
            pytest.fail("never done")
        whole(api)
        assert api.count_made("jobs") == made + (before != "same")

    tell(story)


class Killed(Exception):
    pass


async def attempt(api: Api) -> None:
    async with api.kube() as kube:
        launching = asyncio.create_task(launched(kube))
        dying = asyncio.create_task(api.killed.wait())
        try:
            await asyncio.wait([launching, dying], return_when=asyncio.FIRST_COMPLETED)
            if not launching.done():
                raise Killed
            launching.result()
        finally:
            launching.cancel()
            dying.cancel()
            await asyncio.gather(launching, dying, return_exceptions=True)
