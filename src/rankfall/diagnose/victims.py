"""Candidates that are another fall's victims: told to stop, taken away after it, stopped by torchrun, or ended without a word beside a death."""

from __future__ import annotations

from rankfall.diagnose.candidates import EXPLICIT, SILENT, Candidate
from rankfall.diagnose.root import Root
from rankfall.diagnose.rules import TAKEN_AWAY
from rankfall.diagnose.subjects import Subjects
from rankfall.model.clocks import Moment, order

# An exception whose text no signature knows may be a bystander's own way to say that its partner went away.
_GENERIC_SPECIFICITY = 30
_SIGTERM, _SIGKILL = 15, 9


def without_told_to_stop(candidates: list[Candidate], subjects: Subjects) -> list[Candidate]:
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


def drop_generic_after_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """A nameless exception that surely came after another rank's death is that death's echo."""
    deaths = [c for c in candidates if c.tier == SILENT and c.slug != "user_exit"]
    kept = []
    for candidate in candidates:
        echo = (
            candidate.tier == EXPLICIT
            and candidate.slug == "user_code_exception"
            and candidate.specificity <= _GENERIC_SPECIFICITY
            and any(d.before(candidate) for d in deaths)
        )
        if echo:
            root.rejected.append((candidate, "raised after another rank had died; nothing in it says more"))
        else:
            kept.append(candidate)
    return kept or candidates


def drop_taken_after_fall(candidates: list[Candidate], root: Root) -> list[Candidate]:
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


def is_mute(candidate: Candidate) -> bool:
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


def drop_mute_beside_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """A rank that ended with Python's own code and left no word is a victim of a death that it did not surely come before."""
    mute = [c for c in candidates if is_mute(c)]
    stopped = [c for c in candidates if _perhaps_torchruns_own(c, mute)]
    root.rejected += [(c, "torchrun ends a rank so when another one of its node has ended") for c in stopped]
    candidates = [c for c in candidates if c not in stopped]
    deaths = [c for c in candidates if c.tier == SILENT and c.slug != "user_exit"]
    echoes = [c for c in candidates if is_mute(c) and any(not c.before(d) for d in deaths)]
    root.rejected += [(c, "ended with code 1 and without a word, as whoever loses its partner does") for c in echoes]
    return [c for c in candidates if c not in echoes]
