"""Derives a verdict from evidence (errors.md section 5). Pure.

Evidence in any order, with duplicates, gives the same verdict. A strategy chooses the root: ``causal`` weighs evidence,
others follow a simple rule. If one fails, ``causal`` replaces it, and the verdict reports that. A strategy cannot
change scope or "no failure".
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from rankfall.model import (
    Case,
    Cause,
    Confidence,
    Decision,
    Decisive,
    Diagnosis,
    Evidence,
    Proof,
    RunState,
    Verdict,
)
from rankfall.verdict.diagnose.candidates import EXPLICIT, Candidate, Root
from rankfall.verdict.diagnose.displayed_line import with_silent_rank
from rankfall.verdict.diagnose.document import MAX_MISSING, MAX_PROOF, as_proof, assemble
from rankfall.verdict.diagnose.root_search import find_root
from rankfall.verdict.diagnose.subjects import Subject, Subjects, state_of

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


_MAX_WORDS: Final = 200

# Maps a failed attempt to its diagnosis, or None.
Pick = Callable[[Case], Diagnosis | None]


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A rule with its name.

    Attributes:
        name: Value of ``strategy`` in a job spec.
        pick: For failed attempts only; must not change the case.
    """

    name: str
    pick: Pick


def causal(case: Case) -> Diagnosis:
    """Applies cause before time: clocks only break ties (errors.md section 5)."""
    subjects = Subjects(case)
    return assemble(case, subjects, with_silent_rank(find_root(case, subjects), case, subjects))


def earliest(case: Case) -> Diagnosis | None:
    """Chooses the record whose exception was raised first, never one without a time; None without records.

    At most ``likely``, ``suspected`` within the clocks' error: a consequence may be raised first.
    """
    subjects = Subjects(case)
    spoken = _first_record_of_each(subjects, lambda e: (e.at is None, e.at or 0, e.where, e.id))
    timed = [c for c in spoken if c.at is not None]
    if not timed:
        return None
    chosen = min(timed, key=lambda c: (c.moment.common[0], c.order))
    root = Root(chosen=chosen, tied=[c for c in timed if c is not chosen and not chosen.before(c)])
    root.rejected = [
        (c, "its record has no time" if c.at is None else "raised later, by the clocks of the records")
        for c in spoken
        if c is not chosen
    ]
    return assemble(case, subjects, root)


def first_listed(case: Case) -> Diagnosis | None:
    """Chooses the first record by name; ``suspected`` if there are several, None if there are none."""
    subjects = Subjects(case)
    spoken = _first_record_of_each(subjects, _place)
    chosen = min(spoken, key=lambda c: (_place(c.best) if c.best else ("", ""), c.order), default=None)
    if chosen is None:
        return None
    chosen.unordered = True
    root = Root(chosen=chosen, tied=[c for c in spoken if c is not chosen])
    root.rejected = [(c, "its record's name comes later") for c in spoken if c is not chosen]
    return assemble(case, subjects, root)


CAUSAL: Final = Strategy(name="causal", pick=causal)
EARLIEST: Final = Strategy(name="earliest", pick=earliest)
FIRST_LISTED: Final = Strategy(name="first-listed", pick=first_listed)
BUILT_IN: Final = MappingProxyType({s.name: s for s in (CAUSAL, EARLIEST, FIRST_LISTED)})


def ask(strategy: Strategy, case: Case) -> Diagnosis:
    """Strategy's diagnosis; if it fails or has none, that of ``causal``, as the verdict states."""
    if strategy is CAUSAL:
        return causal(case)
    try:
        found: object = strategy.pick(case)
    except Exception as error:  # noqa: BLE001 - third-party code; a run needs its verdict in any case
        words = f"{type(error).__name__}: {_text(error)}"[:_MAX_WORDS]
        return _noted(
            causal(case),
            f"the answer of strategy {strategy.name}: it failed with {words}; the strategy causal was used",
        )
    if found is None:
        return _noted(
            causal(case), f"a record that strategy {strategy.name} could choose; the strategy causal was used"
        )
    if not isinstance(found, Diagnosis):
        words = f"a {type(found).__name__} instead of a Diagnosis"[:_MAX_WORDS]
        return _noted(
            causal(case), f"the answer of strategy {strategy.name}: it gave {words}; the strategy causal was used"
        )
    # Facts, not a matter of the strategy.
    verdict = msgspec.structs.replace(found.verdict, run=case.run, attempt=case.attempt, state=state_of(case))
    found = msgspec.structs.replace(found, verdict=verdict)
    return _noted(
        found, f"the choice of the strategy causal from all evidence: strategy {strategy.name} chose this cause"
    )


def _first_record_of_each(subjects: Subjects, order: Callable[[Evidence], tuple[object, ...]]) -> list[Candidate]:
    found = []
    for subject in subjects.all.values():
        best = min((e for e in subject.evidence if e.source == "record"), key=order, default=None)
        if best is not None:
            found.append(_candidate(subject, best))
    return found


def _candidate(subject: Subject, best: Evidence) -> Candidate:
    return Candidate(
        subject=subject,
        slug=best.slug,
        tier=EXPLICIT,
        confidence="likely",
        best=best,
        at=best.at,
        uncertainty=best.uncertainty or 0.0,
        stamped=best.stamped,
        fingerprint=best.fingerprint or f"{best.slug}:{best.signature or best.source}",
        gpu=best.gpu,
    )


def _place(piece: Evidence) -> tuple[str, str]:
    return (piece.where, piece.id)


def _noted(found: Diagnosis, note: str) -> Diagnosis:
    missing = (note, *found.verdict.missing)[:MAX_MISSING]
    return msgspec.structs.replace(found, verdict=msgspec.structs.replace(found.verdict, missing=missing))


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a third-party exception may fail again when it is printed
        return "(no text)"


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
