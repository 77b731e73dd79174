"""The lease of a run: one supervisor among machines; the same directory is taken over at once, another one waits, an old copy is refused."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from backends.kubernetes.launch_server import Refusal, serving
from rankfall.backends.kubernetes.run_lease import NOTE_ATTEMPT, NOTE_PLACE, RunLease, place_of
from rankfall.kube.errors import Unreachable
from rankfall.kube.lease import LeaseLost
from rankfall.model import EvidenceLost, JobSpec
from rankfall.rundir import RunDir


class World:
    def __init__(self, folder, api, kube) -> None:
        self.api, self.kube = api, kube
        self.now = 1000.0
        self.lost: list[str] = []
        self.here = RunDir.create(JobSpec(command=("x",)), home=folder / "here")
        there = folder / "there" / "runs" / self.here.id
        shutil.copytree(self.here.path, there)
        self.there = RunDir(there)

    def hold(self, run_dir=None) -> RunLease:
        return RunLease(run_dir or self.here, namespace="here", lost=self.lost.append, clock=lambda: self.now)

    @property
    def lease(self):
        return self.api.get("leases", self.here.id)


@pytest.fixture
def tried(tmp_path):
    def run(story):
        async def told():
            async with serving() as api, api.kube() as kube:
                await story(World(tmp_path, api, kube))

        asyncio.run(told())

    return run


def test_a_copy_of_the_directory_waits_until_the_holder_was_silent_for_all_its_time(tried):
    async def story(w):
        first, second = w.hold(), w.hold(w.there)
        assert await first.step(w.kube, attempts=0) is None
        assert w.lease["metadata"]["labels"]["rankfall.dev/run"] == w.here.id
        other = await second.step(w.kube, attempts=0)
        assert other is not None
        assert " pid " in other.who
        assert not other.alive
        w.now += 29
        await first.write(w.kube)
        other = await second.step(w.kube, attempts=0)
        assert other is not None
        assert other.alive
        w.now += 29
        assert await second.step(w.kube, attempts=0) is not None
        w.now += 2
        assert await second.step(w.kube, attempts=0) is None
        assert not first.firm()
        with pytest.raises(LeaseLost):
            await first.write(w.kube)
        assert len(w.lost) == 1

    tried(story)


def test_the_same_directory_is_taken_over_at_once_and_its_own_notes_do_not_refuse_it(tried):
    async def story(w):
        killed = w.hold()
        await killed.step(w.kube, attempts=0)
        await killed.write(w.kube, notes={NOTE_ATTEMPT: "2"})
        assert await w.hold().step(w.kube, attempts=1) is None
        assert w.lease["spec"]["leaseTransitions"] == 1

    tried(story)


def test_a_copy_that_is_behind_is_refused_also_when_nobody_holds_the_run(tried):
    async def story(w):
        first = w.hold()
        await first.step(w.kube, attempts=0)
        job = w.api.put("jobs", {"metadata": {"name": "j"}, "spec": {"suspend": True}})["metadata"]["uid"]
        await first.write(w.kube, notes={NOTE_ATTEMPT: "2"}, owners=[{"uid": job, "kind": "Job", "name": "j"}])
        with pytest.raises(EvidenceLost, match="ends with attempt 1, but the run is at attempt 2, by "):
            await w.hold(w.there).step(w.kube, attempts=1)
        await first.let_go(w.kube, over=True)
        with pytest.raises(EvidenceLost, match="is an old copy"):
            await w.hold(w.there).step(w.kube, attempts=1)
        assert await w.hold(w.there).step(w.kube, attempts=2) is None
        # What goes with an object goes when it goes.
        w.api._delete("jobs", w.api.get("jobs", "j"), None)
        w.api._work()
        assert w.lease is None

    tried(story)


def test_a_run_that_left_nothing_leaves_no_lease_and_one_that_goes_on_leaves_a_free_one(tried):
    async def story(w):
        held = w.hold()
        await held.step(w.kube, attempts=0)
        await held.let_go(w.kube, over=False)
        assert "holderIdentity" not in w.lease["spec"]
        again = w.hold(w.there)
        assert await again.step(w.kube, attempts=0) is None
        await again.let_go(w.kube, over=True)
        assert w.lease is None
        await again.let_go(w.kube, over=True)
        w.api.refusals["DELETE", "leases"] = Refusal(403)
        more = w.hold()
        await more.step(w.kube, attempts=0)
        await more.let_go(w.kube, over=True)

    tried(story)


def test_it_is_renewed_through_failures_until_somebody_else_has_it(tried, monkeypatch):
    monkeypatch.setattr("rankfall.backends.kubernetes.run_lease.RENEW_S", 0.02)
    monkeypatch.setattr("rankfall.backends.kubernetes.run_lease._AGAIN_S", 0.02)

    async def story(w):
        held = w.hold()
        await held.step(w.kube, attempts=0)
        keeping = asyncio.create_task(held.keep(w.kube))
        refused, often = [], asyncio.Event()

        def refuse(request):
            refused.append(request.method)
            if len(refused) == 3:
                often.set()
            return 403

        w.api.fault = refuse
        await often.wait()
        w.api.fault = lambda _: None
        assert not keeping.done()
        w.api.change("leases", w.here.id)
        w.lease["spec"]["holderIdentity"] = "bob@there pid 1 aa"
        await keeping
        assert "bob@there" in w.lost[0]

    tried(story)


def test_launch_s51_credentials_that_are_gone_for_good_let_go_of_the_run_and_touch_nothing(tried, monkeypatch):
    monkeypatch.setattr("rankfall.backends.kubernetes.run_lease.RENEW_S", 0.02)
    monkeypatch.setattr("rankfall.backends.kubernetes.run_lease._AGAIN_S", 0.02)

    async def story(w):
        held = w.hold()
        await held.step(w.kube, attempts=0)
        answers = [401, 401, 503, 401, 401]
        often = asyncio.Event()

        def refuse(request):
            w.now += 600
            if not answers:
                often.set()
            # One 401 is answered with renewed credentials, so two are one refusal.
            return answers.pop(0) if answers else 401

        w.api.fault = refuse
        await held.keep(w.kube)
        assert often.is_set()
        assert "refused" in w.lost[0]
        assert f"rankfall attach {w.here.id}" in w.lost[0]
        assert [method for method, _ in w.api.seen if method == "DELETE"] == []

    tried(story)


def test_one_that_is_being_deleted_or_taken_just_now_is_asked_for_again(tried):
    async def story(w):
        w.api.put(
            "leases",
            {
                "metadata": {
                    "name": w.here.id,
                    "labels": {"rankfall.dev/run": w.here.id, "app.kubernetes.io/managed-by": "rankfall"},
                },
                "spec": {},
            },
            finalizers=["x/y"],
        )
        w.api._delete("leases", w.lease, None)
        assert await w.hold().step(w.kube, attempts=0) is not None
        del w.api.objects["leases", w.here.id]
        w.api.refusals["POST", "leases"] = Refusal(409, reason="AlreadyExists")
        other = await w.hold().step(w.kube, attempts=0)
        assert other is not None
        assert other.who == ""

    tried(story)


def test_what_cannot_be_renewed_is_said_to_whoever_wants_to_act(tried):
    async def story(w):
        held = w.hold()
        await held.step(w.kube, attempts=0)
        w.api.fault = lambda _: "before"
        with pytest.raises(Unreachable):
            await held.write(w.kube)
        assert w.lost == []

    tried(story)


def test_a_place_is_a_directory_of_one_boot_of_one_machine(tmp_path):
    assert place_of(tmp_path) == place_of(tmp_path)
    (tmp_path / "copy").mkdir()
    assert place_of(tmp_path / "copy") != place_of(tmp_path)
    # What cannot be told proves nothing.
    assert place_of(tmp_path / "nothing") != place_of(tmp_path / "nothing")
    assert NOTE_PLACE.startswith("rankfall.dev/")
