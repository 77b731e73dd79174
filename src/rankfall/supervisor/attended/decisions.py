"""Decides what follows a failure of an attempt or a single slot, and stores it.

A decision is written as intent first and is final: a later supervisor carries it out. Evidence newer than a verdict, as
a node's Event minutes later, revises what is not completed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from rankfall.backends.protocol import Backend
from rankfall.collect.pods.lazy_collector import get_context
from rankfall.explain import explain_run
from rankfall.model import (
    Case,
    Cause,
    Decision,
    Diagnosis,
    Evidence,
    JobSpec,
    RankFacts,
    RankfallError,
    SlotFacts,
    Verdict,
)
from rankfall.model.timestamps import rfc3339
from rankfall.rundir import DecisionRow, RunDir, SlotFailureRow, Writer
from rankfall.rundir.database import Queries
from rankfall.rundir.layout import context_path
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import RESIZED
from rankfall.supervisor.run_events import EventLog
from rankfall.verdict.decide import PastAttempt, RootFacts, decide, first_match


def past_failures(
    writer: Writer,
    *,
    before: int,
    decisions: Mapping[int, DecisionRow],
    verdicts: Mapping[int, Diagnosis],
    falls: Iterable[SlotFailureRow],
) -> tuple[PastAttempt, ...]:
    """Returns failed attempts before ``before``, oldest first, each after its single failed slots.

    Includes single failed slots of ``before`` itself.
    """
    found: list[PastAttempt] = []
    furthest: dict[int | None, int] = {}

    def past(
        attempt: int, diagnosis: Diagnosis, decision: Decision, *, slot: int | None = None, progressed: bool
    ) -> None:
        verdict = diagnosis.verdict
        found.append(
            PastAttempt(
                attempt=attempt,
                slot=slot,
                fingerprint=diagnosis.fingerprint,
                slug=verdict.cause.slug,
                family=verdict.cause.family,
                action=decision.action,
                rule=decision.rule,
                budget=decision.budget,
                node=verdict.node,
                progressed=progressed,
            )
        )

    def gained(slot: int | None, step: int) -> bool:
        reached = furthest.get(slot, -1)
        furthest[slot] = max(step, reached)
        return step > reached

    alone = tuple(falls)
    for number in range(1, before + 1):
        for fall in (row.fall for row in alone if row.attempt == number):
            step = -1 if fall.step is None else fall.step
            past(number, fall.diagnosis, fall, slot=fall.slot, progressed=gained(fall.slot, step))
        if number == before:
            break
        steps = [facts.step for facts in writer.ranks(number) if facts.step is not None]
        progressed = gained(None, max(steps, default=-1))
        diagnosis = verdicts.get(number) or writer.diagnosis(number)
        decided = decisions.get(number)
        if diagnosis is not None and decided is not None:
            past(number, diagnosis, decided.decision, progressed=progressed)
    return tuple(found)


_SOURCES: Final = frozenset({"pod", "event", "node"})


def root_facts(tables: Queries, *, attempt: int, diagnosis: Diagnosis) -> RootFacts:
    """Returns the facts that failure rules may match."""
    past = {one for row in tables.falls(attempt) if row.fall.again for one in row.fall.evidence}
    evidence = [piece for piece in tables.evidence(attempt) if piece.id not in past]
    return _facts(diagnosis, ranks=tables.ranks(attempt), slots=tables.slots(attempt), evidence=evidence)


def root_facts_of_case(case: Case, diagnosis: Diagnosis) -> RootFacts:
    """Returns the same facts for a diagnosis that is not stored yet."""
    return _facts(diagnosis, ranks=case.ranks, slots=case.slots, evidence=case.evidence)


def _facts(
    diagnosis: Diagnosis, *, ranks: Iterable[RankFacts], slots: Iterable[SlotFacts], evidence: Iterable[Evidence]
) -> RootFacts:
    verdict = diagnosis.verdict
    sheet = _sheet(verdict, ranks, slots)
    reasons, conditions = _said(verdict, evidence)
    return RootFacts(
        code=diagnosis.exit_code,
        signal=sheet.signal if sheet is not None else None,
        role=verdict.role or (sheet.role if sheet is not None else None),
        reasons=reasons,
        conditions=conditions,
    )


def _sheet(verdict: Verdict, ranks: Iterable[RankFacts], slots: Iterable[SlotFacts]) -> RankFacts | SlotFacts | None:
    """Root's facts: its rank's in the newest round, else its slot's; None if unknown."""
    if verdict.rank is not None:
        own = [facts for facts in ranks if facts.rank == verdict.rank]
        return max(own, key=lambda facts: facts.round or 0, default=None)
    return next((facts for facts in slots if facts.slot == verdict.slot), None)


def _said(verdict: Verdict, evidence: Iterable[Evidence]) -> tuple[frozenset[str], frozenset[str]]:
    found: dict[str, set[str]] = {"reason": set(), "condition": set()}
    for piece in evidence:
        if piece.source not in _SOURCES or piece.trust != "platform" or not piece.detail:
            continue
        if piece.slot is not None and verdict.slot is not None and piece.slot != verdict.slot:
            continue
        for word in piece.detail.split():
            name, _, value = word.partition("=")
            if name in found and value:
                found[name].add(value)
    return frozenset(found["reason"]), frozenset(found["condition"])


_NS: Final = 1_000_000_000
_JITTER: Final = 0.25
# Decisions that precede the user's rules.
_BEFORE_RULES: Final = frozenset({"no_failure", "user_final"})
_RETRIES: Final = frozenset({"retry", "retry_elsewhere", "resize"})


class Decisions:
    """All decisions of one run.

    Attributes:
        ``falls``: Failures of single slots in all attempts; the attempt's monitor appends to it.
    """

    def __init__(
        self,
        spec: JobSpec,
        *,
        attempts: Attempts,
        backend: Backend,
        writer: Writer,
        run_store: BestEffortStore,
        events: EventLog,
        total_at: Callable[[], int | None],
    ) -> None:
        self._spec = spec
        self._attempts = attempts
        self._backend = backend
        self._writer = writer
        self._run_store = run_store
        self._events = events
        self._total_at = total_at
        self._rows: dict[int, DecisionRow] = {row.attempt: row for row in writer.decisions()}
        self.falls: list[SlotFailureRow] = writer.falls()

    def about(self, number: int) -> Decision | None:
        """Returns the newest decision about an attempt; None without one."""
        row = self._rows.get(number)
        return row.decision if row is not None else None

    def delay_s(self, number: int) -> float:
        """Returns the decided back-off after an attempt in seconds; 0 without one."""
        decision = self.about(number)
        return decision.delay_s if decision is not None else 0.0

    def avoided(self) -> frozenset[str]:
        """Returns the nodes that the next attempts must avoid."""
        found = set()
        for number, row in self._rows.items():
            diagnosis = self._attempts.diagnosis(number)
            if row.decision.action == "retry_elsewhere" and diagnosis is not None and diagnosis.verdict.node:
                found.add(diagnosis.verdict.node)
        return frozenset(found)

    def goes_on(self, number: int) -> bool:
        """True if another attempt follows; decides if necessary."""
        state = self._attempts.known(number).state
        if state in {"suspended", RESIZED}:
            return True
        diagnosis = self._attempts.diagnosis(number)
        if state == "succeeded" or diagnosis is None:
            return False
        made = self.about(number) or self._decide(number, diagnosis)
        return made.action in _RETRIES

    def end(self, *, because: str | None) -> None:
        """Ends the run: revokes a decision for an impossible attempt, marks others as done."""
        made = self.about(self._attempts.newest)
        if made is not None and made.action in _RETRIES:
            text = f"no new attempt followed: {because}" if because else "no new attempt followed"
            self._keep(self._attempts.newest, Decision(action="stop", rule="not_begun", because=text))
        self.close()

    def revise(self, number: int, diagnosis: Diagnosis) -> None:
        """Decides again after a changed verdict; with a later attempt only adds a node to avoid."""
        if number == self._attempts.newest:
            self._decide(number, diagnosis)
            return
        made = self._made(number, diagnosis, root_facts(self._writer, attempt=number, diagnosis=diagnosis))
        if made.action == "retry_elsewhere":
            late = f"{made.because}; found only after attempt {number + 1} had started"
            self._keep(number, msgspec.structs.replace(made, because=late, delay_s=0.0))

    def decide_for_slot(self, number: int, diagnosis: Diagnosis, case: Case, slot: int) -> Decision:
        """Decides about a single failed slot; the caller stores the decision."""
        decision = self._made(number, diagnosis, root_facts_of_case(case, diagnosis), slot=slot)
        return msgspec.structs.replace(decision, at=rfc3339(time.time_ns()))

    def close(self) -> None:
        """Marks all decisions as done."""
        for row in self._rows.values():
            if row.done_at is None:
                now = time.time_ns()
                self._run_store.decision_done(row, at=now)
                self._rows[row.attempt] = msgspec.structs.replace(row, done_at=now)
        self._close_slot_decisions()

    def _close_slot_decisions(self) -> None:
        """Marks decisions about single slots as done if nothing follows or a new attempt restarted the whole gang."""
        newest = self._attempts.newest
        for place, row in enumerate(self.falls):
            if row.done_at is None and (not row.fall.again or row.attempt < newest):
                now = time.time_ns()
                self._run_store.decision_done(row, at=now)
                self.falls[place] = msgspec.structs.replace(row, done_at=now)

    def _decide(self, number: int, diagnosis: Diagnosis) -> Decision:
        made = self._stored_slot_decision(number, diagnosis)
        if made is None:
            facts = root_facts(self._writer, attempt=number, diagnosis=diagnosis)
            made = self._made(number, diagnosis, facts)
        return self._keep(number, made)

    def _keep(self, number: int, made: Decision) -> Decision:
        now = time.time_ns()
        decision = msgspec.structs.replace(made, at=rfc3339(now))
        found = self._run_store.add_decision(number, decision)
        self._rows[number] = DecisionRow(id=found or 0, attempt=number, decision=decision)
        self._say(number, decision, at=now)
        return decision

    def _made(self, number: int, diagnosis: Diagnosis, facts: RootFacts, *, slot: int | None = None) -> Decision:
        total_at = self._total_at()
        left = (total_at - time.time_ns()) / _NS if total_at is not None else None
        decision = decide(
            diagnosis,
            spec=self._spec,
            history=past_failures(
                self._writer,
                before=number,
                decisions=self._rows,
                verdicts=self._attempts.verdicts,
                falls=self.falls,
            ),
            facts=facts,
            # A single slot restarts on the given nodes.
            other_nodes=self._backend.avoids_nodes and slot is None,
            time_left=left,
            slot=slot,
        )
        overruled = _overruled(decision, spec=self._spec, cause=diagnosis.verdict.cause, facts=facts)
        decision = msgspec.structs.replace(decision, because=decision.because + overruled)
        if decision.delay_s:
            jitter = 1 + _JITTER * random.random()  # noqa: S311 - spreads retries, guards nothing
            decision = msgspec.structs.replace(decision, delay_s=decision.delay_s * jitter)
        return decision

    def _stored_slot_decision(self, number: int, diagnosis: Diagnosis) -> Decision | None:
        """Stored decision about the slot whose failure ended this attempt, or None."""
        for row in reversed(self.falls):
            if row.attempt == number and not row.fall.again and _same(row.fall.diagnosis, diagnosis):
                return row.fall.only_decision
        return None

    def _say(self, number: int, decision: Decision, *, at: int) -> None:
        self._events.say(
            "decision",
            f"{decision.action}: {decision.because}",
            at=at,
            attempt=number,
            action=decision.action,
            rule=decision.rule,
            budget=decision.budget,
            left=decision.left,
            delay_s=round(decision.delay_s, 3),
        )


def _overruled(decision: Decision, *, spec: JobSpec, cause: Cause, facts: RootFacts) -> str:
    """Names the user's rule that would decide otherwise if the cause were not proven; empty without one."""
    if cause.confidence != "proven" or decision.rule in _BEFORE_RULES or first_match(spec, cause=cause, facts=facts):
        return ""
    weaker = msgspec.structs.replace(cause, confidence="likely")
    name, rule = first_match(spec, cause=weaker, facts=facts) or ("", None)
    if rule is None or (rule.action == "fail") is (decision.action not in _RETRIES):
        return ""
    return f"; {name} has only codes or signals and yields to a proven cause, unless it has causes: [{cause.slug}]"


def _same(one: Diagnosis, other: Diagnosis) -> bool:
    """True if two diagnoses are equal apart from version and decision."""
    verdict = msgspec.structs.replace(other.verdict, version=one.verdict.version, decision=one.verdict.decision)
    return one == msgspec.structs.replace(other, verdict=verdict)


# Newest attempts to check: Kubernetes stores an Event for an hour.
_MOST: Final = 4
_FOR_S: Final = 3600.0
# No process of the job writes to these sources.
_STATED: Final = frozenset({"event", "node", "pod"})


class LateEvidence:
    """Checks failed attempts for late evidence."""

    def __init__(self, run_dir: RunDir, *, attempts: Attempts, decisions: Decisions, backend: Backend) -> None:
        self._run_dir = run_dir
        self._attempts = attempts
        self._decisions = decisions
        self._backend = backend

    def look(self) -> list[tuple[int, Diagnosis]]:
        """Queries the cluster about failed attempts; returns changed verdicts."""
        return [(number, found) for number in self._recent() if (found := self._look_at(number)) is not None]

    def _recent(self) -> Iterator[int]:
        now, newest = time.time_ns(), self._attempts.newest
        for number in range(max(1, newest - _MOST + 1), newest + 1):
            row = self._attempts.row(number)
            if row is not None and row.state == "failed" and now - (row.ended or now) < _FOR_S * _NS:
                yield number

    def _look_at(self, number: int) -> Diagnosis | None:
        pods = next((one.pods for one in self._backend.sources(self._attempts.plan(number)) if one.pods), None)
        held = self._attempts.diagnosis(number)
        if pods is None or held is None:
            return None
        path = context_path(self._run_dir.path, number)
        try:
            if not get_context(self._run_dir.path, number, pods, into=path):
                return None
            found = explain_run(self._run_dir, attempt=number, fresh=True)
        except (RankfallError, OSError, TimeoutError):
            # Late evidence is optional.
            return None
        if not _overrules(found.verdict, held.verdict):
            return None
        found = self._attempts.revise(number, found)
        self._decisions.revise(number, found)
        return found


def _overrules(found: Verdict, held: Verdict) -> bool:
    """True if a new verdict differs and platform evidence proves it."""
    stated = found.decisive is not None and found.decisive.source in _STATED
    other = (found.cause.slug, found.rank, found.node) != (held.cause.slug, held.rank, held.node)
    return other and stated and found.state == "failed" and found.cause.confidence == "proven"
