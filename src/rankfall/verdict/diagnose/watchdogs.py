"""Compares the collectives that NCCL's watchdogs name: two calls with one number must be the same call.

torch numbers the collectives of each process group. A time-out line names number, kind and size, so ranks that made
another call show it offline too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from rankfall.model import Evidence
from rankfall.model.patterns import bounded
from rankfall.verdict.diagnose.candidates import HANG, Candidate
from rankfall.verdict.diagnose.subjects import Subject, Subjects

MISMATCH: Final = "collective_mismatch"
_CALL: Final = bounded(r"WorkNCCL\(SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,15}))?", limit=2_000)
_GROUP: Final = bounded(r"\[PG (?:ID )?(\w{1,32})", limit=2_000)
# Calls between two ranks have no common number.
_POINT_TO_POINT: Final = frozenset({"SEND", "RECV", "COALESCED", "UNKNOWN"})
# Kinds whose size is equal on all ranks; others may be uneven.
_EVEN: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})


def differing_calls(subjects: Subjects) -> list[Candidate]:
    """Returns the rank whose call differs from that of most others; all ranks if no call has a majority."""
    calls: dict[tuple[str, str], dict[int, tuple[tuple[str, str], Subject, Evidence]]] = {}
    for subject in subjects.all.values():
        for piece, group, number, call in _calls(subject):
            if subject.rank_number is not None:
                calls.setdefault((group, number), {}).setdefault(subject.rank_number, (call, subject, piece))
    for ranks in calls.values():
        votes = Counter(call for call, _, _ in ranks.values()).most_common()
        if len(votes) < 2:  # noqa: PLR2004 - all made the same call
            continue
        least = [rank for rank, (call, _, _) in ranks.items() if call != votes[0][0]]
        clear = votes[0][1] > 1 and len(least) == 1
        return [
            _candidate(*ranks[rank][1:], others=() if clear else tuple(other for other in ranks if other != rank))
            for rank in (least if clear else sorted(ranks))
        ]
    return []


def _calls(subject: Subject) -> Iterator[tuple[Evidence, str, str, tuple[str, str]]]:
    for piece in subject.complaints:
        found = _CALL.search(piece.line) if piece.slug == "collective_timeout" and piece.source == "log" else None
        if found is None or found[2] in _POINT_TO_POINT:
            continue
        group = _GROUP.search(piece.line)
        yield piece, group[1] if group else "", found[1], (found[2], (found[3] or "") if found[2] in _EVEN else "")


def _candidate(subject: Subject, piece: Evidence, *, others: tuple[int, ...]) -> Candidate:
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
        because="its call differs from that of the others with the same number",
    )
