"""Which candidate is the root: cause before time, the same fault on many ranks is one fault, and consequences never win."""

from __future__ import annotations

from collections import defaultdict

from rankfall.diagnose.candidates import EXPLICIT, HANG, SILENT, Candidate, candidate_of
from rankfall.diagnose.causeless import left_early, only_consequences
from rankfall.diagnose.root import Root
from rankfall.diagnose.rules import NEVER_BEGAN
from rankfall.diagnose.subjects import Subjects
from rankfall.diagnose.together import MISMATCH, accused, only_silent
from rankfall.diagnose.victims import (
    drop_generic_after_death,
    drop_mute_beside_death,
    drop_taken_after_fall,
    is_mute,
    without_told_to_stop,
)
from rankfall.model import Case, RankFacts


def find_root(case: Case, subjects: Subjects) -> Root:
    """The root of this case."""
    candidates = [c for s in subjects.all.values() if (c := candidate_of(s)) is not None]
    candidates = without_told_to_stop(candidates, subjects)
    if not candidates:
        candidates = [c for c in (left_early(case, subjects),) if c is not None]
    if not candidates:
        candidates = [c for c in (only_silent(case, subjects),) if c is not None]
    if not candidates:
        late = [c for s in subjects.all.values() if (c := candidate_of(s, teardown=True)) is not None]
        candidates = without_told_to_stop(late, subjects)
    if not candidates:
        return only_consequences(case, subjects)
    root = Root()
    strong = [c for c in candidates if not c.weak]
    if strong:
        root.rejected += [(c, "bystanders say this too when something else fell") for c in candidates if c.weak]
        candidates = strong
    candidates, disputed = _settle_mismatch(candidates, subjects, root)
    candidates = _merge(candidates)
    candidates = drop_generic_after_death(candidates, root)
    candidates = drop_taken_after_fall(candidates, root)
    candidates = drop_mute_beside_death(candidates, root)
    candidates.sort(key=lambda c: (-c.tier, c.order))
    tier = candidates[0].tier
    first = [c for c in candidates if c.tier == tier]
    root.rejected += [(c, _weaker(candidates[0], c)) for c in candidates if c.tier < tier]
    if tier == HANG:
        # Who stands where is seen at one moment: the clock says nothing, only what kind of proof there is.
        most = max(c.specificity for c in first)
        earliest = [c for c in first if c.specificity == most]
    else:
        earliest = [c for c in first if not any(o.before(c) for o in first)]
    root.rejected += [(c, "fell later, by more than the clocks' uncertainty") for c in first if c not in earliest]
    earliest.sort(key=lambda c: (-c.specificity, -c.support, c.order))
    chosen = earliest[0]
    root.tied = len(earliest) > 1
    root.rejected += [
        (c, "fell at the same time as far as the clocks tell; shown beside the chosen one") for c in earliest[1:]
    ]
    root.chosen = chosen
    root.everywhere = _everywhere(case, subjects, chosen) or (disputed and chosen.slug == MISMATCH)
    root.unnamed = (tier == HANG and root.tied) or (is_mute(chosen) and bool(chosen.same) and not root.everywhere)
    if root.unnamed and tier != HANG:
        chosen.confidence = "suspected"
    return root


def _settle_mismatch(candidates: list[Candidate], subjects: Subjects, root: Root) -> tuple[list[Candidate], bool]:
    """Keep the accused of a mismatch alone; true when there is a mismatch and nobody can be accused."""
    one, reports = accused(candidates, subjects)
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


def _merge(candidates: list[Candidate]) -> list[Candidate]:
    """One candidate a fingerprint: the same fault on many ranks is one fault."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        mergeable = candidate.tier in {EXPLICIT, HANG} or candidate.slug == "user_exit" or candidate.slug in NEVER_BEGAN
        key = candidate.fingerprint if mergeable else f"{candidate.fingerprint}\0{candidate.subject.key}"
        groups[key].append(candidate)
    merged = []
    for group in groups.values():
        group.sort(key=lambda c: c.order)
        surely_first = [c for c in group if all(c is o or c.before(o) for o in group)]
        head = surely_first[0] if surely_first else group[0]
        head.same = [c.subject for c in group if c is not head]
        merged.append(head)
    return merged


def _everywhere(case: Case, subjects: Subjects, chosen: Candidate) -> bool:
    """Whether the fault struck all ranks: each rank has it, or was stopped by us or by its agent before it could."""
    if not chosen.same:
        return False
    struck = {s.key for s in (chosen.subject, *chosen.same)}
    if chosen.slug in NEVER_BEGAN:
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
