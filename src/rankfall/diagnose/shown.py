"""What a document shows beside the root: its proof, who fell because of it, what was rejected, and what is missing. Sizes are bounded here."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Final

from rankfall.diagnose.candidates import HANG, Candidate
from rankfall.diagnose.root import Root
from rankfall.diagnose.rules import NEAREST
from rankfall.diagnose.subjects import Subject, Subjects, own_failure
from rankfall.model import Alternative, Case, Consequence, Decisive, Evidence, IndependentFault, Proof, Time
from rankfall.model.times import rfc3339

MAX_PROOF: Final = 40
MAX_ALTERNATIVES: Final = 20
MAX_LINE: Final = 2000
MAX_MISSING: Final = 20
MAX_INDEPENDENT: Final = 8


def decisive_of(chosen: Candidate) -> Decisive | None:
    """The piece that decided; None where there is neither a piece nor the end of a process."""
    if chosen.best is not None:
        best = chosen.best
        return Decisive(source=best.source, where=best.where, line=best.line[:MAX_LINE])
    facts = chosen.subject.rank or chosen.subject.slot
    return Decisive(source="exit", where=facts.where, line=chosen.because) if facts else None


def proof_of(subjects: Subjects, chosen: Candidate | None) -> tuple[Proof, ...]:
    """The chosen one's own pieces first, then the others' words by role and time; bounded."""
    own = {s.key for s in (chosen.subject, *chosen.same[:8])} if chosen else set()
    role = {"primary": 0, "secondary": 1, "context": 2}

    def order(row: tuple[Subject, Evidence]) -> tuple[object, ...]:
        subject, e = row
        moment, _ = subject.when(e).common
        at = moment if moment is not None else 1 << 62
        # How a process ended, in a launcher's words, says little beside the words of why.
        kind = role["context"] if e.source == "log" and e.exit_code is not None else role[e.role]
        if chosen is not None and subject.key in own:
            return (0, e is not chosen.best, e.slug != chosen.slug, kind, at, e.where, e.id)
        return (1, kind, NEAREST.get(e.slug, 5), 0, at, e.where, e.id)

    rows = [(s, e) for s in subjects.all.values() for e in s.evidence]
    return tuple(_as_proof(s, e) for s, e in heapq.nsmallest(MAX_PROOF, rows, key=order))


def _as_proof(subject: Subject, e: Evidence) -> Proof:
    at, uncertainty = subject.when(e).common
    return Proof(
        id=e.id,
        source=e.source,
        slug=e.slug,
        role=e.role,
        rank=e.rank if e.rank is not None else subject.rank_number,
        slot=e.slot if e.slot is not None else subject.slot_number,
        node=e.node or subject.node,
        at=rfc3339(at),
        uncertainty_s=None if e.uncertainty is None else uncertainty,
        where=e.where,
        line=e.line[:MAX_LINE],
        trust=e.trust,
    )


def consequences_of(
    subjects: Subjects, struck: set[object], chosen: Candidate | None, *, independent: Collection[object] = ()
) -> tuple[Consequence, ...]:
    """Who fell because of the root, and how that is known, in the order of the subjects.

    Args:
        subjects: of the case.
        struck: keys of those that the root itself struck.
        chosen: the root; None where there is none.
        independent: keys of those that failed of something else.
    """
    found = []
    for key in sorted(subjects.all, key=lambda k: (k[0], isinstance(k[1], str), k[1])):
        subject = subjects.all[key]
        if key in struck or key in independent or subject.rank is None or ("slot", subject.slot_number) in struck:
            continue
        because = _why_victim(subject, chosen, stopper=subjects.stopper)
        if because is not None:
            found.append(Consequence(rank=subject.rank_number, slug=because[0], because=because[1]))
    return tuple(found)


def _why_victim(subject: Subject, chosen: Candidate | None, *, stopper: str) -> tuple[str, str] | None:
    facts = subject.rank
    words = subject.complaints
    if words:
        word = min(words, key=lambda e: (NEAREST.get(e.slug, 5), e.at if e.at is not None else 1 << 62, e.line))
        return word.slug, word.line[:200]
    waits = [e for e in subject.evidence if e.role == "context" and e.source == "recorder"]
    if waits and chosen is not None and chosen.tier == HANG:
        return waits[0].slug, waits[0].line[:200]
    if facts is None:
        return None
    if facts.killed_by == "agent":
        return "peer_teardown", "its own agent stopped it after another rank had failed"
    if facts.killed_by == "wrapper":
        return "peer_teardown", f"{stopper} stopped it after another rank had failed"
    if own_failure(facts) and chosen is not None and not chosen.unordered:
        return "peer_lost", "it fell after the root; see alternatives"
    return None


def alternatives_of(root: Root) -> tuple[Alternative, ...]:
    """What else was thought of and why it was rejected, the strongest first; bounded."""
    rows = sorted(root.rejected, key=lambda row: (-row[0].tier, row[0].order))
    return tuple(
        Alternative(slug=c.slug, rank=c.subject.rank_number, rejected=reason) for c, reason in rows[:MAX_ALTERNATIVES]
    )


def independent_of(root: Root) -> tuple[IndependentFault, ...]:
    """What went wrong as well, and neither caused the fall nor followed from it; bounded."""
    found = []
    for candidate, because in root.independent[:MAX_INDEPENDENT]:
        subject, best = candidate.subject, candidate.best
        at, uncertainty = candidate.moment.common
        found.append(
            IndependentFault(
                slug=candidate.slug,
                rank=subject.rank_number,
                slot=subject.slot_number,
                node=subject.node,
                time=Time(at=rfc3339(at), uncertainty_s=uncertainty) if at is not None else Time(),
                line=best.line[:MAX_LINE] if best is not None else candidate.because,
                because=because,
            )
        )
    return tuple(found)


def missing_of(case: Case, subjects: Subjects, chosen: Candidate | None) -> tuple[str, ...]:
    """What would have said more, had it been there; bounded."""
    found = list(case.missing)
    if chosen is not None and chosen.slug in {"killed_unknown", "external_signal"}:
        found.append("who sent the signal: the kernel does not tell, and nobody of Rankfall's did")
    if chosen is not None and chosen.slug == "user_exit":
        found.append("a word of the program itself: it ended with a code and without an exception")
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
            found.append(f"the exit status of{numbered('rank', unread)}: nobody could read it")
    return tuple(dict.fromkeys(found))[:MAX_MISSING]


def numbered(word: str, numbers: tuple[int, ...]) -> str:
    """`` ranks 1, 2, 3`` with a space in front, the first sixteen of them."""
    shown = ", ".join(str(n) for n in numbers[:16])
    more = f" and {len(numbers) - 16} more" if len(numbers) > 16 else ""  # noqa: PLR2004 - as many as are shown
    return f" {word}{'s' if len(numbers) > 1 else ''} {shown}{more}"
