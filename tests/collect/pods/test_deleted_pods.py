"""Pods that were deleted before the first query: slot, node and start come from the Events that outlive them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rankfall.collect.pods.known_pods import deleted_pods
from rankfall.kube.object_fields import COMPLETION_INDEX, JOBSET_JOB, JOBSET_ROLE, TRAINING_INDEX, TRAINING_TYPE
from rankfall.model.foreign import PodMarks
from rankfall.rundir.cluster.context_facts import WorkFact
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.cluster.pod_source import PodSource

AT = "2026-11-21T16:00:00Z"
INDEXED = PodMarks(index=COMPLETION_INDEX, sizes={"worker": 4}, containers={"worker": "train"})
SET = PodMarks(role=JOBSET_ROLE, index=COMPLETION_INDEX, outer=JOBSET_JOB, sizes={"ps-x": 1, "worker": 2})
REPLICAS = PodMarks(role=TRAINING_TYPE, index=TRAINING_INDEX, sizes={"master": 1, "worker": 2})


class Found:
    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items


class Server:
    """Lists Events by the UID or the name of their object."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.events = events
        self.asked: list[str] = []

    async def list(self, _resource, *, namespace, fields):
        assert namespace == "ml"
        self.asked.append(fields)
        field, _, value = fields.removeprefix("involvedObject.").partition("=")
        return Found([one for one in self.events if one["involvedObject"][field] == value])


def event(reason: str, message: str, *, kind: str, name: str, uid: str, at: str = AT) -> dict[str, Any]:
    about = {"kind": kind, "name": name, "uid": uid}
    stamps = {"firstTimestamp": at, "lastTimestamp": at}
    return {"metadata": {"uid": f"{reason}-{uid}-{message}"}, "reason": reason, "message": message, **stamps} | {
        "involvedObject": about
    }


def made(pod: str, *, by: str, kind: str = "Job") -> dict[str, Any]:
    return event("SuccessfulCreate", f"Created pod: {pod}", kind=kind, name=by, uid=f"uid-{by}")


def ran(pod: str, *, node: str, uid: str, at: str = AT) -> list[dict[str, Any]]:
    named = {"kind": "Pod", "name": pod, "uid": uid, "at": at}
    return [
        event("Scheduled", f"Successfully assigned ml/{pod} to {node}", **named),
        event("Started", "Started container train", **named),
    ]


def work(name: str, kind: str = "Job", uid: str = "") -> WorkFact:
    return WorkFact(seen_ns=1, uid=uid or f"uid-{name}", kind=kind, name=name)


def found(server: Server, *works: WorkFact, marks: PodMarks, bases: dict[str, int], known: tuple[PodFact, ...] = ()):
    source = PodSource(
        context="c", namespace="ml", selector="", container="", token="", bases=bases, marks=marks, object="bert"
    )
    return asyncio.run(deleted_pods(server, source, works=works, known=known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("maker", "pod", "marks", "bases", "slot"),
    [
        (work("bert"), "bert-2-x7k2p", INDEXED, {"worker": 0}, 2),
        (work("bert-worker-1"), "bert-worker-1-0-abcde", SET, {"ps-x": 0, "worker": 1}, 3),
        (work("bert-ps-x-0"), "bert-ps-x-0-0-abcde", SET, {"ps-x": 0, "worker": 1}, 0),
        (work("bert", "PyTorchJob"), "bert-worker-1", REPLICAS, {"master": 0, "worker": 1}, 2),
    ],
)
def test_a_deleted_pod_is_known_from_the_events_of_its_maker_and_its_own(maker, pod, marks, bases, slot):
    server = Server(made(pod, by=maker.name, kind=maker.kind), *ran(pod, node="n7", uid="u1"))
    (fact,) = found(server, maker, marks=marks, bases=bases)
    assert (fact.slot, fact.node, fact.uid, fact.name) == (slot, "n7", "u1", pod)
    assert fact.gone
    assert fact.began
    assert fact.created == AT


def test_a_pod_that_never_started_a_known_slot_and_a_namesakes_pod_are_told_apart():
    """An earlier job of this name was deleted too; one pod of this job waited, another is still there."""
    waited = event("FailedScheduling", "0/2 nodes", kind="Pod", name="bert-1-waits", uid="u1")
    old = event("SuccessfulCreate", "Created pod: bert-3-older", kind="Job", name="bert", uid="uid-before")
    server = Server(
        old,
        *ran("bert-3-older", node="n9", uid="u9"),
        made("bert-0-there", by="bert"),
        *ran("bert-0-there", node="n1", uid="u0"),
        made("bert-0-first", by="bert"),
        *ran("bert-0-first", node="n2", uid="u00"),
        made("bert-1-waits", by="bert"),
        waited,
        made("bert-2-silent", by="bert"),
    )
    known = (PodFact(seen_ns=1, name="bert-0-there", uid="u0", slot=0, node="n1"),)
    facts = found(server, work("bert"), marks=INDEXED, bases={"worker": 0}, known=known)
    assert [(fact.slot, fact.node, fact.began) for fact in facts] == [(1, None, False)]
    assert "involvedObject.name=bert-3-older" not in server.asked


def test_of_several_pods_of_one_slot_the_newest_counts():
    later = "2026-11-21T16:05:00Z"
    server = Server(
        made("bert-1-bbbbb", by="bert"),
        *ran("bert-1-bbbbb", node="n2", uid="u2", at=later),
        made("bert-1-aaaaa", by="bert"),
        *ran("bert-1-aaaaa", node="n1", uid="u1"),
    )
    facts = found(server, work("bert"), marks=INDEXED, bases={"worker": 0})
    assert [(fact.name, fact.node) for fact in facts] == [("bert-1-bbbbb", "n2")]
