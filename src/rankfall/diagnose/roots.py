"""Which candidate is the root: cause before time, the same fault on many ranks is one fault, and consequences never win."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from rankfall.diagnose.candidates import EXPLICIT, HANG, SILENT, Candidate, candidate_of
from rankfall.diagnose.rules import NEAREST, NEVER_BEGAN, NEVER_CAUSE, TAKEN_AWAY
from rankfall.diagnose.subjects import Subject, Subjects, own_failure
from rankfall.diagnose.together import MISMATCH, accused, only_silent
from rankfall.model import Case, Evidence, RankFacts
from rankfall.model.clocks import Moment, order

# An exception whose text no signature knows may be a bystander's own way to say that its partner went away.
_GENERIC_SPECIFICITY = 30
# On a busy node a wrapper sees the end of a rank so much later than its partners do, seconds.
_NOTICED_WITHIN_S = 2.0
_NS = 1_000_000_000
_SIGTERM, _SIGKILL = 15, 9


class Root(msgspec.Struct, kw_only=True):
    """The chosen candidate, whether it struck everywhere, and what was set aside for which reason.

    ``chosen`` is None when only consequences speak; ``nearest`` is then the one nearest the origin, and ``suspects`` the peers
    that the consequences name or that never spoke; ``alone`` when it is the only rank that failed. ``repeated``: somebody said that a part was stopped or
    given up because another one had failed, which is no cause of anything. ``unnamed``: what happened is known, but several ranks offer it equally.
    """

    chosen: Candidate | None = None
    everywhere: bool = False
    unnamed: bool = False
    tied: bool = False
    rejected: list[tuple[Candidate, str]] = msgspec.field(default_factory=list)
    nearest: tuple[Subject, Evidence] | None = None
    suspects: tuple[int, ...] = ()
    suspect_slots: tuple[int, ...] = ()
    alone: bool = False
    repeated: bool = False


def find_root(case: Case, subjects: Subjects) -> Root:
    """The root of this case."""
    candidates = [c for s in subjects.all.values() if (c := candidate_of(s)) is not None]
    candidates = _without_told_to_stop(candidates, subjects)
    if not candidates:
        candidates = [c for c in (_left_early(case, subjects),) if c is not None]
    if not candidates:
        candidates = [c for c in (only_silent(case, subjects),) if c is not None]
    if not candidates:
        late = [c for s in subjects.all.values() if (c := candidate_of(s, teardown=True)) is not None]
        candidates = _without_told_to_stop(late, subjects)
    if not candidates:
        return _only_consequences(case, subjects)
    root = Root()
    strong = [c for c in candidates if not c.weak]
    if strong:
        root.rejected += [(c, "bystanders say this too when something else fell") for c in candidates if c.weak]
        candidates = strong
    candidates, disputed = _settle_mismatch(candidates, subjects, root)
    candidates = _merge(candidates)
    candidates = _drop_generic_after_death(candidates, root)
    candidates = _drop_taken_after_fall(candidates, root)
    candidates = _drop_mute_beside_death(candidates, root)
    candidates.sort(key=lambda c: (-c.tier, c.order))
    tier = candidates[0].tier
    first = [c for c in candidates if c.tier == tier]
    root.rejected += [(c, _weaker(candidates[0], c)) for c in candidates if c.tier < tier]
    if tier == HANG:
        # Who stands where is seen at one moment: the clock says nothing, only what kind of proof there is.
        most = max(_specificity(c) for c in first)
        earliest = [c for c in first if _specificity(c) == most]
    else:
        earliest = [c for c in first if not any(o.before(c) for o in first)]
    root.rejected += [(c, "fell later, by more than the clocks' uncertainty") for c in first if c not in earliest]
    earliest.sort(key=lambda c: (-_specificity(c), -c.support, c.order))
    chosen = earliest[0]
    root.tied = len(earliest) > 1
    root.rejected += [
        (c, "fell at the same time as far as the clocks tell; shown beside the chosen one") for c in earliest[1:]
    ]
    root.chosen = chosen
    root.everywhere = _everywhere(case, subjects, chosen) or (disputed and chosen.slug == MISMATCH)
    root.unnamed = (tier == HANG and root.tied) or (_mute(chosen) and bool(chosen.same) and not root.everywhere)
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


def _without_told_to_stop(candidates: list[Candidate], subjects: Subjects) -> list[Candidate]:
    """Who ended without a word after its slot had been told to stop from outside, or only complains of it, is that signal's victim."""
    told: dict[int, Moment] = {}
    for subject in subjects.all.values():
        for piece in subject.evidence:
            slot = subject.slot_number
            if piece.slug == "external_signal" and subject.rank is None and slot is not None:
                told[slot] = subject.when(piece)
    if not told:
        return candidates

    def victim(candidate: Candidate) -> bool:
        moment = candidate.moment
        if candidate.weak:
            # What bystanders say as well: an agent that was told to stop takes the rendezvous away from the others.
            return any(order(moment, at) != "before" for at in told.values())
        slot = candidate.subject.slot_number
        if candidate.tier != SILENT or slot is None or slot not in told or candidate.subject.rank is None:
            return False
        return order(moment, told[slot]) != "before"

    return [c for c in candidates if not victim(c)]


def _specificity(candidate: Candidate) -> int:
    return candidate.best.specificity if candidate.best else 0


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


def _drop_generic_after_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """A nameless exception that surely came after another rank's death is that death's echo."""
    deaths = [c for c in candidates if c.tier == SILENT and c.slug != "user_exit"]
    kept = []
    for candidate in candidates:
        echo = (
            candidate.tier == EXPLICIT
            and candidate.slug == "user_code_exception"
            and _specificity(candidate) <= _GENERIC_SPECIFICITY
            and any(d.before(candidate) for d in deaths)
        )
        if echo:
            root.rejected.append((candidate, "raised after another rank had died; nothing in it says more"))
        else:
            kept.append(candidate)
    return kept or candidates


def _drop_taken_after_fall(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """A pod that was surely taken away after a rank had recorded its own failure caused nothing: the job had fallen."""
    own = [c for c in candidates if c.tier == EXPLICIT and c.confidence == "proven" and not c.weak]
    kept = []
    for candidate in candidates:
        platform = candidate.best is not None and candidate.best.source in {"pod", "event"}
        if platform and candidate.slug in TAKEN_AWAY and any(c.before(candidate) for c in own):
            root.rejected.append((candidate, "it came after a rank had failed by itself"))
        else:
            kept.append(candidate)
    return kept


def _mute(candidate: Candidate) -> bool:
    """Whether nothing is known but Python's own code after any exception, a victim's too.

    Where several ended so none is named: the first of them may have lost a partner that hangs, or that left with 0.
    """
    facts = candidate.subject.rank
    return candidate.tier == SILENT and candidate.slug == "user_exit" and facts is not None and facts.exit_code == 1


def _perhaps_torchruns_own(candidate: Candidate, mute: list[Candidate]) -> bool:
    """Whether this death may be torchrun's stop of a rank beside one that had ended: its own lines say so, and they may be missing."""
    facts, place = candidate.subject.rank, candidate.subject.slot
    if candidate.tier != SILENT or facts is None or place is None or place.launcher != "torchrun":
        return False
    # Those that ended alike are one candidate by now, wherever they ran.
    beside = [s for c in mute for s in (c.subject, *c.same) if s.slot_number == place.slot]
    came = [order(s.ended, candidate.moment) for s in beside]
    if facts.signal == _SIGTERM:
        return any(one != "after" for one in came)
    return facts.signal == _SIGKILL and "before" in came


def _drop_mute_beside_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """A rank that ended with Python's own code and left no word is a victim of a death that it did not surely come before."""
    mute = [c for c in candidates if _mute(c)]
    stopped = [c for c in candidates if _perhaps_torchruns_own(c, mute)]
    root.rejected += [(c, "torchrun ends a rank so when another one of its node has ended") for c in stopped]
    candidates = [c for c in candidates if c not in stopped]
    deaths = [c for c in candidates if c.tier == SILENT and c.slug != "user_exit"]
    echoes = [c for c in candidates if _mute(c) and any(not c.before(d) for d in deaths)]
    root.rejected += [(c, "ended with code 1 and without a word, as whoever loses its partner does") for c in echoes]
    return [c for c in candidates if c not in echoes]


def _everywhere(case: Case, subjects: Subjects, chosen: Candidate) -> bool:
    """Whether the fault struck all ranks: each rank has it, or was stopped by us or by its agent before it could."""
    if not chosen.same:
        return False
    struck = {s.key for s in (chosen.subject, *chosen.same)}
    if chosen.slug in NEVER_BEGAN:
        # There are no ranks yet to ask; of a slot that is only late nothing is known.
        return len({s.slot_number for s in (chosen.subject, *chosen.same)} - {None}) >= (case.nnodes or 0)
    if case.world_size is None:
        return not any(
            s.key not in struck and any(e.role == "secondary" and e.source != "exit" for e in s.evidence)
            for s in subjects.all.values()
        )
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


def _left_early(case: Case, subjects: Subjects) -> Candidate | None:
    """A rank that ended with 0 while others only complain of a lost partner left the loop early (uneven data)."""
    left = [r for r in subjects.ranks.values() if r.state == "ended" and r.exit_code == 0]
    fell = [
        s
        for s in subjects.all.values()
        if s.rank is not None and s.rank.state == "ended" and (own_failure(s.rank) or s.rank.killed_by is not None)
    ]
    complaints = {e.slug for s in fell for e in s.evidence if e.role == "secondary" and e.source != "exit"}
    if not (complaints & {"peer_lost", "collective_timeout"} or (case.hung and fell)):
        return None
    if complaints & {"external_signal"}:
        return None
    words = [s.when(e) for s in fell for e in s.evidence if e.role == "secondary" and e.at]
    # Whoever left after somebody had complained already is not what that one missed.
    ends = {r.rank: subjects.all["rank", r.rank].ended for r in left}
    late = left
    left = [r for r in left if not any(order(ends[r.rank], word) == "after" for word in words)]
    noticed = not left and _missed_by_all(case, late, fell, ends, words)
    left = late if noticed else left
    if not left:
        return None
    left.sort(key=lambda r: (r.ended_at is None, ends[r.rank].common[0] or 0, r.rank))
    first = left[0]
    sure = len(left) == 1 and not noticed
    return Candidate(
        subject=subjects.all["rank", first.rank],
        slug="uneven_data",
        tier=0,
        confidence="likely" if sure else "suspected",
        at=first.ended_at,
        uncertainty=first.ended_uncertainty or 0.0,
        fingerprint="uneven_data",
        because="it ended with 0 while the others still waited for it"
        if len(left) == 1
        else f"{len(left)} ranks ended with 0 while others still waited; this one was first",
    )


def _missed_by_all(
    case: Case, left: list[RankFacts], fell: list[Subject], ends: dict[int, Moment], words: list[Moment]
) -> bool:
    """Whether one rank ended with 0 right after all others had lost a partner: its end is noticed later than its connections close."""
    complained = {s.rank_number for s in fell if any(e.slug == "peer_lost" for e in s.evidence)}
    if len(left) != 1 or len(fell) < 2 or complained != set(range(case.world_size or 0)) - {left[0].rank}:  # noqa: PLR2004 - of two ranks nobody can say who left whom
        return False
    ended, _ = ends[left[0].rank].common
    first = min((at for word in words if (at := word.common[0]) is not None), default=None)
    return ended is not None and first is not None and ended - first <= _NOTICED_WITHIN_S * _NS


def _fell_alone(subjects: Subjects) -> bool:
    """Whether one rank failed by itself and every other one came to a good end: its lost partner was none of them."""
    facts = list(subjects.ranks.values())
    return sum(map(own_failure, facts)) == 1 and all(
        own_failure(r) or (r.state == "ended" and r.exit_code == 0) for r in facts
    )


def _only_consequences(case: Case, subjects: Subjects) -> Root:
    """Nobody has a cause of its own: name the consequence nearest the origin and the peers it points at."""
    spoken: list[tuple[int, bool, int, str, Subject, Evidence]] = []
    named: set[int] = set()
    complained: set[int] = set()
    repeated = False
    for subject in subjects.all.values():
        for piece in subject.evidence:
            if piece.role != "secondary" or piece.source == "exit" or piece.slug not in NEAREST:
                continue
            named.update(piece.peers)
            if subject.rank_number is not None:
                complained.add(subject.rank_number)
            if piece.slug in NEVER_CAUSE:
                repeated = True
                continue
            at, _ = subject.when(piece).common
            spoken.append((NEAREST[piece.slug], at is None, at or 0, piece.id, subject, piece))
    silent = {
        number
        for number in range(case.world_size or 0)
        if number not in complained and (number not in subjects.ranks or subjects.ranks[number].killed_by is None)
    }
    suspects = tuple(sorted(named)) or (tuple(sorted(silent)) if len(silent) < max(1, (case.world_size or 0)) else ())
    quiet_slots = tuple(
        sorted(
            s.slot
            for s in case.slots
            if not any(r.slot == s.slot for r in subjects.ranks.values()) and s.state in {"expected", "running", "lost"}
        )
    )
    if not spoken:
        return Root(suspects=suspects, suspect_slots=quiet_slots, repeated=repeated)
    spoken.sort(key=lambda row: (row[0], row[1], row[2], row[4].node or "~", str(row[4].key), row[5].line))
    _, _, _, _, subject, piece = spoken[0]
    if not named and subject.rank is not None and own_failure(subject.rank) and _fell_alone(subjects):
        return Root(nearest=(subject, piece), alone=True)
    return Root(nearest=(subject, piece), suspects=suspects, suspect_slots=quiet_slots)
