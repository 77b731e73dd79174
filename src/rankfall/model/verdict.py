"""``rankfall.verdict/1``, exactly the JSON of ``rankfall why -o json``, and the decision made from a verdict.

Unknown fields are null; none is left out. A fault that strikes all ranks at once has rank null and scope
``all``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankfall.model.causes import EvidenceRole, Family, NodeAction, Retry, cause_info
from rankfall.model.evidence import Source, Trust

Action = Literal["none", "retry", "retry_elsewhere", "resize", "quarantine", "stop"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. It is written down as ``intent``, carried out, and written down as ``done``.

    Attributes:
        rule: name of the rule of ``rankfall.verdict.decide`` that fired.
        budget: name of the budget it drew on, as ``total`` or ``unknown``; empty when it used none.
        left: what is left in the tightest budget after this decision.
        at: RFC 3339 with nanoseconds, UTC.
        delay_s: back-off before the next attempt, seconds.
    """

    action: Action
    rule: str
    because: str
    budget: str | None = None
    left: int | None = None
    at: str | None = None
    state: Literal["intent", "done"] = "intent"
    delay_s: float = 0.0


SCHEMA = "rankfall.verdict/1"

Confidence = Literal["proven", "likely", "suspected", "unknown"]
Scope = Literal["rank", "slot", "node", "all", "external"]
ExitOrigin = Literal["rank", "rankfall"]
RunState = Literal[
    "queued",
    "starting",
    "running",
    "restarting",
    "suspended",
    "succeeded",
    "failed",
    "cancelled",
    "deleted",
    "unknown",
]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What happened: a slug of the catalogue and how sure that is."""

    slug: str
    family: Family
    title: str
    confidence: Confidence

    @classmethod
    def of(cls, slug: str, *, confidence: Confidence) -> Cause:
        """The cause ``slug`` with family and title from the catalogue."""
        info = cause_info(slug)
        return cls(slug=slug, family=info.family, title=info.title, confidence=confidence)


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """When, as RFC 3339 with nanoseconds in UTC, with the uncertainty in seconds; both null when unknown."""

    at: str | None = None
    uncertainty_s: float | None = None


class Decisive(msgspec.Struct, frozen=True, kw_only=True):
    """The one observation that decided; ``where`` is ``path:line`` of the stream, the record or the object."""

    source: Source
    where: str
    line: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence as it is shown."""

    id: str
    source: Source
    slug: str
    role: EvidenceRole
    rank: int | None
    slot: int | None
    node: str | None
    at: str | None
    uncertainty_s: float | None
    where: str
    line: str
    trust: Trust


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that fell because of the root. ``rank`` is null where the evidence does not say which one it was."""

    rank: int | None
    slug: str
    because: str


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another candidate and why it was not chosen."""

    slug: str
    rank: int | None
    rejected: str


class IndependentFault(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong as well, and neither caused the fall nor followed from it; ``because`` says how that is known.

    A fault of a healthy rank's node, or an exception that another rank's own code raised.
    """

    slug: str
    rank: int | None
    slot: int | None
    node: str | None
    time: Time
    line: str
    because: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Cause, rank, node, confidence, proof, consequences, rejected alternatives, missing evidence.

    ``version`` grows when later, stronger evidence changes the answer of the same attempt. ``phase`` is ``teardown`` where the work
    was done when it failed, and absent otherwise; ``independent`` is absent where nothing else went wrong.
    """

    schema: str = SCHEMA
    version: int = 1
    run: str | None = None
    attempt: int | None = None
    state: RunState = "unknown"
    exit_origin: ExitOrigin | None = None
    cause: Cause
    scope: Scope | None = None
    rank: int | None = None
    local_rank: int | None = None
    role: str | None = None
    slot: int | None = None
    pod: str | None = None
    node: str | None = None
    gpu: str | None = None
    time: Time = Time()
    decisive: Decisive | None = None
    evidence: tuple[Proof, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    missing: tuple[str, ...] = ()
    independent: tuple[IndependentFault, ...] | msgspec.UnsetType = msgspec.UNSET
    phase: Literal["teardown"] | msgspec.UnsetType = msgspec.UNSET
    retry: Retry = "once"
    node_action: NodeAction = "none"
    decision: Decision | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with what only the machine needs: never printed, kept in the store.

    Attributes:
        fingerprint: of the root cause; equal for the same fault on another rank, node or time.
        exit_code: the root-cause rank's own code, 128+n for a signal; None when no rank failed or nobody could read it.
        mark: the user's word on the root's exception.
    """

    verdict: Verdict
    fingerprint: str
    exit_code: int | None = None
    mark: Literal["retryable", "final"] | None = None
