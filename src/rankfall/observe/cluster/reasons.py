"""What the platform's own reasons mean: the table ``reasons.csv``, and evidence made from it.

Reasons of the kubelet, the scheduler and the API are statements of the platform, never of the job. A reason that is not in the table
makes no evidence: it stays in the journal of pods.
"""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import Final, Literal

import msgspec

from rankfall.model import Evidence
from rankfall.observe.cluster.podfacts import ContainerFact, PodFact, stamp_ns
from rankfall.observe.text import digest

Place = Literal["waiting", "terminated", "pod", "disruption", "scheduled"]

_LINE: Final = 1000
_KILLED: Final = 128 + 9
_TERMINATED: Final = 128 + 15


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One row: where the reason stands, its name, the cause it proves and how specific that is."""

    where: Place
    reason: str
    slug: str
    specificity: int


@functools.cache
def table() -> dict[tuple[str, str], Reason]:
    """All rows by place and reason."""
    text = resources.files(__package__).joinpath("reasons.csv").read_text(encoding="utf-8")
    rows = msgspec.convert(list(csv.DictReader(text.splitlines())), list[Reason], strict=False)
    return {(row.where, row.reason): row for row in rows}


def ending_evidence(fact: PodFact, *, attempt: int) -> list[Evidence]:
    """Why a pod ended, where the platform says so: its reason, a disruption, the reason of its container. Stands once it is seen."""
    found = []
    if fact.reason is not None:
        found.append(_evidence(fact, "pod", fact.reason, fact.message, at=None, attempt=attempt))
    disruption = fact.condition("DisruptionTarget")
    if disruption is not None and disruption.status == "True" and disruption.reason:
        at = stamp_ns(disruption.at)
        found.append(_evidence(fact, "disruption", disruption.reason, disruption.message, at=at, attempt=attempt))
    for end in (fact.last, fact.main):
        if end is not None and end.state == "terminated" and end.reason and end.exit_code != 0:
            piece = _evidence(
                fact,
                "terminated",
                end.reason,
                f"exit code {end.exit_code}",
                at=stamp_ns(end.finished),
                attempt=attempt,
            )
            found.append(_weighed(piece, end))
    return [piece for piece in found if piece is not None]


def waiting_evidence(fact: PodFact, *, attempt: int) -> list[Evidence]:
    """Why a pod does not start. True only while it waits, so it is asked for when a verdict is made."""
    if fact.phase != "Pending":
        return []
    found = []
    if fact.main is not None and fact.main.state == "waiting" and fact.main.reason:
        found.append(_evidence(fact, "waiting", fact.main.reason, fact.main.message, at=None, attempt=attempt))
    scheduled = fact.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.reason:
        at = stamp_ns(scheduled.at)
        found.append(_evidence(fact, "scheduled", scheduled.reason, scheduled.message, at=at, attempt=attempt))
    return [piece for piece in found if piece is not None]


def _weighed(piece: Evidence | None, end: ContainerFact) -> Evidence | None:
    """``OOMKilled`` says that some process of the container was killed for memory, at some time; of its end it proves a SIGKILL only.

    errors.md M5 to M7: 137 is the whole container's; another code leaves the proof to the cgroup's counter; 143 is somebody else's stop.
    """
    if piece is None or end.reason != "OOMKilled" or end.exit_code == _KILLED:
        return piece
    return None if end.exit_code == _TERMINATED else msgspec.structs.replace(piece, role="context")


def _evidence(
    fact: PodFact, where: Place, reason: str, message: str | None, *, at: int | None, attempt: int
) -> Evidence | None:
    row = table().get((where, reason))
    if row is None:
        return None
    return Evidence(
        id=digest("pod", attempt, fact.uid, where, reason),
        source="pod",
        slug=row.slug,
        role="primary",
        trust="platform",
        slot=fact.slot,
        node=fact.node,
        at=at if at is not None else fact.seen_ns,
        # The API gives whole seconds; what has no time of its own happened at some time before it was seen.
        uncertainty=1.0 if at is not None else 5.0,
        where=f"pod/{fact.name}",
        line=f"{reason}: {message}"[:_LINE] if message else reason,
        specificity=row.specificity,
        fingerprint=f"{row.slug}:{where}:{reason}",
        detail=_words(where, reason),
        attempt=attempt,
    )


def _words(where: Place, reason: str) -> str:
    """As failure rules match them: ``reason=...`` and, of a condition, ``condition=...``."""
    condition = {"disruption": "condition=DisruptionTarget ", "scheduled": "condition=PodScheduled "}.get(where, "")
    return f"{condition}reason={reason}"
