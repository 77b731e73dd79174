"""Table of platform reasons (reasons.csv), and their evidence about pods.

An unknown reason gives no evidence. The first row with matching text counts.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from rankfall.model import Evidence, decoding
from rankfall.model.causes import EvidenceRole, Retry
from rankfall.model.evidence import digest
from rankfall.model.patterns import Bounded, bounded
from rankfall.rundir.cluster.clock_bounds import by_server
from rankfall.rundir.cluster.pod_facts import ContainerFact, OtherEnd, PodFact, stamp_ns

# Location of a reason; ``made``, ``work``, ``suspended``: of an object that creates pods; ``taint``, ``node``: of a node
# that its platform will take.
Place = Literal[
    "waiting",
    "terminated",
    "pod",
    "disruption",
    "termination",
    "ready",
    "scheduled",
    "event",
    "made",
    "work",
    "suspended",
    "taint",
    "node",
]
# Conditions of a removed pod: location in the table, and status.
_TAKEN: Final[Mapping[str, tuple[Place, str]]] = MappingProxyType(
    {
        "DisruptionTarget": ("disruption", "True"),
        # Kueue's.
        "TerminationTarget": ("termination", "True"),
        # Volcano's.
        "Ready": ("ready", "False"),
    }
)

_LINE: Final = 1000
_KILLED: Final = 128 + 9
_TERMINATED: Final = 128 + 15
# A container lost by its kubelet: its end is invented.
NOT_FOUND: Final = "ContainerStatusUnknown"
# Seconds after the deadline in which a live node reports a container's end.
_ANSWERS_S: Final = 30
_MARGIN_S: Final = 30
_NS: Final = 1_000_000_000
NEVER_BEGAN: Final = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
_REFUSED: Final = "admission_rejected"
_REJECTED: Final = "Pod was rejected: "
_ANY: Final = "*"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        where, reason: Location and name; a final ``*`` means a prefix.
        text: Case-insensitive pattern for the message; empty = any.
        slug, specificity, role: Meaning as evidence.
        retry: Retry advice unlike the cause's.
    """

    where: Place
    reason: str
    text: str = ""
    slug: str
    specificity: int
    role: EvidenceRole = "primary"
    retry: Retry | Literal[""] = ""


@functools.cache
def rows() -> tuple[Reason, ...]:
    """All rows, in order."""
    text = resources.files(__package__).joinpath("reasons.csv").read_text(encoding="utf-8")
    return tuple(decoding.convert(list(csv.DictReader(text.splitlines())), list[Reason], strict=False))


@functools.cache
def _by_place() -> dict[tuple[str, str], tuple[tuple[Bounded[str], Reason], ...]]:
    found: dict[tuple[str, str], tuple[tuple[Bounded[str], Reason], ...]] = {}
    for row in rows():
        key = (row.where, row.reason)
        found[key] = (*found.get(key, ()), (bounded(row.text, limit=8_192, flags=re.IGNORECASE), row))
    return found


def row_of(where: Place, reason: str, message: str | None) -> Reason | None:
    """Row of a reason; None if the table has none."""
    table = _by_place()
    found = table.get((where, reason))
    if found is None:
        begins = (name[: -len(_ANY)] for place, name in table if place == where and name.endswith(_ANY))
        prefix = next((name for name in begins if reason.startswith(name)), None)
        found = table[where, prefix + _ANY] if prefix is not None else ()
    return next((row for text, row in found if text.search(message or "")), None)


def end_evidence(fact: PodFact, *, attempt: int) -> list[Evidence]:
    """Evidence why a pod ended; remains valid once seen."""
    found = []
    if fact.reason is not None:
        found.append(_of_pod(fact, fact.reason, attempt=attempt))
    for kind, (where, status) in _TAKEN.items():
        taken = fact.condition(kind)
        if taken is not None and taken.status == status and taken.reason:
            at = stamp_ns(taken.at)
            piece = _evidence(fact, where, taken.reason, taken.message, at=at, attempt=attempt)
            if piece is not None and piece.slug != "node_lost" and _ended_before(fact, at):
                piece = msgspec.structs.replace(piece, role="context")
            found += [piece, _answered(piece, fact, at=at)]
    for end in (fact.last, fact.main):
        if end is not None and end.state == "terminated" and end.reason and end.exit_code != 0:
            piece = _evidence(
                fact,
                "terminated",
                end.reason,
                _end_text(end),
                at=stamp_ns(end.finished),
                attempt=attempt,
            )
            found.append(_weighed(piece, end))
    found += [_of_other(fact, other, attempt=attempt) for other in fact.failed_others if not other.init or fact.over]
    return [piece for piece in found if piece is not None]


def waiting_evidence(fact: PodFact, *, attempt: int) -> list[Evidence]:
    """Reasons against a pod's start; valid only while it waits."""
    if fact.phase != "Pending":
        return []
    found = []
    if fact.main is not None and fact.main.state == "waiting" and fact.main.reason:
        found.append(_evidence(fact, "waiting", fact.main.reason, fact.main.message, at=None, attempt=attempt))
    found += [_of_other(fact, other, attempt=attempt) for other in fact.failed_others if other.init]
    scheduled = fact.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and scheduled.reason:
        at = stamp_ns(scheduled.at)
        found.append(_evidence(fact, "scheduled", scheduled.reason, scheduled.message, at=at, attempt=attempt))
    return [piece for piece in found if piece is not None]


def _of_other(fact: PodFact, other: OtherEnd, *, attempt: int) -> Evidence | None:
    """Evidence of another container's failed end: the reason why the training container never began, else context.

    None for a sidecar that the kubelet stopped after the training container.
    """
    end, blocks = other.end, other.init and not fact.began
    killed = (end.exit_code or 0) in {_KILLED, _TERMINATED} and end.reason != "OOMKilled"
    if not blocks and (other.init or killed):
        return None
    memory = end.reason == "OOMKilled"
    slug = "host_oom" if memory else "container_config" if blocks else "user_exit"
    at = stamp_ns(end.finished)
    seen, uncertainty = _when(fact, at, node=True)
    last = (end.message or "").strip().rpartition("\n")[2]
    words = f"{'init container' if other.init else 'container'} {other.name}: {end.reason or 'ended'}: exit code {end.exit_code}"
    return Evidence(
        id=digest("container", attempt, fact.uid, other.name, end.restarts),
        source="pod",
        slug=slug,
        role="primary" if blocks else "context",
        trust="platform",
        slot=fact.slot,
        node=fact.node,
        at=seen,
        uncertainty=uncertainty,
        stamped="here" if at is None else "node",
        where=f"pod/{fact.name}",
        line=(f"{words}: {last}" if last else words)[:_LINE],
        # Above an Event that only repeats it.
        specificity=84,
        fingerprint=f"{slug}:container:{other.name}",
        retry=None if memory or not blocks else "once",
        detail="reason=InitContainerFailed" if blocks else None,
        attempt=attempt,
    )


def _of_pod(fact: PodFact, reason: str, *, attempt: int) -> Evidence | None:
    """Evidence of a pod's reason, or None.

    The pod's ``startTime`` dates the evidence only if the node refused the pod.
    """
    row = row_of("pod", reason, fact.message)
    never_ran = fact.phase == "Failed" and fact.last is None and (fact.main is None or fact.main.state == "waiting")
    if row is None and never_ran and (fact.message or "").startswith(_REJECTED):
        row = Reason(where="pod", reason=reason, slug=_REFUSED, specificity=80)
    refused = row is not None and row.slug == _REFUSED and never_ran
    at = stamp_ns(fact.accepted) if refused else None
    return _evidence(fact, "pod", reason, fact.message, at=at, attempt=attempt, row=row)


def _ended_before(fact: PodFact, at: int | None) -> bool:
    """True if the container had ended: controllers also remove finished pods."""
    ended = stamp_ns(fact.main.finished) if fact.main is not None and fact.main.state == "terminated" else None
    return ended is not None and at is not None and by_server(fact, ended) + _MARGIN_S * _NS < at


def _answered(piece: Evidence | None, fact: PodFact, *, at: int | None) -> Evidence | None:
    """Evidence that a tainted node is alive: it reported the pod's end in time. None if it did not."""
    ended = stamp_ns(fact.main.finished) if fact.main is not None and fact.main.state == "terminated" else None
    if piece is None or piece.slug != "node_lost" or fact.main is None or ended is None or at is None:
        return None
    patience = ((fact.grace_s or 0) + _ANSWERS_S) * _NS
    if fact.main.reason == NOT_FOUND or by_server(fact, ended) - at > patience:
        return None
    return msgspec.structs.replace(
        piece,
        id=digest(piece.id, "answered"),
        slug="preempted",
        line=f"{piece.line}; the node ended the container and reported it",
        # Higher than the condition without a report.
        specificity=piece.specificity + 3,
        fingerprint="preempted:taint",
    )


def _weighed(piece: Evidence | None, end: ContainerFact) -> Evidence | None:
    """Evidence as is, as context, or None.

    ``OOMKilled`` means that some process of the container was killed for memory at some time. Code 137 means the whole
    container; for another code the cgroup's counter decides; 143 is another sender's stop.
    """
    if piece is None or end.reason != "OOMKilled" or end.exit_code == _KILLED:
        return piece
    return None if end.exit_code == _TERMINATED else msgspec.structs.replace(piece, role="context")


def _evidence(
    fact: PodFact,
    where: Place,
    reason: str,
    message: str | None,
    *,
    at: int | None,
    attempt: int,
    row: Reason | None = None,
) -> Evidence | None:
    row = row or row_of(where, reason, message)
    if row is None:
        return None
    by_node = where in {"terminated", "pod"}
    seen, uncertainty = _when(fact, at, node=by_node)
    return Evidence(
        id=digest("pod", attempt, fact.uid, where, reason),
        source="pod",
        slug=row.slug,
        role=row.role,
        trust="platform",
        slot=fact.slot,
        node=fact.node,
        at=seen,
        uncertainty=uncertainty,
        stamped="here" if at is None else "node" if by_node else "server",
        where=f"pod/{fact.name}",
        line=f"{reason}: {message}"[:_LINE] if message else reason,
        specificity=row.specificity,
        fingerprint=f"{row.slug}:{where}:{reason}",
        retry=row.retry or None,
        detail=_words(where, reason),
        attempt=attempt,
    )


def _when(fact: PodFact, at: int | None, *, node: bool) -> tuple[int, float]:
    """Returns time and uncertainty in seconds; without ``at``, between the pod's creation and observation."""
    if at is not None:
        # A platform clock ahead cannot date it after its sight; node clocks are corrected elsewhere.
        return at if node else min(at, fact.seen_ns), 1.0
    made = stamp_ns(fact.created)
    return fact.seen_ns, max(5.0, (fact.seen_ns - made) / 1e9) if made is not None else 5.0


def _end_text(end: ContainerFact) -> str:
    """Exit code; for a container that never began, also the runtime's message, which is not the job's."""
    code = f"exit code {end.exit_code}"
    return f"{code}: {end.message}" if end.reason in NEVER_BEGAN and end.message else code


def _words(where: Place, reason: str) -> str:
    """Text that failure rules match: ``reason=...``, ``condition=...``."""
    conditions = {"scheduled": "PodScheduled", **{place: kind for kind, (place, _) in _TAKEN.items()}}
    condition = conditions.get(where)
    return f"condition={condition} reason={reason}" if condition else f"reason={reason}"
