"""Builds the verdict document, with proof, consequences, rejected alternatives and missing evidence, all bounded."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from rankfall.model import (
    Alternative,
    Case,
    Cause,
    Confidence,
    Consequence,
    Decisive,
    Diagnosis,
    Evidence,
    IndependentFault,
    NodeAction,
    Proof,
    Retry,
    Scope,
    Time,
    Verdict,
    cause_info,
)
from rankfall.model.evidence import same_line
from rankfall.model.exit_codes import MAX_CODE, code_row, shell_code
from rankfall.model.numbers import numbered
from rankfall.model.timestamps import Moment, rfc3339
from rankfall.model.verdict import AFTER_ROOT
from rankfall.verdict.diagnose import cause_tables as known
from rankfall.verdict.diagnose.candidates import HANG, Candidate, Root, of_node, text_place
from rankfall.verdict.diagnose.consequences import only_text, stays
from rankfall.verdict.diagnose.displayed_line import lacks_reason, last_error, named_rank, nearest_line, whole_message
from rankfall.verdict.diagnose.node_faults import named_hosts, place_of
from rankfall.verdict.diagnose.subjects import Subject, Subjects, own_failure, state_of, work_over

MAX_PROOF: Final = 40
MAX_ALTERNATIVES: Final = 20
MAX_LINE: Final = 2000
MAX_MISSING: Final = 20
MAX_INDEPENDENT: Final = 8
_NO_FIRST: Final = "a message of the rank that failed first: the existing messages are of ranks that waited for it"


def _decisive(piece: Evidence | None) -> Decisive | None:
    return Decisive(source=piece.source, where=piece.where, line=piece.line[:MAX_LINE]) if piece is not None else None


def decisive_of(chosen: Candidate, subjects: Subjects) -> Decisive | None:
    """Candidate's decisive evidence as a part of the document; None if only facts explain it."""
    if chosen.best is not None:
        return _decisive(whole_message(chosen.best, subjects))
    if chosen.tier == HANG:
        # What others report about a rank that reports nothing itself.
        peers = (chosen.subject.rank_number,)
        named = [e for s in subjects.all.values() for e in s.complaints if e.source == "log" and e.peers == peers]
        if named:
            return _decisive(max(named, key=lambda e: (e.specificity, e.id)))
    facts = chosen.subject.rank or chosen.subject.slot
    code = facts.exit_code if facts is not None else None
    lines = [e for e in chosen.subject.evidence if e.source == "log" and e.slug == chosen.slug]
    lines = [e for e in lines if e.exit_code == code] or lines
    if lines:
        return _decisive(max(lines, key=lambda e: (e.specificity, *text_place(e))))
    return Decisive(source="exit", where=facts.where, line=chosen.because) if facts else None


def proof_of(subjects: Subjects, chosen: Candidate | None) -> tuple[Proof, ...]:
    """Chosen candidate's evidence, then that of other subjects; bounded."""
    own = {s.key for s in (chosen.subject, *chosen.same[:8])} if chosen else set()
    role = {"primary": 0, "secondary": 1, "context": 2}

    def order(row: tuple[Subject, Evidence]) -> tuple[object, ...]:
        subject, e = row
        moment, _ = subject.when(e).common
        at = moment if moment is not None else 1 << 62
        place = (e.stream or "", e.order or 0, e.where)
        # A launcher's line is less useful than lines with the reason.
        kind = role["context"] if e.source == "log" and e.exit_code is not None else role[e.role]
        if chosen is not None and subject.key in own:
            return (0, e is not chosen.best, e.slug != chosen.slug, kind, at, *place, e.id)
        return (1, kind, known.NEAREST.get(e.slug, 5), 0, at, *place, e.id)

    rows = [(s, e) for s in subjects.all.values() for e in s.evidence]
    return tuple(as_proof(s, e) for s, e in heapq.nsmallest(MAX_PROOF, rows, key=order))


def as_proof(subject: Subject, e: Evidence) -> Proof:
    """Piece of evidence as a part of the document."""
    time = _time(subject.when(e))
    return Proof(
        id=e.id,
        source=e.source,
        slug=e.slug,
        role=e.role,
        rank=e.rank if e.rank is not None else subject.rank_number,
        slot=e.slot if e.slot is not None else subject.slot_number,
        node=e.node or subject.node,
        at=time.at,
        uncertainty_s=None if e.uncertainty is None else time.uncertainty_s,
        where=e.where,
        line=e.line[:MAX_LINE],
        trust=e.trust,
    )


def consequences_of(
    subjects: Subjects, struck: set[object], chosen: Candidate | None, *, independent: Collection[object] = ()
) -> tuple[Consequence, ...]:
    """Ranks that failed because of the root, with reasons.

    Skips the keys in ``struck`` (subjects of the root failure) and ``independent`` (subjects that failed by
    themselves). ``chosen`` is the root; None if unknown.
    """
    found = []
    for key in sorted(subjects.all, key=lambda k: (k[0], isinstance(k[1], str), k[1])):
        subject = subjects.all[key]
        if key in struck or key in independent or subject.rank is None or ("slot", subject.slot_number) in struck:
            continue
        because = _why_consequence(subject, chosen, stopper=subjects.stopper)
        if because is not None:
            found.append(Consequence(rank=subject.rank_number, slug=because[0], because=because[1]))
    return tuple(found)


def _why_consequence(subject: Subject, chosen: Candidate | None, *, stopper: str) -> tuple[str, str] | None:
    facts = subject.rank
    words = subject.complaints
    if words:
        word = min(words, key=lambda e: (known.NEAREST.get(e.slug, 5), e.at if e.at is not None else 1 << 62, e.line))
        return word.slug, word.line[:200]
    waits = [e for e in subject.evidence if e.role == "context" and e.source == "recorder"]
    if waits and chosen is not None:
        return waits[0].slug, waits[0].line[:200]
    if facts is None:
        return None
    if facts.killed_by == "agent":
        return "peer_teardown", "its own agent stopped it after another rank had failed"
    if facts.killed_by == "wrapper":
        return "peer_teardown", f"{stopper} stopped it after another rank had failed"
    if own_failure(facts) and chosen is not None and not chosen.unordered:
        return "peer_lost", AFTER_ROOT
    return None


def alternatives_of(root: Root) -> tuple[Alternative, ...]:
    """Rejected candidates with reasons, the strongest first; bounded."""
    rows = sorted(root.rejected, key=lambda row: (-row[0].tier, row[0].order))
    return tuple(
        Alternative(slug=c.slug, rank=c.subject.rank_number, rejected=reason) for c, reason in rows[:MAX_ALTERNATIVES]
    )


def independent_of(root: Root) -> tuple[IndependentFault, ...]:
    """Returns faults that neither caused the failure nor followed from it, the strongest first; bounded."""
    found = []
    rows = sorted(root.independent, key=lambda row: (-row[0].tier, row[0].order))
    for candidate, because in rows[:MAX_INDEPENDENT]:
        subject, best = candidate.subject, candidate.best
        found.append(
            IndependentFault(
                slug=candidate.slug,
                rank=subject.rank_number,
                slot=subject.slot_number,
                node=subject.node,
                time=_time(candidate.moment),
                line=best.line[:MAX_LINE] if best is not None else candidate.because,
                because=because,
            )
        )
    return tuple(found)


def missing_of(case: Case, subjects: Subjects, chosen: Candidate | None) -> tuple[str, ...]:
    """Messages about evidence that would have helped; bounded."""
    found = list(case.missing)
    if chosen is not None and chosen.slug in {"killed_unknown", "external_signal"}:
        found.append("the sender of the signal: the kernel does not record it, and Rankfall did not send it")
    signalled = chosen is not None and chosen.best is not None and chosen.best.source == "recorder"
    if chosen is not None and chosen.slug == "user_exit" and not signalled and last_error(subjects, chosen) is None:
        found.append("a message of the program: it ended with a code and without an exception")
    if case.world_size is not None:
        unseen = [n for n in range(case.world_size) if n not in subjects.ranks]
        if unseen:
            found.append(f"a start of{numbered('rank', tuple(unseen))}")
        unread = tuple(
            r.rank
            for r in subjects.ranks.values()
            if r.state == "ended" and r.exit_code is None and r.signal is None and r.killed_by is None
        )
        if unread:
            found.append(f"the exit status of{numbered('rank', unread)}: no process could read it")
    return tuple(dict.fromkeys(found))[:MAX_MISSING]


def assemble(case: Case, subjects: Subjects, root: Root) -> Diagnosis:
    """Diagnosis for a root."""
    if root.chosen is not None:
        return _of_candidate(case, subjects, root, root.chosen)
    return _of_consequences(case, subjects, root)


def _of_candidate(case: Case, subjects: Subjects, root: Root, chosen: Candidate) -> Diagnosis:
    subject = chosen.subject
    facts = subject.rank
    everywhere = root.everywhere or root.unnamed
    scope: Scope | None = (
        None
        if root.unnamed
        else "all"
        if everywhere
        else "rank"
        if facts
        else "slot"
        if subject.slot_number is not None
        else "external"
    )
    confidence = _tied(chosen.confidence) if root.tied else chosen.confidence
    slug = chosen.slug
    if lacks_reason(chosen, subjects):
        slug, confidence = "unknown", "unknown"
    info = cause_info(slug)
    late = chosen.after_work or work_over(case, subjects, subject)
    doubtful = only_text(chosen, subjects)
    unsure = doubtful or any(map(stays, root.tied))
    members = [subject, *chosen.same]
    one_slot = len({s.slot_number for s in members}) == 1
    action = _node_action(info.node_action, chosen, nowhere=everywhere or doubtful or _same_everywhere(chosen, case))
    hosts = named_hosts(subjects, chosen)
    verdict = Verdict(
        run=case.run,
        attempt=case.attempt,
        state=state_of(case),
        exit_origin="rank" if _code(subjects, subject) is not None else "rankfall",
        cause=Cause.of(slug, confidence=confidence),
        scope=scope,
        rank=None if everywhere else subject.rank_number,
        local_rank=None if everywhere else _local_rank(chosen),
        role=_role(case, subjects, members if everywhere else [subject]),
        slot=subject.slot_number if not everywhere or one_slot else None,
        pod=None if everywhere else place_of(chosen, "pod"),
        node=place_of(chosen, "node") if len(hosts) < 2 and (not everywhere or one_slot) else None,  # noqa: PLR2004 - none of several is named
        gpu=chosen.gpu,
        time=_time(chosen.moment),
        decisive=_decisive(last_error(subjects, chosen)) or decisive_of(chosen, subjects),
        evidence=proof_of(subjects, chosen),
        consequences=consequences_of(
            subjects,
            {s.key for s in members},
            chosen,
            independent={c.subject.key for c, _ in root.independent if not of_node(c.best)},
        ),
        alternatives=alternatives_of(root),
        missing=missing_of(case, subjects, chosen),
        independent=independent_of(root) or msgspec.UNSET,
        phase="teardown" if late else msgspec.UNSET,
        retry="no"
        if late
        else _retry(info.retry, chosen, case, one_node=_one_node(subjects, members), doubtful=unsure),
        node_action=action,
        exclude=",".join(hosts) or msgspec.UNSET if action != "none" and case.run is None else msgspec.UNSET,
    )
    return Diagnosis(
        verdict=verdict,
        fingerprint=chosen.fingerprint,
        exit_code=1 if chosen.stopped_after_exception else _code(subjects, subject),
        mark=chosen.best.mark if chosen.best else None,
    )


def _of_consequences(case: Case, subjects: Subjects, root: Root) -> Diagnosis:
    """Diagnosis if no cause was found: named after a consequence, or ``unknown``."""
    missing = list(missing_of(case, subjects, None))
    subject, piece = root.nearest or (None, None)
    slug = known.named_after(piece)
    if slug == "external_signal" and (piece is None or " from outside by " not in piece.line):
        missing.insert(0, "the sender of the signal: the kernel does not record it")
    elif root.suspects:
        missing.insert(
            0, f"a message of the suspected peer{numbered('rank', root.suspects)}: it left no reason for its end"
        )
    begun = tuple(slot for slot in root.suspect_slots if slot in subjects.slots and subjects.slots[slot].started_at)
    if begun:
        missing.insert(0, f"any line and the end of{numbered('slot', begun)}: it started, but its log was not readable")
    if absent := tuple(slot for slot in root.suspect_slots if slot not in begun):
        missing.insert(0, f"any rank of{numbered('slot', absent)}: it never joined")
    if root.repeated:
        missing.insert(
            0, "a message of the part that failed first: the existing messages only repeat that something failed"
        )
    nearest = nearest_line(subjects) if root.nearest is None else None
    if nearest is not None and nearest.slug == "unknown":
        missing.insert(0, known.LACKS_OF_LINE[nearest.signature == known.CUT_OFF])
    # The signal was sent to this subject, and a data worker is its child.
    named = piece is not None and (slug in {"external_signal", "dataloader_died"} or root.alone)
    if root.alone:
        missing.insert(0, "the other end: no other rank failed by itself, so the peer was probably outside the job")
    at_subject = named and subject is not None and (subject.slot_number is not None or subject.rank is not None)
    struck: set[object] = {
        s.key for s in subjects.all.values() if at_subject and any(same_line(e, piece) for e in s.evidence)
    }
    rank = root.suspects[0] if not at_subject and len(root.suspects) == 1 else None
    if rank is None and nearest is not None:
        rank = named_rank(subjects, nearest)
    suspect = subjects.ranks.get(rank) if rank is not None else None
    if rank is not None:
        struck.add(("rank", rank))
    info = cause_info(slug)
    confidence: Confidence = "unknown" if piece is None else "likely" if named and not root.alone else "suspected"
    if at_subject and subject is not None:
        slot, node, rank = subject.slot_number, subject.node, subject.rank_number if len(struck) < 2 else None  # noqa: PLR2004 - a line about several names none
        struck.add(subject.key)
    else:
        slot, node = (suspect.slot, suspect.node) if suspect else (None, None)
        if slot is None and len(root.suspect_slots) == 1:
            slot = root.suspect_slots[0]
            node = subjects.slots[slot].node if slot in subjects.slots else None
    if node is None and piece is not None and piece.signature in known.LOST_DAEMONS:
        lost = {e.node for s in subjects.all.values() for e in s.evidence if e.signature in known.LOST_DAEMONS} - {None}
        node = lost.pop() if len(lost) == 1 else None
    place = subjects.slots.get(slot) if slot is not None else None
    late = piece is not None and subject is not None and (piece.teardown or work_over(case, subjects, subject))
    verdict = Verdict(
        run=case.run,
        attempt=case.attempt,
        state=state_of(case),
        exit_origin="rankfall",
        cause=Cause.of(slug, confidence=confidence),
        scope="rank" if rank is not None else "slot" if slot is not None else None,
        rank=rank,
        local_rank=suspect.local_rank
        if suspect
        else subject.rank.local_rank
        if at_subject and subject and subject.rank and rank is not None
        else piece.local_rank
        if named and piece
        else None,
        role=(place.role if place else None) or case.role,
        slot=slot,
        pod=place.pod if place else None,
        node=node,
        time=_time(subject.when(piece)) if piece and subject else Time(),
        decisive=_decisive(whole_message(piece, subjects) if piece is not None else nearest),
        evidence=proof_of(subjects, None),
        consequences=consequences_of(subjects, struck, None),
        alternatives=alternatives_of(root),
        independent=independent_of(root) or msgspec.UNSET,
        missing=tuple(missing)
        or (_NO_FIRST if slug in {*known.LOST_PEER_SLUGS, "rank_stuck"} else "any evidence of why the job ended",),
        phase="teardown" if late else msgspec.UNSET,
        retry="no" if late else (piece.retry if piece else None) or info.retry,
        node_action="none",
    )
    fingerprint = (piece.fingerprint if piece else None) or slug
    code = _code(subjects, subject) if at_subject and subject is not None else None
    return Diagnosis(verdict=verdict, fingerprint=fingerprint, exit_code=code)


def _role(case: Case, subjects: Subjects, named: Sequence[Subject]) -> str | None:
    """Common role of these subjects; without one the case's, which may be None."""
    found = set()
    for subject in named:
        place = subjects.slots.get(subject.slot_number) if subject.slot_number is not None else None
        found.add((subject.rank.role if subject.rank else None) or (place.role if place else None) or case.role)
    return found.pop() if len(found) == 1 else case.role


def _local_rank(chosen: Candidate) -> int | None:
    if chosen.subject.rank is not None and chosen.subject.rank.local_rank is not None:
        return chosen.subject.rank.local_rank
    if chosen.best is not None and chosen.best.local_rank is None and chosen.subject.rank is None:
        # The only process that a launcher reports as ended.
        ends = {e.local_rank for e in chosen.subject.evidence if e.role == "primary" and e.exit_code is not None}
        return ends.pop() if len(ends) == 1 else None
    return chosen.best.local_rank if chosen.best else None


def _code_of(subject: Subject) -> int | None:
    facts = subject.rank or subject.slot
    return shell_code(code=facts.exit_code, signal=facts.signal) if facts else None


def _code(subjects: Subjects, subject: Subject) -> int | None:
    code = _code_of(subject)
    slot = subject.slot
    if code is None and subject.rank is not None and slot is not None and slot.launcher == "plain":
        # The slot's code is its first failing rank's: certain only with one rank.
        alone = sum(1 for rank in subjects.ranks.values() if rank.slot == slot.slot) == 1
        code = shell_code(code=slot.exit_code, signal=slot.signal) if alone and slot.killed_by != "wrapper" else None
    return code or None


def _tied(confidence: Confidence) -> Confidence:
    return "likely" if confidence == "proven" else "suspected"


def _time(moment: Moment) -> Time:
    """Time by the common clock, as far as possible; none of a log that names no zone."""
    at, uncertainty = moment.common if moment.clock != "text" else (None, 0.0)
    return Time(at=rfc3339(at), uncertainty_s=uncertainty) if at is not None else Time()


def _retry(default: Retry, chosen: Candidate, case: Case, *, one_node: bool, doubtful: bool) -> Retry:
    """Catalogue's retry advice, changed only by the evidence."""
    found = _retry_of(default, chosen, case, one_node=one_node)
    return "once" if doubtful and found in {"yes", "elsewhere"} else found


def _retry_of(default: Retry, chosen: Candidate, case: Case, *, one_node: bool) -> Retry:
    mark = chosen.best.mark if chosen.best else None
    if mark is not None:
        return "yes" if mark == "retryable" else "no"
    if chosen.best is not None and chosen.best.retry is not None:
        return chosen.best.retry
    code = _code_of(chosen.subject) if chosen.slug == "user_exit" else None
    if code is not None and code <= MAX_CODE and code_row(code).action == "restart":
        return "yes"
    if _same_everywhere(chosen, case):
        return "no"
    if one_node and chosen.slug in known.NODE_FAULT_WHEN_SINGLE:
        return "elsewhere"
    if of_node(chosen.best) and chosen.confidence == "suspected":
        return "once"
    unrecognized = chosen.best is not None and chosen.best.signature in known.UNRECOGNIZED
    if default == "no" and chosen.confidence in {"suspected", "unknown"} and not (case.hung or unrecognized):
        return "once"
    return default


def _same_everywhere(chosen: Candidate, case: Case) -> bool:
    signature = getattr(chosen.best, "signature", None)
    return signature in known.BUILDS or (case.run is None and not known.IMAGES.isdisjoint({chosen.slug, signature}))


def _one_node(subjects: Subjects, named: Sequence[Subject]) -> bool:
    """True if one node was affected, while slots on another started."""
    nodes, struck = {s.node for s in named}, {s.slot_number for s in named}
    begun = {s.node for s in subjects.slots.values() if s.slot not in struck and s.state in {"running", "ended"}}
    return len(nodes) == 1 and None not in nodes and bool(begun - nodes - {None})


def _node_action(most: NodeAction, chosen: Candidate, *, nowhere: bool) -> NodeAction:
    """Node action; only evidence that a job cannot forge marks a node.

    ``most``: the catalogue's action. ``nowhere``: all ranks have the fault, so no node's action.
    """
    if nowhere or most == "none" or chosen.confidence in {"suspected", "unknown"}:
        return "none"
    trusted = chosen.best is not None and chosen.best.trust in {"kernel", "platform"}
    if most == "taint" and not (trusted and (chosen.confidence == "proven" or not of_node(chosen.best))):
        return "suspect"
    return most
