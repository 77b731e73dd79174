"""When a node is told that it felled an attempt, and how long the next one waits for what becomes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rankfall.backends.local.backend import LocalBackend
from rankfall.model import Cause, Diagnosis, InfrastructureError, Verdict
from rankfall.model.node_health.run_verdicts import NodeAnswer
from rankfall.supervisor.platform_reports import NodeReporter

VERDICT = Verdict(
    run="train-1a2b3c",
    attempt=1,
    state="failed",
    cause=Cause.of("gpu_ecc", confidence="proven"),
    node="n2",
    node_action="taint",
)


class Nodes(LocalBackend):
    """A backend that knows nodes: says what it is told to."""

    def __init__(self, *answers: NodeAnswer | Exception, problem: str | None = None) -> None:
        super().__init__()
        self.answers, self.problem = list(answers), problem
        self.told: list[tuple[int, str, str]] = []

    def report_node(self, plan: Any, node: str, verdict: Any) -> str | None:
        self.told.append((plan.attempt, node, verdict.id))
        return self.problem

    def answered(self, plan: Any, node: str, verdict: Any) -> NodeAnswer:
        del plan, node, verdict
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found


class Scene:
    def __init__(self, backend: LocalBackend, *, verdict: Verdict = VERDICT, answer_s: float = 60.0) -> None:
        self.said: list[tuple[str, str]] = []
        self.states: list[tuple[str, str]] = []
        self.looks = 0
        self.wished = False
        self.plan: Any = SimpleNamespace(attempt=1)
        self.diagnosis = Diagnosis(verdict=verdict, fingerprint="gpu_ecc:x")
        stub: Any = SimpleNamespace
        self.blame = NodeReporter(
            backend,
            run_store=stub(set_run=lambda state, *, reason, at: self.states.append((state, reason)) if at else None),
            events=stub(say=lambda kind, text, *, at, **_: self.said.append((kind, text)) if at else None),
            control=stub(wait=self._wait),
            over=lambda: self.wished,
            answer_s=answer_s,
        )

    def _wait(self, seconds: float) -> None:
        assert seconds > 0
        self.looks += 1

    def go(self) -> None:
        for _ in range(2):
            self.blame.tell(self.plan, self.diagnosis)
        self.blame.heard(self.plan, self.diagnosis)


def test_the_next_attempt_waits_until_the_taint_is_there():
    waiting = NodeAnswer(state="waiting")
    backend = Nodes(waiting, InfrastructureError("away"), waiting, NodeAnswer(state="tainted", text="Quarantined: x"))
    scene = Scene(backend)
    scene.go()
    assert backend.told == [(1, "n2", "verdict:train-1a2b3c:1")]
    assert scene.looks == 3
    assert [kind for kind, _ in scene.said] == ["blamed", "waiting", "blamed"]
    assert "node n2: the controller of node health keeps new pods off it: Quarantined: x" in scene.said[-1][1]
    assert scene.states == [("restarting", scene.said[1][1])]
    assert (
        "attempt 2 waits until the controller of node health handles the report that node n2 caused the failure of attempt 1"
        in scene.said[1][1]
    )


@pytest.mark.parametrize(
    ("answer", "words"), [("held", "its limits forbid that"), ("noted", "recorded the report"), ("none", None)]
)
def test_any_answer_ends_the_wait_and_without_a_controller_there_is_none(answer, words):
    scene = Scene(Nodes(NodeAnswer(state=answer)))
    scene.go()
    assert scene.looks == 0
    assert [words in text for _, text in scene.said[1:]] == ([True] if words else [])


def test_a_controller_that_says_nothing_is_waited_for_so_long_and_no_longer():
    scene = Scene(Nodes(NodeAnswer(state="waiting")), answer_s=0.0)
    scene.go()
    assert scene.said[-1][0] == "gap"
    assert "did not answer about node n2 within 0 s; attempt 2 starts anyway" in scene.said[-1][1]


def test_a_wish_ends_the_wait():
    scene = Scene(Nodes(NodeAnswer(state="waiting")))
    scene.wished = True
    scene.go()
    assert [kind for kind, _ in scene.said] == ["blamed"]


def test_what_cannot_be_told_is_said_once_and_not_waited_for():
    backend = Nodes(NodeAnswer(state="waiting"), problem="node n2 could not be told: no right")
    scene = Scene(backend)
    scene.go()
    assert scene.said == [("gap", "node n2 could not be told: no right")]
    assert len(backend.told) == 1


@pytest.mark.parametrize(
    "verdict",
    [
        msgspec.structs.replace(VERDICT, node=None),
        msgspec.structs.replace(VERDICT, state="succeeded"),
        msgspec.structs.replace(VERDICT, node_action="none"),
        msgspec.structs.replace(VERDICT, cause=Cause.of("gpu_ecc", confidence="likely")),
    ],
)
def test_what_is_not_proven_or_blames_no_node_is_told_to_nobody(verdict):
    backend = Nodes(NodeAnswer(state="waiting"))
    scene = Scene(backend, verdict=verdict)
    scene.go()
    assert backend.told == []
    assert scene.said == []


def test_where_no_nodes_are_known_nothing_is_told():
    scene = Scene(LocalBackend())
    scene.go()
    assert scene.said == []


def test_the_node_that_felled_one_slot_is_told_once_for_each_of_its_starts_and_nobody_is_waited_for():
    backend = Nodes(NodeAnswer(state="waiting"))
    scene = Scene(backend)
    for instance in (0, 0, 1):
        scene.blame.report_slot_failure(scene.plan, scene.diagnosis, slot=3, instance=instance)
    first, second = "verdict:train-1a2b3c:1:3.0", "verdict:train-1a2b3c:1:3.1"
    assert backend.told == [(1, "n2", first), (1, "n2", first), (1, "n2", second)]
    assert {kind for kind, _ in scene.said} == {"blamed"}
    assert "as the cause that slot 3 of attempt 1 failed: gpu_ecc" in scene.said[0][1]
    assert (scene.looks, scene.states) == (0, [])
    likely = msgspec.structs.replace(VERDICT, cause=Cause.of("gpu_ecc", confidence="likely"))
    silent = Scene(backend, verdict=likely)
    silent.blame.report_slot_failure(silent.plan, silent.diagnosis, slot=3, instance=2)
    assert len(backend.told) == 3
    refusing = Scene(Nodes(NodeAnswer(state="waiting"), problem="may not"))
    refusing.blame.report_slot_failure(refusing.plan, refusing.diagnosis, slot=3, instance=0)
    assert refusing.said == [("gap", "may not")]
