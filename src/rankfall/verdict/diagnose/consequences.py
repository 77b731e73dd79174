"""Removes candidates that are consequences of another failure, or did not fail.

Lines of ranks that continued are no failure if another rank failed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankfall.model import Evidence, cause_info
from rankfall.model.evidence import surely_after
from rankfall.model.timestamps import Moment, order
from rankfall.verdict.diagnose.candidates import EXPLICIT, SILENT, Candidate, Root
from rankfall.verdict.diagnose.cause_tables import (
    DELETED_POD,
    ENDS_OF_THE_REST,
    LOST_PEER_SLUGS,
    MPI_ABORT,
    NEVER_CAUSE,
    OWN_ABORTS,
    OWN_CODE,
    SIGNAL_OF_AGENT,
    STEP_ENDS,
    STEP_TAKEN,
    TIMED_OUT,
)
from rankfall.verdict.diagnose.subjects import Subject, Subjects, of_own_code, own_failure
from rankfall.verdict.diagnose.survived_lines import repeats

# Codes of SIGABRT, by a launcher of Python and by a shell.
_ABORTED: Final = frozenset({-6, 134})
# Ends that a process may have when another one ends it.
_BY_ABORT: Final = frozenset({"segfault", "native_abort", "killed_unknown"})
# An unknown exception may be about a lost peer.
_GENERIC_SPECIFICITY = 30
_SIGTERM, _SIGKILL = 15, 9
_NS: Final = 1_000_000_000
# Seconds after a traceback in which a process certainly ends if nothing catches the exception.
_LIVED_S: Final = 5.0


def without_stopped_from_outside(candidates: list[Candidate], subjects: Subjects) -> list[Candidate]:
    """Removes ranks that ended silently, or complained, after a stop signal from outside.

    Likewise slots whose pods their job's controller deleted because another one had failed.
    """
    stopped_at: dict[int, Moment] = {}
    deleted: set[int] = set()
    for subject in subjects.all.values():
        for piece in subject.evidence:
            slot = subject.slot_number
            if subject.rank is not None or slot is None:
                continue
            if piece.slug == "peer_teardown" and piece.fingerprint == DELETED_POD:
                deleted.add(slot)
            elif piece.slug != "external_signal":
                continue
            stopped_at[slot] = subject.when(piece)
    if not stopped_at:
        return candidates

    def victim(candidate: Candidate) -> bool:
        moment = candidate.moment
        if candidate.weak:
            # A stopped agent closes the rendezvous for the others.
            return any(order(moment, at) != "before" for at in stopped_at.values())
        slot = candidate.subject.slot_number
        if candidate.tier != SILENT or slot is None or slot not in stopped_at:
            return False
        if candidate.subject.rank is None and slot not in deleted:
            return False
        return order(moment, stopped_at[slot]) != "before"

    return [c for c in candidates if not victim(c)]


def drop_generic_after_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops unspecific exceptions that certainly followed another rank's death."""
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
            root.rejected.append((candidate, "raised after another rank had died; it has no further information"))
        else:
            kept.append(candidate)
    return kept or candidates


def drop_raised_after_silent_end(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops exceptions of the own code, or of a rank that had lost a peer, after another rank's silent end.

    The silent end is only suspected if its rank may be a consequence, or if nothing but the times connects them.
    """
    silent = [
        (c, c.moment)
        for c in candidates
        if c.tier == SILENT and c.subject.rank is not None and not c.subject.complaints
    ]
    kept, doubtful = [], []
    for candidate in candidates:
        best = candidate.best
        if candidate.tier != EXPLICIT or best is None or best.mark is not None or best.source not in {"record", "log"}:
            kept.append(candidate)
            continue
        at = candidate.moment
        ends = [s for s, ended in silent if s.subject is not candidate.subject and order(ended, at) != "after"]
        lost = [e for e in candidate.subject.complaints if e.slug == "peer_lost" and e.source in {"record", "log"}]
        if handled := [s for s in ends if best.lost_peer or (lost and _complained_since(s, candidate, lost))]:
            root.rejected.append((candidate, "raised while its rank handled a lost peer; another rank ended silently"))
            doubtful += [s for s in handled if is_without_message(s) and not s.before(candidate)]
        elif of_own_code(best) and (unconnected := [s for s in ends if _ended_alone_before(s, candidate)]):
            root.rejected.append((candidate, "raised after another rank had ended without a message"))
            doubtful += unconnected
        else:
            kept.append(candidate)
    for one in doubtful:
        one.confidence = "suspected"
    return kept


def drop_raised_after_recorded_failure(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops exceptions that ranks raised while they handled a lost peer, if another rank failed by itself not later."""
    recorded = [c for c in candidates if c.tier == EXPLICIT and c.best is not None and c.best.source == "record"]
    own = [c for c in recorded if c.best and not c.best.lost_peer and not c.weak]

    def handled(c: Candidate) -> bool:
        return c.best is not None and c.best.lost_peer and any(order(o.moment, c.moment) != "after" for o in own)

    after = [c for c in recorded if handled(c)]
    root.rejected += [(c, "raised while its rank handled a lost peer; another rank failed by itself") for c in after]
    return [c for c in candidates if all(c is not one for one in after)]


def drop_ends_after_stop(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops ends that ranks chose after the signal of their launcher, if a rank failed before."""
    ended = [c for c in candidates if c.slug == "user_exit" and after_stop(c.subject, c.moment)]
    kept = [c for c in candidates if c not in ended]
    if not any(c.before(other) for c in kept for other in ended):
        return candidates
    root.rejected += [(c, "it ended after its launcher's stop signal") for c in ended]
    return kept


def after_stop(subject: Subject, end: Moment) -> bool:
    """True if a rank ended certainly after its launcher reported a stop signal, which it sends after the report."""
    reports = [e.at for e in subject.complaints if e.slug == "peer_teardown" and e.source == "log" and e.at is not None]
    first = None if end.at is None else end.at - round(end.uncertainty * _NS)
    return subject.rank is not None and first is not None and any(at < first for at in reports)


def _complained_since(silent: Candidate, candidate: Candidate, lost: Sequence[Evidence]) -> bool:
    """True if the candidate's rank reported a lost peer between the silent end and its own exception."""
    subject = candidate.subject
    return silent.before(candidate) and any(
        order(subject.when(e), silent.moment) != "before" and order(subject.when(e), candidate.moment) != "after"
        for e in lost
        if e.at is not None
    )


def _ended_alone_before(silent: Candidate, candidate: Candidate) -> bool:
    """True for the only rank that ended with a code, certainly before the candidate, if its hook missed no exception."""
    facts = silent.subject.rank
    hooked = facts is not None and facts.hook == "loaded"
    return silent.slug == "user_exit" and not silent.same and hooked and silent.before(candidate)


def drop_after_abort(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops crashes and kills that nothing but lines show, after those of another rank that had ended all processes."""
    ends = [(e, s) for s in subjects.all.values() for e in s.evidence if e.signature in OWN_ABORTS]
    kept = []
    for candidate in candidates:
        best = candidate.best
        if (
            candidate.slug in _BY_ABORT
            and candidate.bare
            and best is not None
            and any(by is not candidate.subject and surely_after(best, e) for e, by in ends)
        ):
            root.rejected.append((candidate, "another rank had ended all processes"))
        else:
            kept.append(candidate)
    return kept or candidates


_ABORTS: Final = OWN_ABORTS | {MPI_ABORT}


def drop_cancelled_after_abort(candidates: list[Candidate], subjects: Subjects, root: Root) -> list[Candidate]:
    """Drops the batch system's end of a step that MPI had ended; its own error may have no cause."""
    aborts = [e for s in subjects.all.values() for e in s.evidence if e.signature in _ABORTS]

    def follows(candidate: Candidate) -> bool:
        best = candidate.best
        if best is None or candidate.slug != "cancelled" or not candidate.bare:
            return False
        return any(surely_after(best, e) for e in aborts)

    root.rejected += [(c, "MPI had ended all processes") for c in candidates if follows(c)]
    return [c for c in candidates if not follows(c)]


def drop_ends_of_the_rest(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops ends by a user or batch system that a text shows after the failure of a rank, and the reverse."""
    taken = [c.best for c in candidates if c.best is not None and c.best.signature in STEP_TAKEN]
    raised = [(c, c.best) for c in candidates if c.best and (c.best.whole or c.slug == OWN_CODE)]
    after = [c for c, best in raised if any(surely_after(best, end) for end in taken)]
    root.rejected += [(c, "raised after the batch system had ended the step") for c in after]
    candidates = [c for c in candidates if all(c is not one for one in after)]
    kept = []
    for candidate in candidates:
        best = candidate.best
        earlier = best is not None and any(
            other.best is not None and other.slug not in ENDS_OF_THE_REST and surely_after(best, other.best)
            for other in candidates
            if not other.weak and (candidate.slug in ENDS_OF_THE_REST or of_own_code(other.best))
        )
        ends = candidate.slug in ENDS_OF_THE_REST or (best is not None and best.signature in STEP_ENDS)
        if ends and candidate.bare and earlier:
            root.rejected.append((candidate, "it ended the job after another failure"))
        else:
            kept.append(candidate)
    return kept


def without_ends_by_launcher(candidates: list[Candidate], subjects: Subjects) -> list[Candidate]:
    """Removes ends that a text reports after the complaints of ranks.

    Such as a task that srun killed after all others had timed out, and Python's exit code of an unknown process.
    """
    spoke = [
        (s, [e for e in s.complaints if e.slug not in NEVER_CAUSE and e.slug != "unknown"])
        for s in subjects.all.values()
    ]
    spoke = [(s, words) for s, words in spoke if words]
    # It explains a kill, and which task was killed explains it.
    out_of_memory = any(c.slug == "host_oom" for c in candidates)

    def follows(candidate: Candidate) -> bool:
        best, own = candidate.best, candidate.subject
        if best is None or best.source != "log" or not any(s is not own for s, _ in spoke[:2]):
            return False
        # A watchdog's abort is reported after the time-outs; an abort that caused them is reported before.
        others = [(s, e) for s, words in spoke if s is not own for e in words]
        code = candidate.slug == "user_exit" and best.exit_code == 1
        by_code = best.signature == "native_abort.exit" and best.exit_code in _ABORTED
        aborted = by_code or best.signature == "native_abort.shell"
        in_text = code and (own.rank is None or own.rank.state != "ended")
        expected = LOST_PEER_SLUGS if aborted and any(e.slug in TIMED_OUT for _, e in others) else TIMED_OUT
        killed = best.signature == "killed_unknown.srun" and not out_of_memory
        if (killed or aborted or in_text) and all(e.slug in expected and surely_after(best, e) for _, e in others):
            return True
        # A complaint without a rank may be this rank's.
        unnamed = own.rank is None and best.local_rank is None
        return code and (unnamed or any(s.rank is None and surely_after(best, e) for s, e in others))

    return [c for c in candidates if not follows(c)]


def follows_lost_peer(signalled: Evidence, subject: Subject, subjects: Subjects) -> bool:
    """True if a rank or launcher was stopped certainly after a rank had lost a peer: its stop followed from that."""
    # A user or launcher stops what does not continue; for the handler of a rank, only what others reported before counts.
    stopped = signalled.source == "log" and (signalled.whole or signalled.signature == SIGNAL_OF_AGENT)
    if not stopped and signalled.signature != "external_signal.text":
        return False
    reported_by = (s for s in subjects.all.values() if s is not subject or stopped)
    return any(surely_after(signalled, e) for s in reported_by for e in s.complaints if e.slug in LOST_PEER_SLUGS)


def why_tied(candidate: Candidate) -> str:
    """Reason for which a candidate that may be as early as the root is not the root."""
    if candidate.at is None:
        return "nothing shows which of the two failed first"
    return "failed at the same time as the root, within the clocks' uncertainty"


def stays(candidate: Candidate) -> bool:
    """True if no restart helps where this candidate is the cause."""
    explicit = candidate.tier == EXPLICIT and not candidate.weak and candidate.slug not in ENDS_OF_THE_REST
    return explicit and cause_info(candidate.slug).retry == "no"


def faults_of(candidates: list[Candidate]) -> list[str]:
    """Fingerprint of each candidate's fault.

    Two are one fault if their processes printed one exception of the same place alike: each may have printed several.
    """
    names: dict[str, str] = {}
    found = []
    for candidate in candidates:
        best, prints = candidate.best, [candidate.fingerprint]
        if best is not None and best.whole and best.place is not None:
            alike = (e for e in candidate.subject.evidence if e.whole and (e.slug, e.place) == (best.slug, best.place))
            prints += [e.fingerprint for e in alike if e.fingerprint is not None]
        name = next((names[one] for one in prints if one in names), candidate.fingerprint)
        names.update((one, name) for one in prints if one not in names)
        found.append(name)
    return found


def is_without_message(candidate: Candidate) -> bool:
    """True if the only fact is Python's exit code, as of a consequence.

    If several ended so, none is named: the lost peer may hang or have exited with 0.
    """
    facts = candidate.subject.rank
    end = facts if facts is not None and facts.state == "ended" else candidate.best
    code = None if end is None else end.exit_code
    return candidate.tier == SILENT and candidate.slug == "user_exit" and code == 1


def first_is_open(chosen: Candidate, others: list[Candidate]) -> bool:
    """True if launchers report this end and others without an order: each node's first one, or kills without times."""
    if chosen.only_reported:
        return any(c.only_reported for c in others)
    killed = chosen.slug == "killed_unknown" and chosen.moment.at is None
    return killed and any(c.slug == chosen.slug for c in others)


def _perhaps_stopped_by_torchrun(candidate: Candidate, silent: list[Candidate]) -> bool:
    """True if torchrun may have stopped this rank; its lines may be missing."""
    facts, place = candidate.subject.rank, candidate.subject.slot
    if candidate.tier != SILENT or facts is None or place is None or place.launcher != "torchrun":
        return False
    # Ranks with the same end, on any node, are one candidate here.
    beside = [s for c in silent for s in (c.subject, *c.same) if s.slot_number == place.slot]
    came = [order(s.ended, candidate.moment) for s in beside]
    if facts.signal == _SIGTERM:
        return any(one != "after" for one in came)
    return facts.signal == _SIGKILL and "before" in came


def drop_without_message_beside_death(candidates: list[Candidate], root: Root) -> list[Candidate]:
    """Drops ranks with Python's exit code and no message, unless they ended before each death."""
    silent = [c for c in candidates if is_without_message(c)]
    stopped = [c for c in candidates if _perhaps_stopped_by_torchrun(c, silent)]
    root.rejected += [(c, "torchrun ends a rank like this when another rank of its node has ended") for c in stopped]
    candidates = [c for c in candidates if c not in stopped]
    deaths = [c for c in candidates if c.tier == SILENT and c.slug != "user_exit"]
    echoes = [c for c in candidates if is_without_message(c) and any(not c.before(d) for d in deaths)]
    root.rejected += [
        (c, "ended with code 1 and without a message, as a rank does that loses its peer") for c in echoes
    ]
    return [c for c in candidates if c not in echoes]


def drop_outlived(candidates: list[Candidate], subjects: Subjects, root: Root, *, hung: bool) -> list[Candidate]:
    """Drops lines of ranks that did not fail, if another did or the job hung."""
    caught = [c for c in candidates if _was_caught(c)]
    if hung or len(caught) < len(candidates):
        root.rejected += [(c, "the rank caught it: something else ended that rank") for c in caught]
        candidates = [c for c in candidates if all(c is not one for one in caught)]
    own_code = [c for c in candidates if of_own_code(c.best)]
    raised = [c for c in candidates if _raised_by_itself(c)]
    others = [c for c in candidates if not c.bare and not (c.best and c.best.passed)]
    decided = any(c.best is None or c.best.source == "exit" or of_own_code(c.best) for c in others)
    failed = not all(is_without_message(c) for c in others)

    def reason(c: Candidate) -> str | None:
        facts, best = c.subject.rank, c.best
        if best is None or not (c.bare or best.passed):
            return None
        if best.passed and (decided or (c.bare and others)):
            return "the job continued its work after it"
        if not c.bare:
            return None
        if facts is not None and facts.killed_by in {"wrapper", "agent"} and failed:
            stopper = subjects.stopper if facts.killed_by == "wrapper" else "its agent"
            return f"{stopper} stopped this rank, which had not failed"
        if facts is not None and own_failure(facts):
            lost = _lost_its_peer(c) and any(not surely_after(best, o.best) for o in raised if o is not c and o.best)
            return "an exception ended another rank; a lost peer ended this one" if lost else None
        if best.signature in STEP_ENDS and all(o.best and surely_after(o.best, best) for o in own_code):
            return None
        if any(not surely_after(best, o.best) and not _of_others(c, o) for o in own_code if o is not c and o.best):
            return "only a line of text, while an uncaught exception of the job's own code ended another rank"
        return None

    kept = []
    for candidate in candidates:
        why = reason(candidate)
        if why is None:
            kept.append(candidate)
        else:
            root.rejected.append((candidate, why))
    return kept


def _was_caught(candidate: Candidate) -> bool:
    """True if the rank's hook shows that a printed traceback did not end it.

    Each fatal exception leaves a record, which also contains the exception that it followed from.
    """
    facts, best = candidate.subject.rank, candidate.best
    if best is None or facts is None or best.source != "log" or not best.whole or facts.hook != "loaded":
        return False
    records = [piece for piece in candidate.subject.evidence if piece.source == "record"]
    if not records:
        return facts.state == "running" or facts.killed_by in {"wrapper", "agent"}
    return all(
        record.role == "secondary" and not repeats(best, record) and not surely_after(best, record)
        for record in records
    )


def _raised_by_itself(candidate: Candidate) -> bool:
    """True for an exception that ended its rank and that no lost peer causes."""
    best = candidate.best
    recorded = best is not None and best.source == "record" and candidate.slug not in {OWN_CODE, "user_exit"}
    return of_own_code(best) or (recorded and not candidate.weak and _family(candidate) in {"user", "data"})


def _family(candidate: Candidate) -> str:
    return cause_info(candidate.slug).family


def _lost_its_peer(candidate: Candidate) -> bool:
    """True if only a lost peer ended the rank, by its record or else its tracebacks, and the line is not about it."""
    best, evidence = candidate.best, candidate.subject.evidence
    ends = [e for e in evidence if e.source == "record"] or [e for e in evidence if e.source == "log" and e.whole]
    return bool(ends) and all(e.role == "secondary" and best is not None and not repeats(best, e) for e in ends)


def _of_others(candidate: Candidate, own_code: Candidate) -> bool:
    """True if the line is about a GPU, memory or the platform, and from another file than the exception."""
    best, other = candidate.best, own_code.best
    kind, _ = candidate.subject.key
    if best is None or other is None or kind != "stream" or best.stream == other.stream:
        return False
    return _family(candidate) in {"gpu", "memory", "platform", "control"}


def only_text(chosen: Candidate, subjects: Subjects) -> bool:
    """True if text alone supports the candidate, and another fault may have ended the job."""
    best = chosen.best
    if best is None:
        return False
    facts = chosen.subject.rank
    ended = facts.ended_at if facts is not None else None
    lived = best.at is not None and ended is not None and ended - best.at > _LIVED_S * _NS
    # Without times, work after a traceback may be output of a buffer: both stay possible.
    if not (chosen.bare or best.outlived or (best.passed and best.source == "log" and (lived or best.at is None))):
        return False
    if best.passed or best.outlived:
        return True
    raised = [e for s in subjects.all.values() for e in s.evidence if e.role == "primary" and of_own_code(e)]
    if best.signature in STEP_TAKEN:
        raised = [piece for piece in raised if not surely_after(piece, best)]
    return any(not surely_after(best, piece) for piece in raised)
