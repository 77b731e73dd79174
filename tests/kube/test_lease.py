"""A Lease: at most one holder, whatever fails on the way; taken over only from one that was silent for all its time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kubernetes.launch_server import Api, Refusal, serving
from rankfall.kube.errors import Forbidden, KubeError, ObjectNotFound, Unreachable
from rankfall.kube.lease import HolderIdle, LeaseLock, LeaseLost, LeaseRecord, boot_clock, stamp

LABELS = {"run": "job-1"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lock(holder: str = "a", clock: Clock | None = None, **options) -> LeaseLock:
    options = {"labels": LABELS, "notes": {"by": holder}, "clock": clock or Clock(), **options}
    return LeaseLock("job-1", namespace="here", holder=holder, **options)


def tried(story):
    async def run():
        async with serving() as api, api.kube() as kube:
            await story(api, kube)

    asyncio.run(run())


def of(api: Api):
    return api.get("leases", "job-1")


def test_made_renewed_and_given_back():
    async def story(api, kube):
        clock = Clock()
        mine = lock(clock=clock)
        assert not mine.firm()
        assert await mine.take(kube, await mine.look(kube))
        assert mine.firm()
        assert of(api)["spec"]["holderIdentity"] == "a"
        assert (of(api)["metadata"]["labels"], of(api)["spec"]["leaseTransitions"]) == (LABELS, 0)
        clock.now += 21
        assert not mine.firm()
        job = api.put("jobs", {"metadata": {"name": "j"}, "spec": {"suspend": True}})["metadata"]["uid"]
        await mine.renew(kube, notes={"attempt": "2"}, owners=[{"uid": job, "kind": "Job", "name": "j"}])
        assert mine.firm()
        assert of(api)["metadata"]["annotations"] == {"by": "a", "attempt": "2"}
        assert mine.record is not None
        assert mine.record.owners == (job,)
        await mine.give_back(kube)
        assert not mine.firm()
        assert "holderIdentity" not in of(api)["spec"]
        await mine.give_back(kube)
        await mine.remove(kube)
        assert of(api) is not None

    tried(story)


def test_of_two_that_reach_for_it_one_is_refused():
    async def story(api, kube):
        one, two = lock("a"), lock("b")
        assert await one.look(kube) is None
        assert await one.take(kube, None)
        assert not await two.take(kube, None)
        found = await two.look(kube)
        assert found is not None
        # Both have seen the same record; the version lets one of them through.
        await one.renew(kube)
        assert not await two.take(kube, found)
        assert of(api)["spec"]["holderIdentity"] == "a"
        assert await two.take(kube, await two.look(kube))
        assert of(api)["spec"]["leaseTransitions"] == 1
        with pytest.raises(LeaseLost, match="now belongs to b"):
            await one.renew(kube)
        assert not one.firm()
        with pytest.raises(LeaseLost):
            await one.renew(kube)
        await one.give_back(kube)
        await one.remove(kube)
        assert of(api)["spec"]["holderIdentity"] == "b"
        await two.remove(kube)
        assert of(api) is None

    tried(story)


def test_labels_of_others_do_not_cost_the_lease_and_its_deletion_makes_it_anew():
    async def story(api, kube):
        mine = lock()
        await mine.take(kube, None)
        api.change("leases", "job-1", labels={**LABELS, "more": "1"})
        await mine.renew(kube)
        assert mine.firm()
        del api.objects["leases", "job-1"]
        await mine.renew(kube)
        assert of(api)["spec"]["holderIdentity"] == "a"
        del api.objects["leases", "job-1"]
        await lock("b").take(kube, None)
        with pytest.raises(LeaseLost, match="now belongs to b"):
            await mine.renew(kube)

    tried(story)


def test_a_lost_answer_is_found_again_and_counts_as_no_other_holder():
    async def story(api, kube):
        api.faults = {1: "after"}
        mine = lock()
        with pytest.raises(KubeError):
            await mine.take(kube, None)
        found = await mine.look(kube)
        assert found is not None
        assert found.holder == "a"
        assert await mine.take(kube, found)
        assert of(api)["spec"]["leaseTransitions"] == 0
        api.faults = {api.number + 1: "after"}
        with pytest.raises(KubeError):
            await mine.renew(kube)
        await mine.renew(kube)
        assert mine.firm()

    tried(story)


def test_a_server_that_does_not_answer_in_time_is_no_answer(monkeypatch):
    monkeypatch.setattr("rankfall.kube.lease._ANSWER", 0.05 / 30)

    async def story(api, kube):
        api.faults = {1: "kill before"}
        with pytest.raises(Unreachable, match="no answer"):
            await lock().look(kube)

    tried(story)


def test_what_does_not_bear_our_marks_is_left_alone_and_a_missing_namespace_is_said():
    async def story(api, kube):
        await lock("x", labels={"run": "another"}).take(kube, None)
        with pytest.raises(LeaseLost, match="not of this run"):
            await lock().look(kube)
        api.refusals["POST", "leases"] = Refusal(404, "namespaces here not found")
        with pytest.raises(ObjectNotFound):
            await lock().take(kube, None)
        api.refusals["POST", "leases"] = Refusal(403)
        with pytest.raises(Forbidden):
            await lock().take(kube, None)

    tried(story)


def test_one_that_changes_all_the_time_is_not_lost():
    async def story(api, kube):
        mine = lock()
        await mine.take(kube, None)
        api.refusals["PATCH", "leases"] = Refusal(409)
        with pytest.raises(Unreachable, match="changes faster"):
            await mine.renew(kube)
        assert mine.firm()

    tried(story)


def record(**fields) -> LeaseRecord:
    return LeaseRecord(**{"uid": "u", "version": "1", "holder": "a", "renewed": "t1", "duration_s": 30.0, **fields})


def test_silence_is_measured_by_our_own_clock_and_by_changes_only():
    seen = HolderIdle()
    assert not seen.see(record(), now=0)
    assert not seen.see(record(version="2", labels={"x": "y"}), now=29)
    assert seen.see(record(version="2"), now=30)
    assert not seen.moved
    assert not seen.see(record(renewed="t2"), now=40)
    assert seen.moved
    assert not seen.see(record(renewed="t0"), now=69)
    assert seen.see(record(holder=""), now=69)


def test_another_holder_is_no_sign_of_life_of_the_first():
    seen = HolderIdle()
    seen.see(record(), now=0)
    assert not seen.see(record(holder="b"), now=50)
    assert not seen.moved


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "metadata",
                        "spec",
                        "uid",
                        "labels",
                        "annotations",
                        "ownerReferences",
                        "leaseDurationSeconds",
                        "leaseTransitions",
                        "holderIdentity",
                    ]
                ),
                x,
            )
        ),
    )
)
def test_no_object_breaks_the_reader(found):
    made = LeaseRecord.of(found if isinstance(found, dict) else {"metadata": found, "spec": found})
    assert 0 < made.duration_s <= 3600
    assert made.transitions >= 0


def test_stamps_are_microseconds_and_the_clock_counts_sleep():
    assert stamp(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert boot_clock() > 0
