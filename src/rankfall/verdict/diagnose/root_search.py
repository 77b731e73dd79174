"""Chooses the root among the candidates: cause before time, consequences never win.

If two answers are equally good, no rank is named: a wrong rank is worse than none.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from rankfall.model import Case, Evidence, RankFacts, cause_info
from rankfall.model.evidence import same_line, surely_after
from rankfall.model.timestamps import first_of, preceded
from rankfall.verdict.diagnose.candidates import (
    CONFIRMED,
    EXPLICIT,
    HANG,
    PLATFORM,
    SILENT,
    Candidate,
    Root,
    candidate_of,
    ended_without_message,
    from_piece,
    text_place,
)
from rankfall.verdict.diagnose.cause_tables import (
    ABORT_REPORTS,
    EXIT_SLUGS,
    FIRST_ENDS,
    LOST_PEER_SLUGS,
    NEAREST,
    NEVER_CAUSE,
    NEVER_STARTED,
    NONE_RECEIVED,
    OWN_CODE,
    PLAIN_CONNECTIONS,
    TAKEN_AWAY,
    WATCHDOG,
)
from rankfall.verdict.diagnose.consequences import (
    after_stop,
    drop_after_abort,
    drop_cancelled_after_abort,
    drop_ends_after_stop,
    drop_ends_of_the_rest,
    drop_generic_after_death,
    drop_outlived,
    drop_raised_after_recorded_failure,
    drop_raised_after_silent_end,
    drop_without_message_beside_death,
    faults_of,
    first_is_open,
    follows_lost_peer,
    is_without_message,
    why_tied,
    without_ends_by_launcher,
    without_stopped_from_outside,
)
from rankfall.verdict.diagnose.node_faults import (
    drop_deleted_after_failure,
    drop_raised_after_signal,
    independent_faults,
    time_of,
    without_faults_elsewhere,
)
from rankfall.verdict.diagnose.subjects import Subject, Subjects, own_failure
from rankfall.verdict.diagnose.survived_lines import without_passed
from rankfall.verdict.diagnose.waited_for import (
    MISMATCH,
    collective_number,
    differing_calls,
    drop_ends_of_a_hang,
    left_before_joining,
    left_early,
    only_failed_slot,
    only_rank,
    only_silent_rank,
    settle_mismatch,
    task_not_terminated,
)


def find_root(case: Case, subjects: Subjects) -> Root:
    """Root of this case."""
    root = Root()
    candidates = _failures(case, subjects, root)
    if not candidates:
        found = only_consequences(case, subjects)
        only = outlived_traceback(subjects) if found.nearest is None else None
        found.rejected, found.independent = root.rejected, root.independent
        return found if only is None else Root(chosen=only)
    strong = [c for c in candidates if not c.weak]
    if any(not ended_without_message(c) for c in strong):
        root.rejected += [(c, "other ranks also report this when something else fails") for c in candidates if c.weak]
        candidates = strong
    candidates = without_faults_elsewhere(candidates, subjects, root, case=case)
    candidates, disputed, doubtful = settle_mismatch(candidates, subjects, root)
    candidates = drop_raised_after_recorded_failure(candidates, root)
    candidates = _merge(_without_repeated(_with_reasons(candidates)))
    candidates = drop_generic_after_death(candidates, root)
    candidates = drop_raised_after_silent_end(candidates, root)
    candidates = drop_deleted_after_failure(candidates, subjects, root)
    candidates = drop_ends_of_the_rest(candidates, root)
    candidates = drop_without_message_beside_death(candidates, root)
    candidates.sort(key=lambda c: (-c.tier, c.order))
    tier = candidates[0].tier
    first = [c for c in candidates if c.tier == tier]
    root.rejected += [(c, _weaker(candidates[0], c)) for c in candidates if c.tier < tier]
    if tier == HANG:
        # Stacks are from one moment: only the kind of proof decides.
        most = max(c.specificity for c in first)
        earliest, others = _parted(first, [c.specificity < most for c in first])
    else:
        earliest, others = _parted(first, preceded([time_of(c, subjects) for c in first]))
    root.rejected += [(c, "failed later, by more than the clocks' uncertainty") for c in others]
    earliest = _in_order(earliest)
    chosen = earliest[0]
    root.tied = earliest[1:]
    root.rejected += [(c, why_tied(c)) for c in earliest[1:]]
    root.chosen = chosen
    root.independent += independent_faults((c for c in candidates if c is not chosen), chosen)
    root.everywhere = _everywhere(case, subjects, chosen) or (disputed and chosen.slug == MISMATCH)
    root.unnamed = (
        (tier == HANG and bool(root.tied))
        or (
            is_without_message(chosen)
            and bool(chosen.same)
            and not root.everywhere
            and not _first_of_a_launcher(chosen)
        )
        or (_waits(chosen) and not root.everywhere and (bool(chosen.same) or any(map(_waits, earliest[1:]))))
        or first_is_open(chosen, earliest[1:])
        # A launcher's line about several ranks.
        or any(same_line(c.best, chosen.best) for c in earliest[1:])
    )
    if (root.unnamed or (is_without_message(chosen) and chosen.same)) and tier != HANG:
        chosen.confidence = "suspected"
    # A report compares two ranks; the one that printed it is not the suspect.
    root.unnamed = root.unnamed or (not root.everywhere and any(c is chosen for c in doubtful))
    return root


def _failures(case: Case, subjects: Subjects, root: Root) -> list[Candidate]:
    """Candidates of ranks that failed, else ranks for which the others waited."""
    candidates = [c for s in subjects.all.values() if (c := candidate_of(s)) is not None]
    candidates = drop_cancelled_after_abort(drop_after_abort(candidates, subjects, root), subjects, root)
    candidates = without_ends_by_launcher(without_stopped_from_outside(candidates, subjects), subjects)
    candidates = drop_ends_after_stop(candidates, root)
    candidates = drop_raised_after_signal(drop_ends_of_a_hang(candidates, subjects, root), subjects, root)
    candidates = _without_passed(candidates, subjects, root)
    if any(e.slug == "collective_timeout" for s in subjects.all.values() for e in s.complaints):
        candidates = [c for c in candidates if c.best is None or c.best.signature != NONE_RECEIVED]
    if (left := left_before_joining(candidates, case, subjects)) is not None:
        root.rejected += [(c, "waited for a rank that had ended before it joined") for c in candidates]
        candidates = [left]
    late = [c for c in candidates if c.after_work]
    candidates = [c for c in candidates if not c.after_work]
    if not candidates:
        candidates = differing_calls(subjects)
    for waited_for in (left_early, only_silent_rank, only_failed_slot, only_rank):
        if not candidates and (found := waited_for(case, subjects)) is not None:
            candidates = [found]
    if candidates:
        root.rejected += [(c, "its rank had finished its work") for c in late]
    return drop_outlived(candidates or late, subjects, root, hung=case.hung)


def _without_passed(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops lines after which the job continued until another subject failed."""
    pieces = [e for s in subjects.all.values() for e in s.evidence if e.role != "context"]
    bests = [c.best for c in candidates if c.best is not None]
    firsts = [c.best for c in candidates if c.best is not None and c.reported_first and c.tier == EXPLICIT]
    kept = {id(e) for e in without_passed(bests, pieces, firsts=firsts)}
    root.rejected += [(c, "its program continued") for c in candidates if c.best is not None and id(c.best) not in kept]
    return [c for c in candidates if c.best is None or id(c.best) in kept]


def _waits(candidate: Candidate) -> bool:
    """True if only its process group's watchdog reports it."""
    return candidate.best is not None and candidate.best.signature == WATCHDOG


def _first_of_a_launcher(chosen: Candidate) -> bool:
    """True if one launcher observed this end before the equal ones; launchers of several nodes each have their first."""
    firsts = [s for s in (chosen.subject, *chosen.same) if s.rank is not None and s.rank.reported_first]
    return firsts == [chosen.subject]


def _in_order(candidates: list[Candidate]) -> list[Candidate]:
    """Sorts simultaneous candidates: a doubtful fault of a node last, of equal causes a launcher's first one first, then by place in one text."""
    alike = len({c.slug for c in candidates}) == 1
    places = _places(candidates) if alike and len(candidates) > 1 else {}

    def key(c: Candidate) -> tuple[object, ...]:
        # The platform notices a loss late, and keeps away from the node by itself.
        doubtful = c.tier == PLATFORM and (c.confidence == "suspected" or c.slug == "node_lost")
        place = places.get(id(c), ("", 0))
        no_reason = c.best is not None and c.best.signature in ABORT_REPORTS
        return (doubtful, not (alike and c.reported_first), no_reason, place, -c.specificity, -c.support, c.order)

    return sorted(candidates, key=key)


def _parted(candidates: list[Candidate], rejected: list[bool]) -> tuple[list[Candidate], list[Candidate]]:
    both = list(zip(candidates, rejected, strict=True))
    return [c for c, no in both if not no], [c for c, no in both if no]


def _weaker(chosen: Candidate, other: Candidate) -> str:
    if chosen.tier > EXPLICIT:
        return "a fact that the job cannot forge outweighs it"
    if other.tier == HANG:
        return "a rank that failed outweighs one that only hung"
    return "an explicit failure outweighs a silent one" if other.tier == SILENT else "weaker kind of evidence"


_CRASHES: Final = frozenset({"segfault", "native_abort"})
# Each rank may have its own.
_OF_ONE_RANK: Final = frozenset({OWN_CODE, "user_exit", "killed_unknown"})


def _with_reasons(candidates: list[Candidate]) -> list[Candidate]:
    """Shows slurmstepd's line, which states the reason, for the task that srun names: it is one event."""
    reasons = [c.best for c in candidates if c.best is not None and c.best.signature == "host_oom.slurm"]
    for one in candidates:
        if one.best is not None and one.best.signature == "host_oom.srun":
            one.best = next((e for e in reasons if e.stream == one.best.stream), one.best)
    return candidates


def _without_repeated(candidates: list[Candidate]) -> list[Candidate]:
    """Removes a slot's platform fault if a rank of the slot has the same one.

    Likewise a fault in text of an unknown speaker, as of a batch system, if text of a rank has it too.
    """
    ranked = [c for c in candidates if c.subject.rank is not None]
    own = {(c.slug, c.subject.slot_number) for c in ranked if c.tier >= CONFIRMED}
    printed = {c.slug for c in ranked} - _OF_ONE_RANK
    lines = {c.fingerprint for c in ranked if c.slug == OWN_CODE and c.bare}

    def repeated(c: Candidate) -> bool:
        slot = c.subject.slot_number
        again = c.slug in printed or (c.bare and c.fingerprint in lines)
        return (c.slug, slot) in own or (slot is None and c.tier < CONFIRMED and again)

    return [c for c in candidates if c.subject.rank is not None or not repeated(c)]


# Causes of an exit code.
_CODES: Final = frozenset({"user_exit", *EXIT_SLUGS.values()})


def _merge(candidates: list[Candidate]) -> list[Candidate]:
    """Merges candidates by fingerprint: the same fault on many ranks is one."""
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for candidate, fault in zip(candidates, faults_of(candidates), strict=True):
        mergeable = candidate.tier in {EXPLICIT, HANG} or candidate.slug in _CODES | NEVER_STARTED | TAKEN_AWAY
        key = fault if mergeable else f"{candidate.fingerprint}\0{candidate.subject.key}"
        groups[key].append(candidate)
    merged = []
    for ordered in map(_in_order, groups.values()):
        head = ordered[first_of([c.moment for c in ordered]) or 0]
        head.same = [c.subject for c in ordered if c is not head]
        merged.append(head)
    return merged


def _places(group: list[Candidate]) -> dict[int, tuple[str, int]]:
    """Places of candidates by their id(); none if they are in several texts."""
    places = {id(c): _place_in_text(c) for c in group}
    return places if len({stream for stream, _ in places.values()}) == 1 else {}


def _place_in_text(candidate: Candidate) -> tuple[str, int]:
    """Stream and place of a candidate's line; of a record, or a fact without lines, only its rank's order."""
    best = candidate.best
    lines = [e for e in candidate.subject.evidence if e.source == "log"] if best is None else [best]
    known = lines and (best is None or best.source == "log")
    return min(map(text_place, lines)) if known else (str(candidate.order), 0)


def _everywhere(case: Case, subjects: Subjects, chosen: Candidate) -> bool:
    """True if the fault affected all ranks; a rank that Rankfall stopped first counts as affected."""
    if not chosen.same:
        return False
    struck = {s.key for s in (chosen.subject, *chosen.same)}
    if chosen.slug in NEVER_STARTED:
        # No ranks yet; a slot that is only late has no evidence.
        return len({s.slot_number for s in (chosen.subject, *chosen.same)} - {None}) >= (case.nnodes or 0)
    if case.world_size is None:
        if chosen.only_reported:
            return False
        numbers = [s.rank_number for s in (chosen.subject, *chosen.same) if s.rank_number is not None]
        most_unseen = len(numbers) == len(struck) and max(numbers) + 1 > 2 * len(numbers)
        if most_unseen and (cause_info(chosen.slug).family != "user" or chosen.slug in _CRASHES):
            # A fault of a place, or of one rank's memory; an exception of the code is everywhere.
            return False
        # A launcher's lines about ends are no complaint of another rank.
        return not any(
            s.rank is not None or (e.slug not in NEVER_CAUSE and e.slug != "unknown")
            for s in subjects.all.values()
            if s.key not in struck
            for e in s.complaints
        )
    for number in range(case.world_size):
        if ("rank", number) in struck:
            continue
        facts = subjects.ranks.get(number)
        alike = facts is not None and _ended_alike(facts, chosen)
        if alike and not after_stop(each := subjects.all["rank", number], each.ended):
            chosen.same.append(each)
            continue
        slot_struck = facts is not None and ("slot", facts.slot) in struck
        if slot_struck or facts is None or facts.killed_by in {"wrapper", "agent"}:
            continue
        return False
    return True


def _ended_alike(facts: RankFacts, chosen: Candidate) -> bool:
    """True if a rank exited by itself with the root's exit code."""
    root = chosen.subject.rank
    return (
        chosen.slug == "user_exit"
        and root is not None
        and facts.state == "ended"
        and facts.killed_by is None
        and facts.exit_code is not None
        and facts.exit_code == root.exit_code
    )


def _failed_alone(subjects: Subjects, word: Evidence) -> bool:
    """True if one rank failed by itself, and all others succeeded or worked until they were stopped.

    A stopped rank may have closed a connection between ranks, so only an exception of a plain socket or pipe counts.
    """
    facts = list(subjects.ranks.values())
    worked = word.signature in PLAIN_CONNECTIONS
    return sum(map(own_failure, facts)) == 1 and all(
        own_failure(r)
        or (
            r.state == "ended"
            and (r.exit_code == 0 or (worked and r.killed_by is not None and not _complains(subjects, r.rank)))
        )
        for r in facts
    )


def _of_another_connection(subjects: Subjects) -> tuple[Subject, Evidence] | None:
    """The only rank whose exception is of a plain socket or pipe, as to a child, where all others lost a peer of their group.

    A line of its launcher, which names it as the first that failed, counts like the others' complaints.
    """
    rows = [(s, e) for s in subjects.all.values() for e in s.complaints if e.slug in LOST_PEER_SLUGS]
    plain = [(s, e) for s, e in rows if e.signature in PLAIN_CONNECTIONS and e.whole and e.collective is None]
    if len(plain) != 1 or plain[0][0].rank_number is None or plain[0][1].thread:
        return None
    subject, word = plain[0]
    others = [(s, e) for s, e in rows if e is not word]
    if any(s is subject or s.rank_number is None or surely_after(word, e) for s, e in others):
        return None
    first = any(e.signature in FIRST_ENDS for e in subject.evidence)
    return plain[0] if others or first else None


def _complaints(subjects: Subjects, slot: int) -> tuple[Evidence, ...]:
    subject = subjects.all.get(("slot", slot))
    return subject.complaints if subject is not None else ()


def _complains(subjects: Subjects, rank: int) -> bool:
    return any(e.slug not in NEVER_CAUSE for e in subjects.all["rank", rank].complaints)


def only_consequences(case: Case, subjects: Subjects) -> Root:
    """Root without a cause: the consequence nearest the origin, and its peers."""
    spoken: list[tuple[int, int, bool, int, Subject, Evidence]] = []
    named: set[int] = set()
    complained: set[int] = set()
    repeated = names_itself = False
    for subject in subjects.all.values():
        for piece in subject.complaints:
            if piece.slug not in NEAREST:
                continue
            named.update(piece.peers)
            names_itself = names_itself or subject.rank_number in piece.peers
            if subject.rank_number is not None:
                complained.add(subject.rank_number)
            if piece.slug in NEVER_CAUSE:
                repeated = True
                continue
            if piece.slug == "external_signal" and follows_lost_peer(piece, subject, subjects):
                continue
            at, _ = subject.when(piece).common
            spoken.append((NEAREST[piece.slug], collective_number(piece), at is None, at or 0, subject, piece))
    named = named if names_itself else (named - complained) or named  # what complains names others itself
    silent = {
        number
        for number in range(case.world_size or 0)
        if number not in complained and (number not in subjects.ranks or subjects.ranks[number].killed_by is None)
    }
    # A text may be of some ranks only.
    silent = set() if (case.run is None and len(silent) > 1) or len(silent) >= max(1, case.world_size or 0) else silent
    suspects = tuple(sorted(named or silent))
    quiet_slots = tuple(
        sorted(
            s.slot
            for s in case.slots
            if not any(r.slot == s.slot for r in subjects.ranks.values())
            and s.state in {"expected", "running", "lost"}
            and not any(e.slug == "peer_teardown" for e in _complaints(subjects, s.slot))
        )
    )
    if not spoken:
        suspects = suspects or task_not_terminated(subjects)
        return Root(suspects=suspects, suspect_slots=quiet_slots, repeated=repeated)
    # The earliest collective is the one that hangs; then the first line of one text, else that of the first node and rank.
    one_text = len({row[5].stream for row in spoken}) == 1
    spoken.sort(
        key=lambda row: (
            *row[:4],
            -row[5].specificity,
            *(() if one_text else (row[4].node or "~", str(row[4].key))),
            *text_place(row[5]),
        )
    )
    subject, piece = spoken[0][4:]
    outside = _of_another_connection(subjects)
    if outside is not None and named <= {outside[0].rank_number}:
        return Root(nearest=outside, alone=True)
    # A text may lack the ends of ranks that complained.
    ends_known = complained <= subjects.ranks.keys()
    if not named and ends_known and subject.rank and own_failure(subject.rank) and _failed_alone(subjects, piece):
        return Root(nearest=(subject, piece), alone=True)
    return Root(nearest=(subject, piece), suspects=suspects, suspect_slots=quiet_slots)


def outlived_traceback(subjects: Subjects) -> Candidate | None:
    """Last whole traceback after which its process continued, as ``suspected``; None if there is none.

    For text without another sign of an end, also of completed work.
    """
    found = [
        (e.at or 0, e.stream or "", e.order or 0, e.id, s, e)
        for s in subjects.all.values()
        for e in s.evidence
        if e.outlived
        and e.whole
        and not e.passed
        and e.slug not in NEVER_CAUSE
        and cause_info(e.slug).role == "primary"
    ]
    if not found:
        return None
    *_, subject, piece = max(found, key=lambda row: row[:4])
    chosen = from_piece(subject, piece, [piece])
    chosen.confidence = "suspected"
    return chosen
