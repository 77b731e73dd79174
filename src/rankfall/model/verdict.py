"""``rankfall.verdict/1``, the JSON of ``rankfall why -o json``, and the decision from it.

Unknown fields are null, never absent. A fault of all ranks has rank null and scope ``all``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from rankfall.model.causes import EvidenceRole, Family, NodeAction, Retry, cause_info
from rankfall.model.evidence import Source, Trust

# Begins an entry of ``missing`` about a hang; the duration without progress follows.
HANG: Final = "an end of the ranks: "

Action = Literal["none", "retry", "retry_elsewhere", "resize", "quarantine", "stop"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision; stored as ``intent``, executed, stored as ``done``.

    Attributes:
        action: Reaction to the verdict.
        because: Reason, for people.
        state: ``done`` once executed.
        rule: Matching rule of ``rankfall.verdict.decide``.
        budget: Name of the budget that the restart uses, as ``total``; empty = none.
        left: Restarts left in the tightest budget.
        at: RFC 3339, nanoseconds, UTC.
        delay_s: Back-off before the next attempt, seconds.
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
    """A slug of the catalogue and its confidence.

    Attributes:
        slug: Name in docs/causes.md.
        family: Group of causes, also a key of budgets.
        title: Cause for people.
        confidence: Strength of the proof.
    """

    slug: str
    family: Family
    title: str
    confidence: Confidence

    @classmethod
    def of(cls, slug: str, *, confidence: Confidence) -> Cause:
        """Returns cause ``slug`` with the catalogue's family and title."""
        info = cause_info(slug)
        return cls(slug=slug, family=info.family, title=info.title, confidence=confidence)


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """A time with its uncertainty; null if unknown.

    Attributes:
        at: RFC 3339, nanoseconds, UTC.
        uncertainty_s: Seconds by which ``at`` may be wrong, in both directions.
    """

    at: str | None = None
    uncertainty_s: float | None = None


class Decisive(msgspec.Struct, frozen=True, kw_only=True):
    """The deciding observation.

    Attributes:
        where: ``path:line`` of a stream, or path of a record or object.
        line: Its text; a job can choose it.
    """

    source: Source
    where: str
    line: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence for display.

    Attributes:
        id: Content identity; equal ids are one piece.
        role: Part in the failure; only ``primary`` can be the root.
        where: As in :class:`Decisive`.
    """

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


#: Reason of a consequence that nothing but its time connects with the root.
AFTER_ROOT: Final = "it failed after the root; see alternatives"


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that failed because of the root.

    Attributes:
        rank: Null if unknown.
    """

    rank: int | None
    slug: str
    because: str


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected candidate.

    Attributes:
        rejected: Reason.
    """

    slug: str
    rank: int | None
    rejected: str


class IndependentFault(msgspec.Struct, frozen=True, kw_only=True):
    """Another fault, neither cause nor consequence.

    Attributes:
        because: Proof.
    """

    slug: str
    rank: int | None
    slot: int | None
    node: str | None
    time: Time
    line: str
    because: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Form of a redacted or bounded document.

    Attributes:
        sentence: The verdict in one sentence.
        redacted: True if secrets are masked.
        max_bytes: Bound of the document, bytes; null = none.
        cut: Removed rows of each field, and ``characters``.
        untrusted: JSON pointers of text that a job can choose, ``*`` for any index.
    """

    sentence: str
    redacted: bool
    max_bytes: int | None
    cut: dict[str, int]
    untrusted: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Cause, rank, node, confidence, proof, consequences, rejected alternatives, missing evidence.

    Attributes:
        version: From 1; later, stronger evidence increments it.
        run: Null for files.
        attempt: From 1; null for files.
        state: State of the run at the verdict.
        exit_origin: Root-cause rank or Rankfall: whose code ends the run.
        scope: Extent of the root cause; ``external``: outside the job.
        time: Time of the root cause.
        decisive: Observation that decides; null without a cause.
        evidence: Proof and context, the most important first.
        consequences: Failures because of the root.
        alternatives: Rejected candidates.
        missing: Unavailable evidence, as sentences.
        independent: Other faults; absent if empty.
        phase: ``teardown`` if the work was complete, else absent.
        exclude: Slurm's list of suspected nodes, else absent.
        succeeded_in: Later attempt in which the run succeeded, else absent.
        retry: Advice about a restart.
        node_action: Advice about the node.
        decision: Reaction; null before it, and for files.
        answer: Absent from the complete document.
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
    exclude: str | msgspec.UnsetType = msgspec.UNSET
    succeeded_in: int | msgspec.UnsetType = msgspec.UNSET
    retry: Retry = "once"
    node_action: NodeAction = "none"
    decision: Decision | None = None
    answer: Answer | msgspec.UnsetType = msgspec.UNSET

    def _repr_html_(self) -> str | None:
        """Shows the verdict in a notebook; None, and so as text, without the Python API."""
        return _MAKERS_OF_HTML[-1](self) if _MAKERS_OF_HTML else None


# Model does not know how a verdict is rendered.
_MAKERS_OF_HTML: Final[list[Callable[[Verdict], str]]] = []


def render_notebooks_with(make: Callable[[Verdict], str]) -> None:
    """Sets what makes the HTML of verdicts in notebooks."""
    _MAKERS_OF_HTML.append(make)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with internal data; stored, never printed.

    Attributes:
        verdict: Public part.
        fingerprint: Equal for the same fault on another rank, node or time.
        exit_code: Root-cause rank's code, 128+n for a signal; None if unknown.
        mark: User's mark on the root exception.
    """

    verdict: Verdict
    fingerprint: str
    exit_code: int | None = None
    mark: Literal["retryable", "final"] | None = None
