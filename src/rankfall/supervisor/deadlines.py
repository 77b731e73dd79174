"""Deadlines of an attempt (total, attempt, startup) and their verdict. Pure.

The total deadline starts with the first attempt and pauses during suspensions.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model import Cause, Deadlines, Decisive, Diagnosis, Evidence, Proof, Time, Verdict
from rankfall.model.timestamps import rfc3339

SLUG: Final = "deadline_exceeded"
_NS: Final = 1_000_000_000

Which = Literal["total", "attempt", "startup"]


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """An expired deadline; ``at`` in nanoseconds since the epoch."""

    which: Which
    text: str
    at: int

    @property
    def field(self) -> str:
        """Name of its field in the spec."""
        return f"deadlines.{self.which}_s"


class DeadlineWatch:
    """The deadlines of one attempt."""

    def __init__(self, deadlines: Deadlines, *, started: int, total_at: int | None) -> None:
        self._deadlines = deadlines
        self._started = started
        self._total_at = total_at

    def passed(self, now: int, *, absent: int) -> Passed | None:
        """Returns the deadline that expired first, or None; ``absent``: number of ranks that never appeared."""
        found = []
        limits = self._deadlines
        if limits.total_s is not None and self._total_at is not None:
            words = f"the total deadline of {limits.total_s:g} s has passed"
            found.append(Passed(which="total", at=self._total_at, text=words))
        if limits.attempt_s is not None:
            words = f"the attempt's deadline of {limits.attempt_s:g} s has passed"
            found.append(Passed(which="attempt", at=self._started + round(limits.attempt_s * _NS), text=words))
        if limits.startup_s is not None and absent:
            words = f"{absent} {'rank was' if absent == 1 else 'ranks were'} not there {limits.startup_s:g} s after the start"
            found.append(Passed(which="startup", at=self._started + round(limits.startup_s * _NS), text=words))
        over = [one for one in found if one.at <= now]
        return min(over, key=lambda one: one.at, default=None)


def total_end(deadlines: Deadlines, *, first: int, paused: int) -> int | None:
    """Returns the total deadline, None without one; ``first`` attempt's begin plus ``paused`` time, all nanoseconds."""
    return None if deadlines.total_s is None else first + round(deadlines.total_s * _NS) + paused


def deadline_evidence(passed: Passed, *, attempt: int) -> Evidence:
    """Returns the supervisor's evidence of an expired deadline."""
    return Evidence(
        id=f"deadline:{passed.which}:{attempt}",
        source="event",
        slug=SLUG,
        role="primary",
        trust="supervisor",
        at=passed.at,
        uncertainty=0.0,
        where=passed.field,
        line=passed.text,
        specificity=100,
        attempt=attempt,
        fingerprint=f"{SLUG}:{passed.which}",
    )


def deadline_diagnosis(
    passed: Passed, *, run: str, attempt: int, role: str | None, missing: tuple[str, ...] = ()
) -> Diagnosis:
    """Returns the verdict of an expired deadline; it names no rank."""
    piece = deadline_evidence(passed, attempt=attempt)
    at = rfc3339(passed.at)
    proof = Proof(
        id=piece.id,
        source=piece.source,
        slug=SLUG,
        role="primary",
        rank=None,
        slot=None,
        node=None,
        at=at,
        uncertainty_s=0.0,
        where=piece.where,
        line=piece.line,
        trust="supervisor",
    )
    verdict = Verdict(
        run=run,
        attempt=attempt,
        state="failed",
        exit_origin="rankfall",
        cause=Cause.of(SLUG, confidence="proven"),
        scope="external",
        role=role,
        time=Time(at=at, uncertainty_s=0.0),
        decisive=Decisive(source="event", where=piece.where, line=piece.line),
        evidence=(proof,),
        missing=missing,
        retry="no",
    )
    return Diagnosis(verdict=verdict, fingerprint=f"{SLUG}:{passed.which}")
