"""Reports a verdict to the platform: on the attempt's object, and to the Node that caused the failure.

If a proven verdict names a Node, the next attempt waits (at most 60 s) until the node health controller has
answered, because the taint has to be there before the next pods are. Without a controller nothing is waited
for. A report that fails is logged and changes nothing of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, NodeReportingBackend, VerdictPublishingBackend
from rankfall.model import Diagnosis, InfrastructureError, JobSpec
from rankfall.model.node_health.run_verdicts import NodeAnswer, RunVerdict
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import Control
from rankfall.supervisor.run_events import EventLog


def show_verdict(
    backend: Backend, plan: Plan, diagnosis: Diagnosis | None, *, spec: JobSpec, say: Callable[[str], None]
) -> None:
    """Show what is said of an attempt that fell.

    Args:
        backend: of the run.
        plan: of the attempt.
        diagnosis: of its end; None where nothing is said of it.
        spec: of the job.
        say: takes what could not be done.
    """
    if not spec.kubernetes.annotate or diagnosis is None or diagnosis.verdict.state != "failed":
        return
    if isinstance(backend, VerdictPublishingBackend) and (problem := backend.show(plan, diagnosis.verdict)) is not None:
        say(problem)


#: Longest wait for an answer, seconds. Where a controller is killed another one leads within 20 s.
ANSWER_S: Final = 60.0
_LOOK_S: Final = 0.3


class NodeReporter:
    """The word of one run about its nodes.

    Args:
        backend: of the run; one whose platform knows no nodes says nothing.
        run_store: takes the state that is waited in.
        events: for viewers.
        control: wakes a wait.
        over: whether there is no use in waiting any more.
        answer_s: longest wait for an answer.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        run_store: BestEffortStore,
        events: EventLog,
        control: Control,
        over: Callable[[], bool],
        answer_s: float = ANSWER_S,
    ) -> None:
        self._backend = backend
        self._run_store = run_store
        self._events = events
        self._control = control
        self._over = over
        self._answer_s = answer_s
        self._reported: dict[int, bool] = {}

    def tell(self, plan: Plan, diagnosis: Diagnosis | None) -> None:
        """Tell the node of an attempt that fell, where the verdict blames one; once.

        Args:
            plan: of the attempt.
            diagnosis: of its end; None where nothing is said of it.
        """
        word = _word(diagnosis)
        if word is None or plan.attempt in self._reported or not isinstance(self._backend, NodeReportingBackend):
            return
        node, verdict = word
        problem = self._backend.report_node(plan, node, verdict)
        self._reported[plan.attempt] = problem is None
        now = time.time_ns()
        if problem is not None:
            self._events.say("gap", problem, at=now)
        else:
            self._events.say(
                "blamed", f"node {node} was told that it felled attempt {plan.attempt}: {verdict.cause}", at=now
            )

    def report_slot_failure(self, plan: Plan, diagnosis: Diagnosis, *, slot: int, instance: int) -> None:
        """Tell the node of a slot that fell alone; what the slot's platform does next waits for nobody.

        Args:
            plan: of the attempt.
            diagnosis: of that start of the slot.
            slot: that fell.
            instance: the start that fell.
        """
        word = _word(diagnosis, start=(slot, instance))
        if word is None or not isinstance(self._backend, NodeReportingBackend):
            return
        node, verdict = word
        problem = self._backend.report_node(plan, node, verdict)
        text = f"node {node} was told that it felled slot {slot} of attempt {plan.attempt}: {verdict.cause}"
        self._events.say("gap" if problem is not None else "blamed", problem or text, at=time.time_ns())

    def heard(self, plan: Plan, diagnosis: Diagnosis | None) -> None:
        """Wait until what was told of this attempt is taken up: its node is tainted, or it is known why not.

        Returns when it is, when nobody is there who could, when ``over`` says so, or when the longest wait is over.
        """
        word = _word(diagnosis)
        if word is None or not self._reported.get(plan.attempt) or not isinstance(self._backend, NodeReportingBackend):
            return
        node, verdict = word
        until, said = time.monotonic() + self._answer_s, False
        while not self._over():
            try:
                answer = self._backend.answered(plan, node, verdict)
            except InfrastructureError:
                answer = NodeAnswer(state="waiting")
            if answer.state != "waiting":
                self._announce_answer(node, answer)
                return
            now = time.time_ns()
            if not said:
                said = True
                text = f"attempt {plan.attempt + 1} waits until the controller of node health took up that node {node} felled attempt {plan.attempt}"
                self._events.say("waiting", text, at=now)
                self._run_store.set_run("restarting", reason=text, at=now)
            if time.monotonic() >= until:
                text = f"the controller of node health said nothing of node {node} within {self._answer_s:g} s; attempt {plan.attempt + 1} goes on"
                self._events.say("gap", text, at=now)
                return
            self._control.wait(_LOOK_S)

    def _announce_answer(self, node: str, answer: NodeAnswer) -> None:
        if answer.state == "none":
            return
        words = {
            "tainted": "keeps the scheduler away from it",
            "held": "would keep the scheduler away from it and may not",
            "noted": "wrote it down",
        }
        text = f"node {node}: the controller of node health {words[answer.state]}: {answer.text}"
        self._events.say("blamed", text, at=time.time_ns(), node=node, answer=answer.state)


def _word(diagnosis: Diagnosis | None, *, start: tuple[int, int] | None = None) -> tuple[str, RunVerdict] | None:
    if diagnosis is None or diagnosis.verdict.state != "failed" or diagnosis.verdict.node is None:
        return None
    verdict = RunVerdict.of(diagnosis.verdict, at=time.time_ns(), start=start)
    return None if verdict is None else (diagnosis.verdict.node, verdict)
