"""What follows on a fall, of an attempt or of a slot alone: decided once, written down as intent, and as done when it was carried out.

A decision that is stored is never made again, so a supervisor that takes over carries out what the one before had decided. Carries out nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rankfall.backends.protocol import Backend
from rankfall.decide import RootFacts, decide
from rankfall.model import Case, Decision, Diagnosis, JobSpec
from rankfall.model.times import rfc3339
from rankfall.store import DecisionRow, FallRow, Writer
from rankfall.supervise.attempts import Attempts
from rankfall.supervise.events import EventLog
from rankfall.supervise.history import past_falls
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.resizing import RESIZED
from rankfall.supervise.root import root_facts, root_facts_of

_NS: Final = 1_000_000_000
_JITTER: Final = 0.25
_RETRIES: Final = frozenset({"retry", "retry_elsewhere", "resize"})


class Decisions:
    """All decisions of one run.

    Args:
        spec: of the run.
        attempts: that are decided about.
        backend: tells whether another attempt can be kept off a node.
        writer: reads what is stored.
        ledger: stores what is new.
        events: for viewers.
        total_at: when the total deadline is over, nanoseconds since the epoch; None = never.

    Attributes:
        falls: of slots alone, over all attempts; whoever watches an attempt adds to it.
    """

    def __init__(
        self,
        spec: JobSpec,
        *,
        attempts: Attempts,
        backend: Backend,
        writer: Writer,
        ledger: Ledger,
        events: EventLog,
        total_at: Callable[[], int | None],
    ) -> None:
        self._spec = spec
        self._attempts = attempts
        self._backend = backend
        self._writer = writer
        self._ledger = ledger
        self._events = events
        self._total_at = total_at
        self._rows: dict[int, DecisionRow] = {row.attempt: row for row in writer.decisions()}
        self.falls: list[FallRow] = writer.falls()

    def about(self, number: int) -> Decision | None:
        """The newest decision about an attempt."""
        row = self._rows.get(number)
        return row.decision if row is not None else None

    def delay_s(self, number: int) -> float:
        """The back-off that was decided on after an attempt; 0 where none was."""
        decision = self.about(number)
        return decision.delay_s if decision is not None else 0.0

    def avoided(self) -> frozenset[str]:
        """Nodes that a decision of this run keeps the next attempts off."""
        found = set()
        for number, row in self._rows.items():
            diagnosis = self._attempts.diagnosis(number)
            if row.decision.action == "retry_elsewhere" and diagnosis is not None and diagnosis.verdict.node:
                found.add(diagnosis.verdict.node)
        return frozenset(found)

    def goes_on(self, number: int) -> bool:
        """Whether another attempt follows this ended one; decides when nobody did."""
        state = self._attempts.known(number).state
        if state in {"suspended", RESIZED}:
            return True
        diagnosis = self._attempts.diagnosis(number)
        if state == "succeeded" or diagnosis is None:
            return False
        made = self.about(number) or self._decide(number, diagnosis)
        return made.action in _RETRIES

    def end(self, *, because: str | None) -> None:
        """The run is over. An attempt that was decided on and could not follow is decided against now, and the rest is marked as done.

        Args:
            because: why the run ended, as text for people; None = it says so itself.
        """
        made = self.about(self._attempts.newest)
        if made is not None and made.action in _RETRIES:
            text = f"no other attempt followed: {because}" if because else "no other attempt followed"
            self._keep(self._attempts.newest, Decision(action="stop", rule="not_begun", because=text))
        self.close()

    def revise(self, number: int, diagnosis: Diagnosis) -> None:
        """Decide again about an attempt whose verdict has changed. Of one that another attempt followed only the node to avoid is new."""
        if number == self._attempts.newest:
            self._decide(number, diagnosis)
            return
        made = self._made(number, diagnosis, root_facts(self._writer, attempt=number, diagnosis=diagnosis))
        if made.action == "retry_elsewhere":
            late = f"{made.because}; known only after attempt {number + 1} had begun"
            self._keep(number, msgspec.structs.replace(made, because=late, delay_s=0.0))

    def decide_alone(self, number: int, diagnosis: Diagnosis, case: Case, slot: int) -> Decision:
        """What to do about a slot that fell alone in an attempt; whoever asks stores it.

        Args:
            number: of the attempt.
            diagnosis: of the slot's fall.
            case: that this was made from.
            slot: that fell.
        """
        decision = self._made(number, diagnosis, root_facts_of(case, diagnosis), slot=slot)
        return msgspec.structs.replace(decision, at=rfc3339(time.time_ns()))

    def close(self) -> None:
        """Mark as done what has been carried out: every decision about an attempt that another one or the run's end followed."""
        for row in self._rows.values():
            if row.done_at is None:
                now = time.time_ns()
                self._ledger.decision_done(row, at=now)
                self._rows[row.attempt] = msgspec.structs.replace(row, done_at=now)
        self._close_falls()

    def _close_falls(self) -> None:
        """Those about slots alone: that nothing follows, or that the start of another attempt has carried out for the whole gang."""
        newest = self._attempts.newest
        for place, row in enumerate(self.falls):
            if row.done_at is None and (not row.fall.again or row.attempt < newest):
                now = time.time_ns()
                self._ledger.decision_done(row, at=now)
                self.falls[place] = msgspec.structs.replace(row, done_at=now)

    def _decide(self, number: int, diagnosis: Diagnosis) -> Decision:
        made = self._made_alone(number, diagnosis)
        if made is None:
            facts = root_facts(self._writer, attempt=number, diagnosis=diagnosis)
            made = self._made(number, diagnosis, facts)
        return self._keep(number, made)

    def _keep(self, number: int, made: Decision) -> Decision:
        """Store and report a decision as intent."""
        now = time.time_ns()
        decision = msgspec.structs.replace(made, at=rfc3339(now))
        found = self._ledger.add_decision(number, decision)
        self._rows[number] = DecisionRow(id=found or 0, attempt=number, decision=decision)
        self._say(number, decision, at=now)
        return decision

    def _made(self, number: int, diagnosis: Diagnosis, facts: RootFacts, *, slot: int | None = None) -> Decision:
        """A decision about an attempt, or about a slot that fell alone in it."""
        total_at = self._total_at()
        left = (total_at - time.time_ns()) / _NS if total_at is not None else None
        decision = decide(
            diagnosis,
            spec=self._spec,
            history=past_falls(
                self._writer,
                before=number,
                decisions=self._rows,
                verdicts=self._attempts.verdicts,
                falls=self.falls,
            ),
            facts=facts,
            # Whoever starts one slot again alone takes the nodes as they are.
            other_nodes=self._backend.avoids_nodes and slot is None,
            time_left=left,
            slot=slot,
        )
        if decision.delay_s:
            jitter = 1 + _JITTER * random.random()  # noqa: S311 - spreads retries, guards nothing
            decision = msgspec.structs.replace(decision, delay_s=decision.delay_s * jitter)
        return decision

    def _made_alone(self, number: int, diagnosis: Diagnosis) -> Decision | None:
        """What was decided already about the slot whose fall ended this attempt; None where none did."""
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


def _same(one: Diagnosis, other: Diagnosis) -> bool:
    """Whether two diagnoses are one, whatever version and decision stand in them."""
    verdict = msgspec.structs.replace(other.verdict, version=one.verdict.version, decision=one.verdict.decision)
    return one == msgspec.structs.replace(other, verdict=verdict)
