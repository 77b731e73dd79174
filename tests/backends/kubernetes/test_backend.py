"""What a backend does to a cluster, from the outside: held by its Lease before it makes anything, and nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.kubernetes.launch_server import Api, Refusal, serving
from backends.kubernetes.made import SERVED, compiled, slot_of, spec
from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.kubernetes.lifecycle.errors import NameTaken
from rankfall.backends.kubernetes.lifecycle.ownership import ANNOTATION_OWNER
from rankfall.backends.kubernetes.run_lease import NOTE_ATTEMPT
from rankfall.backends.plan import ClusterPlan, Plan
from rankfall.backends.protocol import Cancellation, HeldBy, SuspensionState
from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.errors import KubeError
from rankfall.kube.loop_thread import Abandoned, EventLoopThread
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.marks import read_stop
from support.patience import scaled


@pytest.fixture
def api() -> Iterator[Api]:
    """A server in a thread of its own, as a real one is in a process of its own."""
    ready = threading.Event()
    held: list[tuple[Api, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with serving() as made:
            over = asyncio.Event()
            held.append((made, asyncio.get_running_loop(), over))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(scaled(20))
    found, loop, over = held[0]
    yield found
    loop.call_soon_threadsafe(over.set)
    thread.join()


class Desk:
    """One run, and backends of it."""

    def __init__(self, folder: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.lost: list[str] = []
        self.backends: list[ClusterBackend] = []
        access = Access(context="c", cluster="k", user="u", namespace="here", endpoint=Endpoint(server="http://x"))
        monkeypatch.setattr("rankfall.backends.kubernetes.backend.access_of", lambda _: access)
        self.folder = folder
        self.run = self.made("home")

    def made(self, home: str, **options: object) -> RunDir:
        return RunDir.create(spec(inside="off"), home=self.folder / home, request_token="again", **options)  # type: ignore[arg-type]  # noqa: S106

    def backend(self) -> ClusterBackend:
        made = ClusterBackend()
        made._loop_thread = EventLoopThread(self.api.kube)
        self.backends.append(made)
        return made

    def plan(self, backend: ClusterBackend, run: RunDir, *, token: str = "t0k3n") -> Plan:  # noqa: S107
        job = run.spec
        made = compiled(job, run=run.id, token=token, served=SERVED, inside_zip=b"", namespace="here")
        backend._compiled[1] = made
        place = ClusterPlan(
            backend="job",
            object=made.names.object,
            namespace="here",
            context="c",
            selector=made.selector,
            container=made.container,
            token=token,
            bases={"worker": 0},
        )
        slot = slot_of(run)
        return Plan(attempt=1, launcher="plain", slots=(slot,), cluster=place)

    def hold(self, backend: ClusterBackend, run: RunDir) -> HeldBy | None:
        return backend.hold(run, attempts=0, lost=self.lost.append)

    @property
    def lease(self) -> dict[str, object] | None:
        return self.api.get("leases", self.run.id)


@pytest.fixture
def desk(tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path, api, monkeypatch)
    yield made
    for backend in made.backends:
        backend.release()


def test_a_run_is_held_before_it_makes_anything_and_leaves_nothing_behind(desk: Desk, api: Api) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    assert plan.cluster is not None
    assert backend.suspension_state(plan) is None
    assert desk.hold(backend, desk.run) is None
    assert backend.submit(plan) == (0,)
    assert backend.submit(plan) == ()
    assert api.made[0][0] == "leases"
    job = api.get("jobs", plan.cluster.object)
    assert job is not None
    assert "@" in job["metadata"]["annotations"][ANNOTATION_OWNER]
    lease = api.get("leases", desk.run.id)
    assert lease is not None
    assert lease["metadata"]["annotations"][NOTE_ATTEMPT] == "1"
    assert [one["uid"] for one in lease["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert backend.suspension_state(plan) == SuspensionState(state="free")
    assert backend.stop(plan, [0], grace=1, reason="x") == (0,)
    assert backend.suspension_state(plan) == SuspensionState(state="held")
    backend.clear(plan)
    assert backend.suspension_state(plan) == SuspensionState(state="gone")
    assert api.get("leases", desk.run.id) is not None
    backend.let_go(over=True)
    backend.let_go(over=True)
    assert api.objects == {}


def test_i19_p4_a_full_disk_delays_a_stop_and_does_not_end_the_supervision(
    desk: Desk, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    desk.hold(backend, desk.run)
    backend.submit(plan)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        for name in ("mark_stop", "give_up"):
            disk.setattr(f"rankfall.backends.kubernetes.backend.{name}", full)
        assert backend.stop(plan, [0], grace=1, reason="x") == ()
        assert backend.suspension_state(plan) == SuspensionState(state="free")
        assert backend.end(plan, [0], grace=1) == 0
        # A disk that stays full keeps nobody from stopping a job.
        disk.setattr("rankfall.backends.kubernetes.backend._UNMARKED_S", 0.0)
        assert backend.stop(plan, [0], grace=1, reason="x") == (0,)
    assert backend.stop(plan, [0], grace=1, reason="x") == (0,)
    stop = read_stop(desk.run.path, 1)
    assert stop is not None
    assert stop.reason == "x"


def test_without_the_lease_nothing_is_made_stopped_or_removed(
    desk: Desk, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    assert plan.cluster is not None
    desk.hold(backend, desk.run)
    lease = api.get("leases", desk.run.id)
    assert lease is not None
    lease["spec"]["holderIdentity"] = "bob@there pid 1 aa"
    api.change("leases", desk.run.id)
    with pytest.raises(KubeError, match="now belongs to bob@there"):
        backend.submit(plan)
    assert "bob@there" in desk.lost[0]
    assert api.count_made("jobs") == 0
    assert backend.stop(plan, [0], grace=1, reason="x") == ()
    assert read_stop(desk.run.path, 1) is None
    with pytest.raises(KubeError):
        backend.clear(plan)


def test_a_server_that_is_away_for_a_moment_is_waited_for_before_the_launch(desk: Desk, api: Api) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    desk.hold(backend, desk.run)
    api.faults = {api.number + 1: 503}
    said: list[str] = []
    backend.submit(plan, cancellation=Cancellation(say=said.append, over=lambda: False))
    assert api.count_made("jobs") == 1


def test_a_launch_that_is_not_wanted_any_more_ends_at_once(desk: Desk, api: Api) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    assert plan.cluster is not None
    body = backend._compiled[1].objects[0]
    api.put("jobs", {**body, "metadata": {**body["metadata"], "finalizers": ["x/y"]}})
    api._delete("jobs", api.objects["jobs", plan.cluster.object], None)
    said: list[str] = []
    with pytest.raises(Abandoned):
        backend.submit(plan, cancellation=Cancellation(say=said.append, over=lambda: bool(said)))
    assert "the removal of the earlier" in said[0]


def test_launch_s02_what_an_earlier_request_left_running_is_refused_with_owner_and_age_or_replaced(
    desk: Desk, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = desk.backend()
    plan = desk.plan(first, desk.run)
    assert plan.cluster is not None
    first.submit(plan)
    uid = api.objects["jobs", plan.cluster.object]["metadata"]["uid"]
    # Its directory is lost; the same request comes again.
    again = desk.made("wiped")
    assert again.id == desk.run.id
    second = desk.backend()
    with pytest.raises(NameTaken, match=r"launched by .*@.* old") as refused:
        second.submit(desk.plan(second, again, token="other"))  # noqa: S106
    assert refused.value.hint is not None
    assert "--replace" in refused.value.hint
    assert api.objects["jobs", plan.cluster.object]["metadata"]["uid"] == uid
    third = desk.backend()
    third.submit(desk.plan(third, desk.made("wiped-too", replace=True), token="other"))  # noqa: S106
    assert api.objects["jobs", plan.cluster.object]["metadata"]["uid"] != uid
    assert api.count_made("jobs") == 2


def test_what_cannot_be_seen_is_neither_held_nor_gone(desk: Desk, api: Api) -> None:
    backend = desk.backend()
    plan = desk.plan(backend, desk.run)
    backend.submit(plan)
    api.refusals["GET", "jobs"] = Refusal(403)
    assert backend.suspension_state(plan) is None
    assert plan.cluster is not None
    api.refusals.clear()
    api._delete("jobs", api.objects["jobs", plan.cluster.object], None)
    api._work()
    assert backend.suspension_state(plan) == SuspensionState(state="gone")
