"""Finds a rank that did not fail, but for which the others waited: it left, hangs, works, or makes another call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from rankfall.model import Case, Confidence, Evidence, RankFacts, numbers
from rankfall.model.evidence import surely_after
from rankfall.model.patterns import bounded
from rankfall.model.timestamps import Moment, order
from rankfall.verdict.diagnose.candidates import HANG, SILENT, Candidate, Root, of_fact
from rankfall.verdict.diagnose.cause_tables import BETWEEN_TWO, DELETED_POD, NEVER_CAUSE, PLAIN_CONNECTIONS, TIMED_OUT
from rankfall.verdict.diagnose.subjects import Subject, Subjects, own_failure

MISMATCH: Final = "collective_mismatch"
_NS: Final = 1_000_000_000
# Ranks of one collective time out within a fraction of these seconds.
SILENT_FOR_S: Final = 0.5
# Maximum seconds by which a busy wrapper detects a rank's end late.
_NOTICED_WITHIN_S: Final = 2.0
# NCCL's watchdog names number, kind and size of a call; torch numbers the calls of each process group, so two calls
# with one number must be the same call.
_CALL: Final = bounded(r"Work[A-Z]{0,2}CCL\(SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,15}))?", limit=2_000)
_GROUP: Final = bounded(r"\[PG (?:ID )?(\w{1,32})", limit=2_000)
# Calls between two ranks have no common number.
_POINT_TO_POINT: Final = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN"})
# Kinds whose size is equal on all ranks; others may be uneven.
_EVEN: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})


# At least 100 seconds of waiting, as NCCL's watchdog and Gloo report it.
_WAITED_LONG: Final = bounded(r"(?:ran for|[Tt]imed out waiting) \d{6,12} ?m(?:illi)?s", limit=4096)
# Slurm's lines about an end that a hang leads to.
_ENDS_OF_HANGS: Final = frozenset(
    {"cancelled.scancel", "cancelled.slurm", "cancelled.slurm_job", "walltime_or_requeue.slurm"}
)

# Lines of a program that ends ranks which report nothing.
_WATCHDOGS: Final = frozenset({"rank_stuck.own_words", "rank_stuck.watchdog", "rank_stuck.watchdog_limit"})
# Functions that only some ranks call.
_PAIRWISE: Final = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"})

# Ranks that must agree before one that is behind them is named.
_LEAST_AGREEING: Final = 3

# Call of a rank: kind, and size or place.
_Call = tuple[str, str]


def collective_number(piece: Evidence) -> int:
    """Number of the collective that a watchdog names; the highest for other lines."""
    found = _CALL.search(piece.line)
    return numbers.matched(found[1]) if found is not None else 1 << 63


def differing_calls(subjects: Subjects) -> list[Candidate]:
    """Rank whose call differs from that of most others; all ranks if no call has a majority.

    Calls with one number in a watchdog's line, else the calls in which all ranks with a traceback timed out, else a
    rank that is behind all others.
    """
    calls: dict[tuple[str, str], dict[int, tuple[_Call, Subject, Evidence]]] = {}
    firsts: dict[str, dict[int, tuple[int, str, Subject, Evidence]]] = {}
    places: dict[int, tuple[_Call, Subject, Evidence]] = {}
    for subject in subjects.all.values():
        if subject.rank_number is None:
            continue
        for piece, group, number, call in _watchdog_calls(subject):
            calls.setdefault((group, number), {}).setdefault(subject.rank_number, (call, subject, piece))
            first = numbers.matched(number), call[0], subject, piece
            firsts.setdefault(group, {}).setdefault(subject.rank_number, first)
        for piece in subject.complaints:
            if piece.slug == "collective_timeout" and piece.collective is not None and piece.place is not None:
                places[subject.rank_number] = (piece.collective, piece.place), subject, piece
    if len({collective for (collective, _), _, _ in places.values()} - _PAIRWISE) > 1:
        calls["", "place"] = {rank: row for rank, row in places.items() if row[0][0] not in _PAIRWISE}
    for ranks in map(_comparable, calls.values()):
        votes = Counter(call for call, _, _ in ranks.values()).most_common()
        if len(votes) < 2:  # noqa: PLR2004 - all made the same call
            continue
        least = [rank for rank, (call, _, _) in ranks.items() if call != votes[0][0]]
        clear = votes[0][1] > 1 and len(least) == 1
        return [
            _differs(*ranks[rank][1:], others=() if clear else tuple(other for other in ranks if other != rank))
            for rank in (least if clear else sorted(ranks))
        ]
    return [one for ranks in firsts.values() if (one := _behind(ranks)) is not None]


def _comparable(ranks: dict[int, tuple[_Call, Subject, Evidence]]) -> dict[int, tuple[_Call, Subject, Evidence]]:
    """The calls without their sizes, if a line is cut before its own."""
    if all(size for (_, size), _, _ in ranks.values()):
        return ranks
    return {rank: ((kind, ""), subject, piece) for rank, ((kind, _), subject, piece) in ranks.items()}


def _behind(ranks: dict[int, tuple[int, str, Subject, Evidence]]) -> Candidate | None:
    """Rank in an earlier call of another kind, while all others wait in one call."""
    votes = Counter((number, kind) for number, kind, _, _ in ranks.values()).most_common()
    if [count for _, count in votes[1:]] != [1] or votes[0][1] < _LEAST_AGREEING:
        return None
    (most, others), (number, kind) = votes[0][0], votes[1][0]
    if number >= most or kind == others:
        return None
    subject, piece = next(row[2:] for row in ranks.values() if row[:2] == (number, kind))
    because = f"it is in call {number}, {kind}, while the others wait in call {most}, {others}"
    return msgspec.structs.replace(_differs(subject, piece, others=()), confidence="suspected", because=because)


def _watchdog_calls(subject: Subject) -> Iterator[tuple[Evidence, str, str, _Call]]:
    for piece in subject.complaints:
        found = _CALL.search(piece.line) if piece.slug == "collective_timeout" and piece.source == "log" else None
        if found is None or found[2] in _POINT_TO_POINT:
            continue
        group = _GROUP.search(piece.line)
        yield piece, group[1] if group else "", found[1], (found[2], (found[3] or "") if found[2] in _EVEN else "")


def _differs(subject: Subject, piece: Evidence, *, others: tuple[int, ...]) -> Candidate:
    return Candidate(
        subject=subject,
        slug=MISMATCH,
        tier=HANG,
        confidence="likely",
        best=msgspec.structs.replace(piece, peers=others),
        at=piece.at,
        uncertainty=piece.uncertainty or 0.0,
        stamped=piece.stamped,
        fingerprint=f"{MISMATCH}:watchdog",
        because="its call differs from that of the others"
        + (f": {piece.collective} at {piece.place}" if piece.collective and piece.place else " with the same number"),
    )


def only_silent_rank(case: Case, subjects: Subjects) -> Candidate | None:
    """Only rank without a complaint when all others timed out in a collective, else None."""
    words = {
        subject.rank_number: {(e.slug, e.at) for e in subject.complaints}
        for subject in subjects.all.values()
        if subject.rank_number is not None
    }
    slugs = {slug for pairs in words.values() for slug, _ in pairs}
    if not slugs & TIMED_OUT or not slugs <= TIMED_OUT | {"peer_lost", "peer_teardown"}:
        return None
    spoke = {rank for rank, pairs in words.items() if {slug for slug, _ in pairs} - {"peer_teardown"}}
    quiet = [rank for rank in range(case.world_size or 0) if rank not in spoke]
    if len(quiet) != 1 or len(spoke) < 2:  # noqa: PLR2004 - with two ranks it is unknown which one waited
        return None
    facts = subjects.ranks.get(quiet[0])
    absent = subjects.all.get(("rank", quiet[0]))
    if facts is None or absent is None or own_failure(facts):
        return None
    # One node's clock: between two, half a second is not significant.
    near = [
        at
        for rank, pairs in words.items()
        if rank in subjects.ranks and subjects.ranks[rank].slot == facts.slot
        for slug, at in pairs
        if slug in TIMED_OUT and at is not None
    ]
    if facts.state == "ended":
        if facts.killed_by is None or facts.ended_at is None:
            return None
        if near and facts.ended_at - min(near) < SILENT_FOR_S * _NS:
            return None
    worked = _worked_meanwhile(facts, subjects, near)
    doing = "still printed progress" if worked else "never complained"
    slug = "slow_rank_timeout" if worked else "rank_stuck"
    return Candidate(
        subject=absent,
        slug=slug,
        tier=HANG,
        confidence="suspected",
        at=None,
        fingerprint=f"{slug}:silent",
        because=f"all other ranks timed out in a collective; it alone {doing}",
    )


def drop_ends_of_a_hang(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops ends by a user or time limit of a job whose ranks had timed out before, after they had waited for long.

    The end itself leaves a rank no time to wait for so long. So is a bare kill dropped after a watchdog's report.
    """
    waits = [
        e
        for s in subjects.all.values()
        for e in s.complaints
        if e.slug == "collective_timeout" and e.source == "log" and not e.passed and _WAITED_LONG.search(e.line)
    ]
    stuck = [e for s in subjects.all.values() for e in s.evidence if e.signature in _WATCHDOGS and e.role == "primary"]
    ends = [(c, c.best) for c in candidates if c.best is not None and c.best.source == "log" and c.bare]
    after = [
        c
        for c, end in ends
        if (end.signature in _ENDS_OF_HANGS and any(surely_after(end, e) for e in waits))
        or (c.slug == "killed_unknown" and any(surely_after(end, e) for e in stuck))
    ]
    root.rejected += [(c, "ranks had timed out before it") for c in after]
    return [c for c in candidates if all(c is not one for one in after)]


def only_rank(case: Case, subjects: Subjects) -> Candidate | None:
    """The only rank that has not ended when a job hangs and all others ended with 0, without other evidence; else None.

    A rank in a collective may wait for those that left, so it is not named.
    """
    left = [r for r in subjects.ranks.values() if r.state != "ended" or r.exit_code != 0]
    if not case.hung or case.world_size != len(subjects.ranks) or len(left) != 1:
        return None
    facts, pieces = left[0], [e for s in subjects.all.values() for e in s.evidence]
    if facts.exit_code is not None or own_failure(facts) or any(e.role != "context" for e in pieces):
        return None
    if case.world_size == 1:
        because = "it is the job's only rank, and the job made no progress"
    elif any(e.collective is not None for e in pieces):
        return None
    else:
        because = "it alone had not ended: all other ranks had ended with 0"
    return of_fact(subjects.all["rank", facts.rank], "rank_stuck", HANG, "suspected", because)


def _worked_meanwhile(facts: RankFacts, subjects: Subjects, timeouts: list[int]) -> bool:
    """True if the rank printed progress in the second half of the time for which the others of its node waited."""
    if not timeouts or facts.worked_at is None:
        return False
    there = (r.worked_at for r in subjects.ranks.values() if r.slot == facts.slot and r.rank != facts.rank)
    since = max((at for at in there if at is not None), default=min(timeouts))
    return facts.worked_at > (since + min(timeouts)) // 2


def left_before_joining(candidates: list[Candidate], case: Case, subjects: Subjects) -> Candidate | None:
    """Rank that exited with 0 before all others failed to reach the rendezvous, or None."""
    kinds = {c.slug for c in candidates}
    waited = {c.subject.rank_number for c in candidates}
    left = [r for r in subjects.ranks.values() if r.rank not in waited]
    # With two ranks, the second may have failed by itself.
    if kinds != {"rdzv_unreachable"} or len(left) != 1 or len(subjects.ranks) < max(3, case.world_size or 0):
        return None
    facts, subject = left[0], subjects.all["rank", left[0].rank]
    if facts.state != "ended" or facts.exit_code != 0:
        return None
    if not all(order(subject.ended, c.moment) == "before" for c in candidates):
        return None
    return _left(subject, "it ended with 0, and all others then waited for the rendezvous", confidence="suspected")


def left_early(case: Case, subjects: Subjects) -> Candidate | None:
    """Rank that exited with 0 while others lost a peer (uneven data), or None."""
    left = [r for r in subjects.ranks.values() if r.state == "ended" and r.exit_code == 0]
    failed = [
        s
        for s in subjects.all.values()
        if s.rank is not None and s.rank.state == "ended" and (own_failure(s.rank) or s.rank.killed_by is not None)
    ]
    # One rank's plain socket or pipe may be connected to anything.
    plain = sum(any(e.signature in PLAIN_CONNECTIONS for e in s.complaints) for s in failed) < 2  # noqa: PLR2004 - several
    complaints = {e.slug for s in failed for e in s.complaints if not (plain and e.signature in PLAIN_CONNECTIONS)}
    if not (complaints & {"peer_lost", "collective_timeout"} or (case.hung and failed)):
        return None
    if complaints & {"external_signal"}:
        return None
    words = [s.when(e) for s in failed for e in s.evidence if e.role == "secondary" and e.at]
    # A rank that exited after a complaint did not cause it.
    ends = {r.rank: subjects.all["rank", r.rank].ended for r in left}
    late = left
    left = [r for r in left if not any(order(ends[r.rank], word) == "after" for word in words)]
    noticed = not left and _missed_by_all(case, late, failed, ends, words)
    left = late if noticed else left
    # A handler of a signal may leave with 0.
    signalled = any(e.slug == "external_signal" for r in left for e in subjects.all["rank", r.rank].complaints)
    if not left or signalled:
        return None
    left.sort(key=lambda r: (r.ended_at is None, ends[r.rank].common[0] or 0, r.rank))
    first = left[0]
    sure = len(left) == 1 and not noticed
    return _left(
        subjects.all["rank", first.rank],
        "it ended with 0 while the others still waited for it"
        if len(left) == 1
        else f"{len(left)} ranks ended with 0 while others still waited; this one was first",
        confidence="likely" if sure else "suspected",
    )


def _left(subject: Subject, because: str, *, confidence: Confidence) -> Candidate:
    return Candidate(
        subject=subject,
        slug="uneven_data",
        tier=0,
        confidence=confidence,
        at=subject.ended.at,
        uncertainty=subject.ended.uncertainty,
        fingerprint="uneven_data",
        because=because,
    )


def _missed_by_all(
    case: Case, left: list[RankFacts], failed: list[Subject], ends: dict[int, Moment], words: list[Moment]
) -> bool:
    """True if one rank exited with 0 right after all others had lost a peer.

    The rank's end is detected later than its connections close.
    """
    complained = {s.rank_number for s in failed if any(e.slug == "peer_lost" for e in s.evidence)}
    if len(left) != 1 or len(failed) < 2 or complained != set(range(case.world_size or 0)) - {left[0].rank}:  # noqa: PLR2004 - undecidable with two ranks
        return False
    ended, _ = ends[left[0].rank].common
    first = min((at for word in words if (at := word.common[0]) is not None), default=None)
    return ended is not None and first is not None and ended - first <= _NOTICED_WITHIN_S * _NS


def task_not_terminated(subjects: Subjects) -> tuple[int, ...]:
    """Only task that srun did not terminate when one of the step's tasks failed; empty if several may be it."""
    words = [e for s in subjects.all.values() for e in s.evidence if e.source == "log"]
    if not any(e.signature == "peer_teardown.srun" and "DUE TO TASK FAILURE" in e.line for e in words):
        return ()
    ended = {
        e.rank
        for e in words
        if e.rank is not None and e.signature in {"peer_teardown.srun_task", "killed_unknown.srun"}
    }
    missing = set(range(max(ended, default=0))) - ended
    return tuple(missing) if len(missing) == 1 and len(ended) > 1 else ()


def only_failed_slot(case: Case, subjects: Subjects) -> Candidate | None:
    """Only slot that ended with an error by itself, without a readable line of any rank; None if there is none.

    The others were stopped because of it. Its code alone would also be that of a victim.
    """
    places = [s for s in subjects.all.values() if s.rank is None and s.slot is not None]
    if subjects.ranks or len(places) < max(2, case.nnodes or 0):
        return None
    failed = [s for s in places if s.slot is not None and s.slot.exit_code and s.slot.killed_by is None]
    stopped = [
        s
        for s in places
        if s.slot is not None
        and (
            s.slot.killed_by in {"wrapper", "agent"}
            or any(e.fingerprint == DELETED_POD and e.slug == "peer_teardown" for e in s.evidence)
        )
    ]
    if len(failed) != 1 or len(failed) + len(stopped) != len(places):
        return None
    if any(e.slug not in NEVER_CAUSE for s in places for e in s.complaints):
        return None
    code = failed[0].slot.exit_code if failed[0].slot is not None else None
    because = f"exit code {code} without a readable line; all other slots were stopped after it"
    return of_fact(failed[0], "user_exit", SILENT, "suspected", because)


def settle_mismatch(
    candidates: list[Candidate], subjects: Subjects, root: Root
) -> tuple[list[Candidate], bool, list[Candidate]]:
    """Drops the reports that name a mismatch's suspect.

    Returns the others, True if several reports name none, and the reports whose own rank may be the odd one.
    """
    one, reports = _most_named_peer(candidates, subjects)
    if one is None:
        received = [c for c in candidates if c.best is not None and c.best.signature in BETWEEN_TWO]
        return candidates, len(reports) > 1, reports + received
    named = one.subject.rank_number
    root.rejected += [
        (c, f"it reports the mismatch and names rank {named}")
        for c in reports
        if c is not one and c.subject is not one.subject
    ]
    return [*(c for c in candidates if c not in reports and c.subject is not one.subject), one], False, []


def _most_named_peer(candidates: list[Candidate], subjects: Subjects) -> tuple[Candidate | None, list[Candidate]]:
    """Peer that most others of a mismatch name, and the reports that name a peer.

    The peer is None unless at least two name it, and no other equally often.
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
