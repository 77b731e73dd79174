"""Reports a verdict on the attempt's object and to the Node that caused the failure.

The next attempt waits (at most 60 s) for the controller: the taint must precede its pods.
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
    """Publishes the verdict on a failed attempt, or nothing for None."""
    if not spec.kubernetes.annotate or diagnosis is None or diagnosis.verdict.state != "failed":
        return
    if isinstance(backend, VerdictPublishingBackend) and (problem := backend.show(plan, diagnosis.verdict)) is not None:
        say(problem)


#: Longest wait in seconds; another controller leads within 20 s.
ANSWER_S: Final = 60.0
_LOOK_S: Final = 0.3


class NodeReporter:
    """Writes a verdict to the node that caused the failure, then waits for the node controller's answer.

    ``over`` returns True if that wait is no longer useful.
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
        """Reports a failed attempt once to the node that the verdict names."""
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
                "blamed",
                f"reported node {node} as the cause that attempt {plan.attempt} failed: {verdict.cause}",
                at=now,
            )

    def report_slot_failure(self, plan: Plan, diagnosis: Diagnosis, *, slot: int, instance: int) -> None:
        """Reports a single failed slot to its node; the slot's platform does not wait."""
        word = _word(diagnosis, start=(slot, instance))
        if word is None or not isinstance(self._backend, NodeReportingBackend):
            return
        node, verdict = word
        problem = self._backend.report_node(plan, node, verdict)
        text = f"reported node {node} as the cause that slot {slot} of attempt {plan.attempt} failed: {verdict.cause}"
        self._events.say("gap" if problem is not None else "blamed", problem or text, at=time.time_ns())

    def heard(self, plan: Plan, diagnosis: Diagnosis | None) -> None:
        """Waits until the controller handled this attempt's report: it tainted the node or gave a reason against it.

        Returns without a controller, if ``over``, or after the longest wait.
        """
        word = _word(diagnosis)
        if word is None or not self._reported.get(plan.attempt) or not isinstance(self._backend, NodeReportingBackend):
            return
        node, verdict = word
        until, reported = time.monotonic() + self._answer_s, False
        while not self._over():
            try:
                answer = self._backend.answered(plan, node, verdict)
            except InfrastructureError:
                answer = NodeAnswer(state="waiting")
            if answer.state != "waiting":
                self._announce_answer(node, answer)
                return
            now = time.time_ns()
            if not reported:
                reported = True
                text = f"attempt {plan.attempt + 1} waits until the controller of node health handles the report that node {node} caused the failure of attempt {plan.attempt}"
                self._events.say("waiting", text, at=now)
                self._run_store.set_run("restarting", reason=text, at=now)
            if time.monotonic() >= until:
                text = f"the controller of node health did not answer about node {node} within {self._answer_s:g} s; attempt {plan.attempt + 1} starts anyway"
                self._events.say("gap", text, at=now)
                return
            self._control.wait(_LOOK_S)

    def _announce_answer(self, node: str, answer: NodeAnswer) -> None:
        if answer.state == "none":
            return
        words = {
            "tainted": "keeps new pods off it",
            "held": "would keep new pods off it, but its limits forbid that",
            "noted": "recorded the report",
        }
        text = f"node {node}: the controller of node health {words[answer.state]}: {answer.text}"
        self._events.say("blamed", text, at=time.time_ns(), node=node, answer=answer.state)


def _word(diagnosis: Diagnosis | None, *, start: tuple[int, int] | None = None) -> tuple[str, RunVerdict] | None:
    if diagnosis is None or diagnosis.verdict.state != "failed" or diagnosis.verdict.node is None:
        return None
    verdict = RunVerdict.of(diagnosis.verdict, at=time.time_ns(), start=start)
    return None if verdict is None else (diagnosis.verdict.node, verdict)
