"""Decides which node faults and stops from outside may have caused the failure.

A rank on the node must have failed or become silent, and no other rank certainly earlier. Other faults are independent
and advise no action on their node.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, Literal

import msgspec

from rankfall.model import Case, Confidence, Evidence, cause_info
from rankfall.model.evidence import surely_after
from rankfall.model.patterns import bounded
from rankfall.model.timestamps import Moment, order
from rankfall.verdict.diagnose.candidates import (
    EXPLICIT,
    HANG,
    PLATFORM,
    SILENT,
    Candidate,
    Root,
    candidate_of,
    of_node,
)
from rankfall.verdict.diagnose.cause_tables import (
    CHILD_FAILED,
    NODE_SOURCES,
    OWN_CODE,
    STOPS_OF_LAUNCHERS,
    TAKEN_AWAY,
    TIMED_OUT,
)
from rankfall.verdict.diagnose.consequences import is_without_message
from rankfall.verdict.diagnose.subjects import Subject, Subjects, of_own_code, own_failure
from rankfall.verdict.signatures.matcher import SLURM

_SIGTERM: Final = 15
_OWN_RESOURCES: Final = frozenset({"user", "data", "memory", "gpu", "storage"})
_NS: Final = 1_000_000_000
# Slurm's host lists in a document, and their form.
_MAX_HOSTS: Final = 64
_HOSTS: Final = bounded(r"[\w.,\[\]-]+", limit=512)
# Words of a program that a signal stops, not those about a signal after which it continues.
_STOP_SIGNAL: Final = bounded(r"SIG(?:TERM|HUP)|[Ss]ignal:? (?:15|1)\b", limit=4096)


class _Fall(msgspec.Struct, frozen=True, kw_only=True):
    """State of the rank or slot that a node fault may have ended.

    ``failed`` is False for a consequence; None = unknown.
    """

    failed: bool | None
    victim: bool = False
    since: Moment = Moment(at=None)
    until: Moment = Moment(at=None)


def without_faults_elsewhere(
    candidates: list[Candidate], subjects: Subjects, root: Root, *, case: Case
) -> list[Candidate]:
    """Moves node faults that did not cause this failure to ``root.independent``, with reasons."""
    faults = [c for c in candidates if c.tier == PLATFORM and of_node(c.best)]
    if not faults:
        return candidates
    falls = {id(c): _fall_of(c, subjects, fault=c in faults) for c in candidates}
    left_out = []
    for fault in faults:
        others = [(o, falls[id(o)]) for o in candidates if not _same_place(fault, o)]
        why = _independent(fault, falls[id(fault)], others)
        if why is not None:
            left_out.append((fault, why))
        else:
            fault.confidence = _confidence(fault, falls[id(fault)], others, subjects, case=case)
    root.rejected += left_out
    root.independent += left_out
    return [c for c in candidates if all(c is not one for one, _ in left_out)]


def time_of(candidate: Candidate, subjects: Subjects) -> Moment:
    """Returns a candidate's time; a node was not lost before the last line of its ranks."""
    moment = candidate.moment
    if candidate.slug != "node_lost":
        return moment
    subject = candidate.subject
    alive = subject.moment(_last_line(subjects, subject.slot_number), 0.0).earliest
    low, high = moment.earliest, moment.latest
    if alive is None or low is None or high is None or not low < alive < high:
        return moment
    return Moment(at=(alive + high) // 2, uncertainty=(high - alive) / 2 / _NS)


def _last_line(subjects: Subjects, slot: int | None) -> int | None:
    lines = [s.rank.last_line_at for s in subjects.all.values() if s.rank is not None and s.rank.slot == slot]
    return max((at for at in lines if at is not None), default=None)


def _raised_apart(candidate: Candidate) -> bool:
    """True for a recorded exception about the rank's own resources that did not occur while it handled a lost peer."""
    best = candidate.best
    if best is None or best.source != "record" or best.lost_peer or candidate.weak or candidate.confidence != "proven":
        return False
    own = cause_info(candidate.slug).family in _OWN_RESOURCES and candidate.slug not in {OWN_CODE, "hub_unreachable"}
    return own and candidate.tier == EXPLICIT


def independent_faults(candidates: Iterable[Candidate], chosen: Candidate) -> list[tuple[Candidate, str]]:
    """Returns unchosen faults with their own proof: recorded exceptions, faults of other nodes."""
    found = []
    for c in candidates:
        if c.confidence == "proven" and of_own_code(c.best):
            found.append((c, "an exception of the job's own code, which no other failure explains"))
        elif _raised_apart(c) and c.slug != chosen.slug:
            found.append((c, "an exception that no lost peer explains"))
        elif (
            c.tier == PLATFORM
            and c.subject.node not in {None, chosen.subject.node}
            and cause_info(c.slug).node_action != "none"
        ):
            found.append((c, "the platform states it of another node, and no other failure explains it"))
    return found


def _independent(fault: Candidate, fall: _Fall, others: list[tuple[Candidate, _Fall]]) -> str | None:
    """Reason that this fault did not cause the failure; None if it may have."""
    real = [(other, its) for other, its in others if other.tier >= SILENT and its.failed is not False]
    if fall.failed is False:
        stuck = any(other.tier == HANG for other, _ in others)
        if fall.victim and real:
            return f"what ran on {_node(fault)} failed only as a consequence of another failure"
        return f"nothing on {_node(fault)} had failed by itself" if real or (stuck and not fall.victim) else None
    for other, its in sorted(real, key=lambda row: row[0].order):
        if order(its.until, fall.since) == "before":
            return f"{_who(other)} had failed before anything on {_node(fault)} did"
        if of_own_code(other.best) and order(fall.until, its.since) != "before":
            return f"the clocks do not show which failed first, and no fault of a node explains the exception of {_who(other)}"
    return None


def _confidence(
    fault: Candidate, fall: _Fall, others: list[tuple[Candidate, _Fall]], subjects: Subjects, *, case: Case
) -> Confidence:
    if fall.failed:
        rivals = [its for other, its in others if other.tier >= SILENT and its.failed and not _perhaps_echo(other)]
        doubted = any(order(fall.until, its.since) != "before" for its in rivals)
        return "likely" if doubted and fault.confidence == "proven" else fault.confidence
    waited = case.hung or any(e.slug in TIMED_OUT for s in subjects.all.values() for e in s.complaints)
    return fault.confidence if fall.failed is None or fall.victim or waited else "suspected"


def _perhaps_echo(candidate: Candidate) -> bool:
    """True if a lost peer may cause this failure."""
    own = candidate.slug == "user_code_exception" and of_own_code(candidate.best)
    return is_without_message(candidate) or (candidate.slug == "user_code_exception" and not own)


def _fall_of(candidate: Candidate, subjects: Subjects, *, fault: bool) -> _Fall:
    """State of the candidate's rank or slot, and its failure time."""
    subject = candidate.subject
    place = subjects.slots.get(subject.slot_number) if subject.slot_number is not None else None
    there = [s for s in subjects.all.values() if s.rank is not None and s.rank.slot == subject.slot_number]
    silent = place is not None and place.state == "lost" and candidate.tier in {PLATFORM, SILENT}
    if candidate.slug == "node_lost" or silent:
        alive = _last_line(subjects, subject.slot_number)
        return _Fall(failed=True, since=subject.moment(alive, 0.0), until=candidate.moment)
    if not fault:
        return _Fall(failed=True, since=candidate.moment, until=candidate.moment)
    if place is None:
        return _Fall(failed=None)
    ranks = [subject] if subject.rank is not None else there
    failed = [s for s in ranks if s.rank is not None and own_failure(s.rank)]
    if failed:
        return _of_own([(s, _without_faults(s)) for s in failed])
    if "unknown" in {place.state, *(s.rank.state for s in ranks if s.rank is not None)}:
        return _Fall(failed=None)
    ours = place.killed_by == "wrapper" or place.signalled or place.signal == _SIGTERM
    ended = place.state == "ended" and bool(place.exit_code or place.signal)
    all_ended = bool(ranks) and all(s.rank is not None and s.rank.state == "ended" for s in ranks)
    if ours or all_ended or not ended:
        return _Fall(failed=False)
    slot = subjects.all["slot", place.slot]
    return _of_own([(slot, _without_faults(slot))])


def _without_faults(subject: Subject) -> Candidate | None:
    """Explanation of the subject's end without node faults, or None."""
    return candidate_of(msgspec.structs.replace(subject, evidence=[e for e in subject.evidence if not of_node(e)]))


def _of_own(found: list[tuple[Subject, Candidate | None]]) -> _Fall:
    own = [(s, c) for s, c in found if c is not None and not c.weak]
    if not own:
        return _Fall(failed=False, victim=True)
    signs = [moment for s, c in own for moment in (c.moment, s.ended) if moment.common[0] is not None]
    first = min(signs, key=lambda moment: moment.common[0] or 0, default=Moment(at=None))
    return _Fall(failed=True, since=first, until=first)


def _same_place(one: Candidate, other: Candidate) -> bool:
    mine, theirs = one.subject, other.subject
    if mine.node is not None and theirs.node is not None:
        return mine.node == theirs.node
    return mine.slot_number is not None and mine.slot_number == theirs.slot_number


def _node(candidate: Candidate) -> str:
    return f"node {candidate.subject.node}" if candidate.subject.node else "that node"


def _who(candidate: Candidate) -> str:
    subject = candidate.subject
    return f"rank {subject.rank_number}" if subject.rank_number is not None else f"slot {subject.slot_number}"


def drop_deleted_after_failure(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops pods removed certainly after a recorded failure, or perhaps after an exception that no removal explains."""
    own = [c for c in candidates if c.tier == EXPLICIT and c.confidence == "proven" and not c.weak]
    raised = [c for c in own if of_own_code(c.best) and not _after_signal(c, subjects)]
    kept = []
    for candidate in candidates:
        if candidate.slug not in TAKEN_AWAY or candidate.best is None or candidate.best.source not in NODE_SOURCES:
            kept.append(candidate)
        elif any(c.before(candidate) for c in own):
            root.rejected.append((candidate, "it came after a rank had failed by itself"))
        elif any(order(candidate.moment, c.moment) != "before" for c in raised):
            why = "the clocks do not show which came first, and no removal of a pod explains the exception of a rank"
            root.rejected.append((candidate, why))
        else:
            kept.append(candidate)
    return kept


def drop_raised_after_signal(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops exceptions that a text shows after a signal had stopped its job or that rank: without it, none occurs.

    A failure that a launcher reports after them is not of that stop, as in a joined text of several nodes.
    """
    said = [(s, e) for s in subjects.all.values() for e in s.complaints if e.source == "log" and not e.passed]
    stops = [
        (s, e) for s, e in said if e.signature in STOPS_OF_LAUNCHERS or _is_stopped(s, e, alone=not subjects.ranks)
    ]

    def follows(candidate: Candidate) -> bool:
        best = candidate.best
        if best is None or best.source != "log" or not best.whole or candidate.reported_first:
            return False
        if any(e.signature == CHILD_FAILED and surely_after(e, best) for _, e in said):
            return False
        return any(
            surely_after(best, e)
            and (best.pod, best.node) == (e.pod, e.node)
            and (s is candidate.subject or e.signature in STOPS_OF_LAUNCHERS)
            for s, e in stops
        )

    after = [c for c in candidates if follows(c)]
    root.rejected += [(c, "raised after a signal had stopped the job") for c in after]
    root.independent += [(c, "no stop explains it") for c in after if c.slug != OWN_CODE]
    return [c for c in candidates if all(c is not one for one in after)]


def _is_stopped(subject: Subject, piece: Evidence, *, alone: bool) -> bool:
    """True for the report of a signal that stops a rank, or the only process of a text; ``alone``: it shows no ranks."""
    text = piece.signature == "external_signal.text" and (alone or subject.rank is not None)
    return text and _STOP_SIGNAL.search(piece.line) is not None


def _after_signal(candidate: Candidate, subjects: Subjects) -> bool:
    """True if the rank's slot had perhaps received a stop signal before: a handler may raise any exception."""
    slot = candidate.subject.slot_number
    signals = (
        s.when(e)
        for s in subjects.all.values()
        for e in s.evidence
        if e.slug == "external_signal" and e.source == "recorder" and e.slot == slot
    )
    return any(order(candidate.moment, at) != "before" for at in signals)


def named_hosts(subjects: Subjects, chosen: Candidate) -> tuple[str, ...]:
    """Host lists that Slurm's text names for the cause."""
    if not any(SLURM.search(e.line) for s in subjects.all.values() for e in s.evidence):
        return ()
    if chosen.subject.rank is not None:
        return (chosen.subject.node,) if chosen.subject.node else ()
    pieces = sorted((e for e in chosen.subject.evidence if e.slug == chosen.slug), key=lambda e: (e.order or 0, e.id))
    named = dict.fromkeys(host for e in pieces for host in (e.node, *e.peer_hosts) if host)
    return tuple(host for host in islice(named, _MAX_HOSTS) if _HOSTS.fullmatch(host))


def place_of(chosen: Candidate, kind: Literal["node", "pod"]) -> str | None:
    """Node or pod of the decisive line in a text of several, else of the subject; None if several ranks name several."""
    found = {getattr(each, kind) for each in chosen.same if each.rank is not None}
    best, facts = chosen.best, chosen.subject.rank or chosen.subject.slot
    own = getattr(best, kind) if best is not None and best.source == "log" else None
    mine = (getattr(facts, kind) if facts is not None else None) or own
    if mine is None:
        # A text of several nodes does not show on which of them a line without a place was printed.
        named = {getattr(e, kind) for e in chosen.subject.evidence} - {None}
        mine = getattr(chosen.subject, kind) if facts is not None or len(named) < 2 else None  # noqa: PLR2004 - as above
    return mine if found <= {mine, None} else None
