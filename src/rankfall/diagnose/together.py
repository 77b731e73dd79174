"""What the words of several ranks say together and no single one says: whom the others accuse, and who alone kept silent.

Refuses to name anybody where two answers are as good: a wrong rank is worse than none.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from rankfall.diagnose.candidates import HANG, Candidate
from rankfall.diagnose.subjects import Subjects, own_failure
from rankfall.model import Case

# What ranks say that waited for one that did not come, in a collective or when the group was made.
TIMED_OUT: Final = frozenset({"collective_timeout", "rdzv_closed"})
MISMATCH: Final = "collective_mismatch"
_NS: Final = 1_000_000_000
# Ranks of one collective time out within a fraction of this. Who was still silent so long after the first complaint did not wait with them.
SILENT_FOR_S: Final = 0.5


def accused(candidates: list[Candidate], subjects: Subjects) -> tuple[Candidate | None, list[Candidate]]:
    """Of a mismatch that every rank reports: the one rank that the most others name.

    Args:
        candidates: all that are left.
        subjects: to find the accused, who may not have spoken.

    Returns:
        The accused's candidate, or None where nobody is named by two others or two are named equally often; and the reports.
    """
    reports = [c for c in candidates if c.slug == MISMATCH and c.best is not None and c.best.peers]
    votes = Counter(peer for c in reports if c.best for peer in set(c.best.peers) - {c.subject.rank_number})
    if not votes:
        return None, reports
    (rank, most), *others = votes.most_common(2)
    subject = subjects.all.get(("rank", rank))
    if most < 2 or (others and others[0][1] == most) or subject is None:  # noqa: PLR2004 - one word against one proves nothing
        return None, reports
    own = next((c for c in reports if c.subject is subject), None)
    chosen = own or msgspec.structs.replace(reports[0], subject=subject, same=[])
    chosen.because = f"{most} ranks name it as the one that differs"
    return chosen, reports


def only_silent(case: Case, subjects: Subjects) -> Candidate | None:
    """The one rank that did not complain while all others timed out in a collective: it never came to it."""
    words = {
        subject.rank_number: {(e.slug, e.at) for e in subject.complaints}
        for subject in subjects.all.values()
        if subject.rank_number is not None
    }
    slugs = {slug for said in words.values() for slug, _ in said}
    if not slugs & TIMED_OUT or not slugs <= TIMED_OUT | {"peer_lost", "peer_teardown"}:
        return None
    spoke = {rank for rank, said in words.items() if {slug for slug, _ in said} - {"peer_teardown"}}
    quiet = [rank for rank in range(case.world_size or 0) if rank not in spoke]
    if len(quiet) != 1 or len(spoke) < 2:  # noqa: PLR2004 - of two ranks nobody can say who waited for whom
        return None
    facts = subjects.ranks.get(quiet[0])
    absent = subjects.all.get(("rank", quiet[0]))
    if facts is None or absent is None or own_failure(facts):
        return None
    # Only its own node's clock is asked: between two nodes half a second may be nothing.
    near = [
        at
        for rank, said in words.items()
        if rank in subjects.ranks and subjects.ranks[rank].slot == facts.slot
        for slug, at in said
        if slug in TIMED_OUT and at is not None
    ]
    if facts.state == "ended":
        if facts.killed_by is None or facts.ended_at is None:
            return None
        if near and facts.ended_at - min(near) < SILENT_FOR_S * _NS:
            return None
    return Candidate(
        subject=absent,
        slug="rank_stuck",
        tier=HANG,
        confidence="suspected",
        at=None,
        fingerprint="rank_stuck:silent",
        because="all other ranks timed out in a collective; it alone never complained",
    )
