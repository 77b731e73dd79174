"""Derives a verdict from evidence (errors.md section 5). Pure.

Evidence in any order, with duplicates, gives the same verdict. A job's strategy cannot change scope or "no
failure".
"""

from __future__ import annotations

from typing import Literal

from rankfall.model import Case, Cause, Confidence, Decision, Decisive, Diagnosis, Proof, RunState, Verdict
from rankfall.verdict.diagnose.document import MAX_PROOF, as_proof
from rankfall.verdict.diagnose.strategies import BUILT_IN, CAUSAL, EARLIEST, FIRST_LISTED, Pick, Strategy, ask
from rankfall.verdict.diagnose.subjects import Subjects, state_of

__all__ = [
    "BUILT_IN",
    "CAUSAL",
    "EARLIEST",
    "FIRST_LISTED",
    "Pick",
    "Strategy",
    "diagnose",
    "not_begun",
    "stopped_on_request",
]


def diagnose(case: Case, *, strategy: Strategy = CAUSAL) -> Diagnosis:
    """Verdict of a case; ``unknown`` is one and lists the missing evidence.

    ``missing`` names a strategy other than ``causal``.
    """
    if case.cancelled or case.succeeded:
        return _no_failure(case)
    if not case.ended and not case.hung and not Subjects(case).anything_wrong():
        return _no_failure(case)
    return ask(strategy, case)


def _no_failure(case: Case) -> Diagnosis:
    """Diagnosis: succeeded, cancelled, or still running."""
    state = state_of(case)
    slug = case.cancel_slug if case.cancelled else "unknown"
    where = "cancel request" if slug == "cancelled" else "platform"
    confidence: Confidence = "proven" if case.cancelled else "unknown"
    missing = () if case.cancelled or case.succeeded else ("a failure: nothing has failed so far",)
    verdict = Verdict(
        run=case.run,
        attempt=case.attempt,
        state=state,
        exit_origin="rankfall",
        cause=Cause.of(slug, confidence=confidence),
        scope="external" if case.cancelled else None,
        role=case.role,
        decisive=Decisive(source="event", where=where, line=case.cancelled) if case.cancelled else None,
        evidence=_raised(case) if state == "succeeded" else (),
        missing=missing,
        retry="yes" if case.cancelled and slug != "cancelled" else "no",
    )
    return Diagnosis(verdict=verdict, fingerprint=slug)


def _raised(case: Case) -> tuple[Proof, ...]:
    """Recorded exceptions of a job whose command nevertheless exited with 0, such as a pipe to ``tee``; bounded."""
    raised = [
        (s, e)
        for s in Subjects(case).all.values()
        for e in s.evidence
        if e.source == "record" and e.role != "context" and e.slug != "user_exit"
    ]
    raised.sort(key=lambda row: (row[1].role == "secondary", row[1].at or 0, row[1].id))
    return tuple(as_proof(s, e) for s, e in raised[:MAX_PROOF])


def stopped_on_request(
    by: str, *, how: Literal["suspended", "resized"], run: str | None, attempt: int | None, role: str | None
) -> Diagnosis:
    """Diagnosis of an attempt stopped for a suspension or resize."""
    suspended = how == "suspended"
    verdict = Verdict(
        run=run,
        attempt=attempt,
        state="suspended" if suspended else "restarting",
        exit_origin="rankfall",
        cause=Cause.of("cancelled", confidence="proven"),
        scope="external",
        role=role,
        decisive=Decisive(source="event", where="suspend request" if suspended else "resize request", line=by),
        retry="no",
    )
    return Diagnosis(verdict=verdict, fingerprint=how)


def not_begun(text: str, *, run: str, state: RunState = "failed") -> Diagnosis:
    """Diagnosis of a run that ended before its first attempt."""
    failed = state == "failed"
    slug = "container_config" if failed else "cancelled"
    verdict = Verdict(
        run=run,
        state=state,
        exit_origin="rankfall",
        cause=Cause.of(slug, confidence="proven"),
        scope="external",
        decisive=Decisive(source="recorder", where="before attempt 1", line=text),
        retry="no",
        decision=Decision(action="stop", rule="not_begun", because="no attempt was started", state="done"),
    )
    return Diagnosis(verdict=verdict, fingerprint=f"not_begun:{slug}")
