"""All attempts of a run: rows, plans, verdicts, unstored data.

An attempt is written before any slot starts, its verdict before its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from rankfall.backends.plan import Plan
from rankfall.model import Diagnosis, JobSpec, Verdict
from rankfall.rundir import AttemptRow, Writer
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.requests import RESIZED
from rankfall.supervisor.run_events import EventLog

_PAUSED: Final = frozenset({"suspended", "restarting"})


class Attempts:
    """All attempts of one run; ``number`` is an attempt's, from 1."""

    def __init__(self, spec: JobSpec, *, writer: Writer, run_store: BestEffortStore, events: EventLog) -> None:
        self._spec = spec
        self._writer = writer
        self._run_store = run_store
        self._events = events
        self._rows: dict[int, AttemptRow] = {row.attempt: row for row in writer.attempts()}
        self._verdicts: dict[int, Diagnosis] = {}

    @property
    def newest(self) -> int:
        """Number of the newest attempt; 0 before the first."""
        return max(self._rows, default=0)

    @property
    def first_at(self) -> int | None:
        """Start of the first attempt in nanoseconds since the epoch; None before it."""
        return min((row.started for row in self._rows.values() if row.started is not None), default=None)

    @property
    def verdicts(self) -> Mapping[int, Diagnosis]:
        """Diagnoses by this process, by attempt."""
        return self._verdicts

    def row(self, number: int) -> AttemptRow | None:
        """Returns one attempt; None if it does not exist."""
        return self._rows.get(number)

    def known(self, number: int) -> AttemptRow:
        """Returns an attempt that exists."""
        return self._rows[number]

    @property
    def open_plan(self) -> Plan | None:
        """Plan of the newest attempt if it has not ended, else None."""
        row = self._rows.get(self.newest)
        return self.plan(row.attempt) if row is not None and row.ended is None else None

    def plan(self, number: int) -> Plan:
        """Returns the plan of an existing attempt."""
        return Plan.of_row(self._rows[number].plan, self._spec)

    def diagnosis(self, number: int) -> Diagnosis | None:
        """Returns an attempt's diagnosis; None also if only interrupted."""
        return self._verdicts.get(number) or self._writer.diagnosis(number)

    def begin(self, plan: Plan, *, at: int | None = None) -> int:
        """Stores a new attempt before its start, or one begun ``at`` a time; returns the stored time."""
        number, at = plan.attempt, at or time.time_ns()
        self._rows[number] = AttemptRow(attempt=number, started=at, plan=plan.row())
        self._run_store.begin_attempt(number, at=at, plan=plan.row())
        self._run_store.set_run("starting", reason=f"attempt {number}", at=at)
        return at

    def restore(self, plan: Plan, *, started: int) -> None:
        """Stores an attempt that the database lost; an earlier one has ended by then."""
        before = self._rows.get(self.newest)
        if before is not None and before.ended is None:
            self._run_store.end_attempt(before.attempt, at=started, state="unknown")
            self._rows[before.attempt] = msgspec.structs.replace(before, ended=started, state="unknown")
        self.begin(plan, at=started)

    def tell(self, plan: Plan, *, at: int) -> None:
        """Reports a started attempt to viewers."""
        number = plan.attempt
        self._events.say(
            "attempt",
            f"attempt {number}: {plan.size_text(self._spec)}",
            at=at,
            attempt=number,
            launcher=plan.launcher,
            rdzv=plan.rdzv,
            port=plan.port,
        )
        for change in plan.changes:
            self._events.say("resize", f"now {change.text}", at=at, attempt=number, nodes=change.nodes, done=True)
        before = self._rows.get(number - 1)
        known = before.plan.get("notes", ()) if before is not None else ()
        for note in (one for one in plan.notes if one not in known):
            self._events.say("launcher", note, at=at, attempt=number, launcher=plan.launcher)

    def replan(self, number: int, plan: Plan) -> None:
        """Updates the plan of a running attempt, which the caller has already stored."""
        self._rows[number] = msgspec.structs.replace(self._rows[number], plan=plan.row())

    def conclude(self, number: int, diagnosis: Diagnosis) -> None:
        """Stores the verdict, then the end of the attempt."""
        verdict = diagnosis.verdict
        if verdict.state not in _PAUSED:
            self._verdicts[number] = diagnosis if verdict.state == "succeeded" else self._fell(number, diagnosis)
        now = time.time_ns()
        # The run's next action is no state of an attempt.
        state = RESIZED if verdict.state == "restarting" else verdict.state
        self._run_store.end_attempt(number, at=now, state=state)
        self._rows[number] = msgspec.structs.replace(self._rows[number], ended=now, state=state)

    def revise(self, number: int, diagnosis: Diagnosis) -> Diagnosis:
        """Stores and reports a new verdict; returns it with its version."""
        self._verdicts[number] = self._fell(number, diagnosis)
        return self._verdicts[number]

    def _fell(self, number: int, diagnosis: Diagnosis) -> Diagnosis:
        version = self._run_store.add_verdict(number, diagnosis)
        verdict = msgspec.structs.replace(diagnosis.verdict, version=version)
        announce_verdict(self._events, verdict, attempt=number)
        return msgspec.structs.replace(diagnosis, verdict=verdict)


def announce_verdict(events: EventLog, verdict: Verdict, *, attempt: int) -> None:
    """Reports the verdict on a failed attempt, unless already reported."""
    if not events.is_new(attempt, (verdict.cause.slug, verdict.cause.confidence, verdict.rank, verdict.node)):
        return
    who = "all ranks" if verdict.scope == "all" else "no rank" if verdict.rank is None else f"rank {verdict.rank}"
    place = f" on {verdict.node}" if verdict.node else ""
    events.say(
        "verdict",
        f"{verdict.cause.slug} ({verdict.cause.confidence}), {who}{place}",
        at=time.time_ns(),
        attempt=attempt,
        slug=verdict.cause.slug,
        confidence=verdict.cause.confidence,
        rank=verdict.rank,
        node=verdict.node,
        version=verdict.version,
    )
