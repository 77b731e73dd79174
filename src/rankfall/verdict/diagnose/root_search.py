"""Chooses the root among the candidates: cause before time, and consequences never win.

First removes candidates that are consequences of another failure: stopped from outside, deleted after it,
stopped by torchrun, or ended without a message beside a death. The same fault on many ranks is one fault.
"""

from __future__ import annotations

from collections import defaultdict

from rankfall.model import Case, RankFacts
from rankfall.model.timestamps import first_of, preceded
from rankfall.verdict.diagnose.candidates import (
    CONFIRMED,
    EXPLICIT,
    HANG,
    SILENT,
    Candidate,
    Root,
    candidate_of,
    outlived_traceback,
)
from rankfall.verdict.diagnose.cause_tables import NEVER_STARTED
from rankfall.verdict.diagnose.cross_rank import (
    MISMATCH,
    left_early,
    most_named_peer,
    only_consequences,
    only_silent_rank,
)
from rankfall.verdict.diagnose.node_faults import own_exceptions, without_faults_elsewhere
from rankfall.verdict.diagnose.subjects import Subjects
from rankfall.verdict.diagnose.victims import (
    drop_deleted_after_failure,
    drop_generic_after_death,
    drop_outlived,
    drop_without_message_beside_death,
    is_without_message,
    without_stopped_from_outside,
)


def find_root(case: Case, subjects: Subjects) -> Root:
    """The root of this case."""
    root = Root()
    candidates = [c for s in subjects.all.values() if (c := candidate_of(s)) is not None]
    candidates = without_stopped_from_outside(candidates, subjects)
    late = [c for c in candidates if c.after_work]
    candidates = [c for c in candidates if not c.after_work]
    if not candidates:
        candidates = [c for c in (left_early(case, subjects),) if c is not None]
    if not candidates:
        candidates = [c for c in (only_silent_rank(case, subjects),) if c is not None]
    if candidates:
        root.rejected += [(c, "the work of its rank was done") for c in late]
    candidates = drop_outlived(candidates or late, subjects, root, hung=case.hung)
    if not candidates:
        found = only_consequences(case, subjects)
        only = outlived_traceback(subjects) if found.nearest is None else None
        return found if only is None else Root(chosen=only)
    strong = [c for c in candidates if not c.weak]
    if strong:
        root.rejected += [(c, "bystanders say this too when something else fell") for c in candidates if c.weak]
        candidates = strong
    candidates = without_faults_elsewhere(candidates, subjects, root, case=case)
    candidates, disputed = _settle_mismatch(candidates, subjects, root)
    candidates = _merge(_said_of_rank(candidates))
    candidates = drop_generic_after_death(candidates, root)
    candidates = drop_deleted_after_failure(candidates, root)
    candidates = drop_without_message_beside_death(candidates, root)
    candidates.sort(key=lambda c: (-c.tier, c.order))
    tier = candidates[0].tier
    first = [c for c in candidates if c.tier == tier]
    root.rejected += [(c, _weaker(candidates[0], c)) for c in candidates if c.tier < tier]
    if tier == HANG:
        # Who stands where is seen at one moment: the clock says nothing, only what kind of proof there is.
        most = max(c.specificity for c in first)
        earliest, others = _parted(first, [c.specificity < most for c in first])
    else:
        earliest, others = _parted(first, preceded([c.moment for c in first]))
    root.rejected += [(c, "fell later, by more than the clocks' uncertainty") for c in others]
    earliest.sort(key=lambda c: (-c.specificity, -c.support, c.order))
    chosen = earliest[0]
    root.tied = len(earliest) > 1
    root.rejected += [
        (c, "fell at the same time as far as the clocks tell; shown beside the chosen one") for c in earliest[1:]
    ]
    root.chosen = chosen
    root.independent += own_exceptions(c for c in candidates if c is not chosen)
    root.everywhere = _everywhere(case, subjects, chosen) or (disputed and chosen.slug == MISMATCH)
    root.unnamed = (tier == HANG and root.tied) or (
        is_without_message(chosen) and bool(chosen.same) and not root.everywhere
    )
    if root.unnamed and tier != HANG:
        chosen.confidence = "suspected"
    return root


def _parted(candidates: list[Candidate], rejected: list[bool]) -> tuple[list[Candidate], list[Candidate]]:
    """Those that are not rejected, and those that are."""
    both = list(zip(candidates, rejected, strict=True))
    return [c for c, no in both if not no], [c for c, no in both if no]


def _settle_mismatch(candidates: list[Candidate], subjects: Subjects, root: Root) -> tuple[list[Candidate], bool]:
    """Keep the accused of a mismatch alone; true when there is a mismatch and nobody can be accused."""
    one, reports = most_named_peer(candidates, subjects)
    if one is None:
        return candidates, len(reports) > 1
    named = one.subject.rank_number
    root.rejected += [
        (c, f"it reports the mismatch and names rank {named}")
        for c in reports
        if c is not one and c.subject is not one.subject
    ]
    return [*(c for c in candidates if c not in reports and c.subject is not one.subject), one], False


def _weaker(chosen: Candidate, other: Candidate) -> str:
    if chosen.tier > EXPLICIT:
        return "a fact that the job cannot forge outweighs it"
    if other.tier == HANG:
        return "a rank that fell outweighs one that only stood still"
    return "an explicit failure outweighs a silent one" if other.tier == SILENT else "weaker kind of evidence"


def _said_of_rank(candidates: list[Candidate]) -> list[Candidate]:
    """Without what the platform says of a slot where another source says the same of a rank there: both are one fault."""
    said = {(c.slug, c.subject.slot_number) for c in candidates if c.tier >= CONFIRMED and c.subject.rank is not None}
    return [c for c in candidates if c.subject.rank is not None or (c.slug, c.subject.slot_number) not in said]


def _merge(candidates: list[Candidate]) -> list[Candidate]:
    """One candidate a fingerprint: the same fault on many ranks is one fault."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        mergeable = (
            candidate.tier in {EXPLICIT, HANG} or candidate.slug == "user_exit" or candidate.slug in NEVER_STARTED
        )
        key = candidate.fingerprint if mergeable else f"{candidate.fingerprint}\0{candidate.subject.key}"
        groups[key].append(candidate)
    merged = []
    for group in groups.values():
        group.sort(key=lambda c: c.order)
        head = group[first_of([c.moment for c in group]) or 0]
        head.same = [c.subject for c in group if c is not head]
        merged.append(head)
    return merged


def _everywhere(case: Case, subjects: Subjects, chosen: Candidate) -> bool:
    """Whether the fault struck all ranks: each rank has it, or was stopped by us or by its agent before it could."""
    if not chosen.same:
        return False
    struck = {s.key for s in (chosen.subject, *chosen.same)}
    if chosen.slug in NEVER_STARTED:
        # There are no ranks yet to ask; of a slot that is only late nothing is known.
        return len({s.slot_number for s in (chosen.subject, *chosen.same)} - {None}) >= (case.nnodes or 0)
    if case.world_size is None:
        return not any(s.key not in struck and s.complaints for s in subjects.all.values())
    for number in range(case.world_size):
        if ("rank", number) in struck:
            continue
        facts = subjects.ranks.get(number)
        if facts is not None and _ended_alike(facts, chosen):
            chosen.same.append(subjects.all["rank", number])
            continue
        slot_struck = facts is not None and ("slot", facts.slot) in struck
        if slot_struck or facts is None or facts.killed_by in {"wrapper", "agent"}:
            continue
        return False
    return True


def _ended_alike(facts: RankFacts, chosen: Candidate) -> bool:
    """Whether a rank that its agent told to stop had left before, of its own accord and with the same code as the root."""
    root = chosen.subject.rank
    return (
        chosen.slug == "user_exit"
        and root is not None
        and facts.state == "ended"
        and facts.killed_by is None
        and facts.exit_code is not None
        and facts.exit_code == root.exit_code
    )
