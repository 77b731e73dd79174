"""The follower of Events, nodes and workloads: what is this attempt's is written down, and what may not be read is said."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from rankfall.collect.pods import cluster_context
from rankfall.collect.pods.cluster_context import ContextCollector
from rankfall.kube.errors import Forbidden, KubeError, Unreachable
from rankfall.kube.resources import EVENTS, JOBS, JOBSETS, NODES
from rankfall.kube.watch.watcher import Event
from rankfall.rundir.cluster.context_facts import EventFact, NodeFact, Unseen, WorkFact
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.layout import context_path
from support.feeding import CHANNEL, until


class Found:
    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items


class Server:
    """Objects by resource, what is refused, and watches that never end."""

    def __init__(self) -> None:
        self.objects: dict[Any, list[dict[str, Any]]] = {}
        self.refused: dict[Any, KubeError] = {}
        self.asked: list[tuple[str, str]] = []
        self.later: asyncio.Queue[tuple[Any, Event]] = asyncio.Queue()

    def fitting(self, resource: Any, fields: str | None) -> list[dict[str, Any]]:
        self.asked.append((resource.plural, fields or ""))
        if resource in self.refused:
            raise self.refused[resource]
        name = (fields or "").partition("metadata.name=")[2]
        return [item for item in self.objects.get(resource, ()) if not name or item["metadata"]["name"] == name]

    async def list(self, resource, *, namespace=None, labels=None, fields=None):
        del namespace, labels
        return Found(self.fitting(resource, fields))

    async def watch(self, _, resource, *, namespace=None, labels=None, fields=None, keep=None):
        del namespace, labels
        for item in self.fitting(resource, fields):
            assert keep(item)
            yield Event("listed", item)
        yield Event("bookmark", {"metadata": {}})
        await asyncio.Event().wait()


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": {"nodeInfo": {"bootID": "b"}}}


def event(uid: str, *, kind: str, name: str, about: str) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": uid},
        "involvedObject": {"kind": kind, "name": name, "uid": about},
        "reason": "Words",
    }


class Scene:
    def __init__(self, run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server()
        self.pods = [PodFact(seen_ns=1, name="job-0", uid="u0", slot=0, node="n1")]
        self.full: list[OSError] = []
        monkeypatch.setattr(cluster_context, "watch", self.server.watch)
        for name in ("REFUSED_S", "AGAIN_S", "POLL_INTERVAL_S"):
            monkeypatch.setattr(cluster_context, name, 0.01)
        self.path = context_path(run, 1)
        self.push = self.made()

    def made(self, backend: str = "trainjob") -> ContextCollector:
        source = PodSource(
            context="c",
            namespace="here",
            selector="a=b",
            container="main",
            token=CHANNEL,
            bases={"worker": 0},
            backend=backend,
            object="job",
        )
        return ContextCollector(
            self.server,  # type: ignore[arg-type]
            path=self.path,
            source=source,
            pods=lambda: self.pods,
            full=self.full.append,
        )

    def held(self, kind: type) -> list[Any]:
        return [fact for fact in self.push._file.newest.values() if isinstance(fact, kind)]

    async def follow(self, *conditions) -> None:
        task = asyncio.create_task(self.push.run())
        try:
            for true, what in conditions:
                await until(true, what)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def scene(tmp_path, monkeypatch):
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.push.close()


def test_what_is_of_the_attempt_is_kept_and_nothing_else(scene):
    scene.server.objects = {
        EVENTS: [
            event("a", kind="Pod", name="job-0", about="u0"),
            event("b", kind="Pod", name="other", about="x"),
            event("c", kind="Job", name="job-worker-0", about="y"),
            event("d", kind="Job", name="another", about="z"),
            event("e", kind="Node", name="n1", about="n1"),
            event("f", kind="Node", name="n7", about="n7"),
        ],
        NODES: [node("n1"), node("n2")],
        JOBSETS: [{"metadata": {"name": "job", "uid": "s"}, "spec": {"suspend": True}}],
        JOBS: [{"metadata": {"name": "job-worker-0", "uid": "j"}}],
    }

    async def story() -> None:
        await scene.follow(
            (lambda: {e.uid for e in scene.held(EventFact)} == {"a", "c", "e"}, "Events"),
            (lambda: [n.name for n in scene.held(NodeFact)] == ["n1"], "nodes"),
            (lambda: len(scene.held(WorkFact)) == 2, "workloads"),
        )

    asyncio.run(story())
    assert scene.held(Unseen) == []
    assert ("nodes", "metadata.name=n1") in scene.server.asked
    # Taken up by the next process, and nothing written twice.
    size = scene.path.stat().st_size
    again = scene.made()
    asyncio.run(again.take())
    again.close()
    assert scene.path.stat().st_size == size


def test_an_event_that_comes_before_its_pod_is_joined_to_it_later(scene):
    scene.server.objects = {EVENTS: [event("b", kind="Pod", name="job-1", about="u1")]}

    async def story() -> None:
        asked = lambda: any(plural == "events" for plural, _ in scene.server.asked)  # noqa: E731
        await scene.follow(
            (asked, "a watch"),
            (lambda: bool(scene.push._strange), "a stranger"),
            (lambda: scene.pods.append(PodFact(seen_ns=1, name="job-1", uid="u1", slot=1)) or True, "the pod"),
            (lambda: [e.uid for e in scene.held(EventFact)] == ["b"], "its Event"),
        )

    asyncio.run(story())


def test_many_nodes_are_watched_together(scene, monkeypatch):
    monkeypatch.setattr(cluster_context, "MAX_NODE_WATCHES", 2)
    scene.pods += [PodFact(seen_ns=1, name=f"job-{n}", uid=f"u{n}", slot=n, node=f"n{n}") for n in range(2, 6)]
    scene.server.objects = {NODES: [node(f"n{n}") for n in range(1, 9)]}

    async def story() -> None:
        await scene.follow((lambda: len(scene.held(NodeFact)) == 5, "nodes"))
        # A pod that comes to one of the others needs no further request.
        scene.pods.append(PodFact(seen_ns=1, name="job-8", uid="u8", slot=8, node="n8"))
        scene.push.settle()

    asyncio.run(story())
    assert scene.server.asked.count(("nodes", "")) == 1
    assert len(scene.held(NodeFact)) == 6
    asyncio.run(scene.push.take())


def test_what_is_refused_is_written_down_and_asked_for_again(scene):
    scene.server.refused = {
        NODES: Forbidden("no", status=403, reason="Forbidden"),
        EVENTS: Unreachable("the server is away"),
    }
    scene.server.objects = {NODES: [node("n1")]}

    async def story() -> None:
        await scene.follow(
            (lambda: len(scene.held(Unseen)) == 2, "notes"),
            (lambda: scene.server.refused.clear() or True, "rights"),
            (lambda: all(note.over for note in scene.held(Unseen)), "the end of both"),
            (lambda: scene.held(NodeFact), "the node"),
        )

    asyncio.run(story())
    assert {note.text for note in scene.held(Unseen)} == {
        "the states of the nodes: the right to list and watch nodes is missing",
        "Kubernetes Events of the pods: the server is away",
    }
    scene.server.refused = {NODES: Forbidden("no", status=403, reason="Forbidden")}
    asyncio.run(scene.push.take())
    assert [note.over for note in scene.held(Unseen) if "nodes" in note.text] == [False]


def test_what_nobody_foresaw_of_one_kind_stops_no_other(scene):
    scene.server.objects = {EVENTS: [event("a", kind="Pod", name="job-0", about="u0")], NODES: [{"metadata": None}]}

    async def story() -> None:
        await scene.follow(
            (lambda: scene.held(Unseen), "a note"), (lambda: scene.held(EventFact), "the Events all the same")
        )

    asyncio.run(story())


def test_events_beyond_the_bound_are_counted_out_and_a_full_disk_is_told(scene, monkeypatch):
    monkeypatch.setattr(cluster_context, "MOST_EVENTS", 1)
    monkeypatch.setattr(cluster_context, "_MOST_STRANGE", 1)
    scene.server.objects = {
        EVENTS: [event(str(n), kind="Pod", name="job-0", about="u0") for n in range(3)]
        + [event(f"s{n}", kind="Pod", name="other", about="x") for n in range(3)]
    }
    asyncio.run(scene.push.take())
    assert len(scene.held(EventFact)) == 1
    assert "beyond the first 1" in scene.held(Unseen)[0].text
    assert list(scene.push._strange) == ["s2"]

    def refuse(_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene.push._file, "add", refuse)
    scene.server.objects[NODES] = [node("n1")]
    asyncio.run(scene.push.take())
    assert scene.full


def test_of_a_workload_that_vanished_unseen_its_last_state_is_kept(scene):
    take = scene.push._work(JOBS)
    take({"metadata": {"name": "job", "uid": "j"}, "spec": {"suspend": True}}, False)
    take({"metadata": {"name": "job", "uid": "j"}}, True)
    (fact,) = scene.held(WorkFact)
    assert (fact.gone, fact.suspend) == (True, True)
