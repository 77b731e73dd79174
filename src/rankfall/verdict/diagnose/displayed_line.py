"""Chooses the line that a verdict displays, and the rank that a text names for a failure without one."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Final

import msgspec

from rankfall.model import Case, Evidence, cause_info
from rankfall.model.evidence import line_place, on_other_nodes, surely_after
from rankfall.model.patterns import anchored, bounded
from rankfall.verdict.diagnose.candidates import SILENT, Candidate, Root, ended_without_message, text_place
from rankfall.verdict.diagnose.cause_tables import (
    ABORTED_ALL,
    ABOVE_THEIR_HEADS,
    BARE_ABORTS,
    CHILD_FAILED,
    CUT_OFF,
    ENDS_ABOVE,
    FIRST_ENDS,
    HEADS_OF_STACKS,
    LAST_ERROR,
    LOST_PEER_SLUGS,
    NAMES_A_RANK,
    OF_LIBRARY,
    OWN_CODE,
    called_abort,
    reports_code,
    signal_slug,
)
from rankfall.verdict.diagnose.root_search import only_consequences
from rankfall.verdict.diagnose.subjects import Subject, Subjects

_NAME_FIRST: Final = FIRST_ENDS | {ABORTED_ALL}
_OF_A_RANK: Final = frozenset({"user", "data", "memory", "gpu", "unknown"})
# Exceptions that each rank of a job may raise.
_OF_CODE: Final = frozenset({"user", "data", "memory"})
# Words of a rank that may have failed because of another one; after its own prefix.
_OF_OTHERS: Final = bounded(
    r"(?i)[^\w\[(]\b(?:peers?|ranks?|remote|workers?|connect\w*|sockets?|timed? ?out|time-?out|wait\w*|heartbeat|lost|missing|stopp\w+|abort\w*)\b",
    limit=4096,
)
# Codes with which programs end all processes after any failure.
_ANY_FAILURE: Final = frozenset({None, 0, 1, -1, 255})
# Lines of one message, and from one to the next.
_MAX_MESSAGE_LINES: Final = 4
_APART: Final = 4
# Least share of a line that the same message of another speaker begins with, and the beginning of a warning.
_SAME: Final = 0.8
_WARNING: Final = anchored(r"\W{0,4}(?:W\d{0,4} |WARN)", limit=64)
# A statement that raises an exception.
_RAISES: Final = bounded(r"\b(?:raise|assert) ", limit=4096)


def lacks_reason(candidate: Candidate, subjects: Subjects) -> bool:
    """True if the evidence names a failure, but no cause.

    A library raises for any reason, a text may end early, and a program may end all processes without a message.
    """
    best = candidate.best
    if (best is not None and best.signature == OF_LIBRARY) or ended_without_message(candidate):
        return True
    if candidate.slug != "user_exit" or not called_abort(candidate.subject.evidence):
        return False
    facts = candidate.subject.rank
    code = facts.exit_code if facts is not None else best.exit_code if best is not None else None
    return code in _ANY_FAILURE and last_error(subjects, candidate) is None


def _gave_no_reason(candidate: Candidate) -> bool:
    """True if nothing but a rank's exit code, by its end or by its SystemExit, states its failure."""
    best = candidate.best
    if candidate.tier != SILENT or best is None or best.signal is not None:
        return False
    return best.source == "exit" or (best.source == "record" and best.line == f"SystemExit: {best.exit_code}")


def last_error(subjects: Subjects, chosen: Candidate) -> Evidence | None:
    """Last error of a text in which a launcher reports nothing but an exit code, or of a rank that gave no reason."""
    best, facts = chosen.best, chosen.subject.rank
    in_text = best is None and facts is not None and facts.stream is not None
    aborted = chosen.slug == "user_exit" and (in_text or called_abort(chosen.subject.evidence))
    only_a_code = aborted or (best is not None and reports_code(best) and chosen.slug != OWN_CODE)
    abort = best if best is not None and best.signature in BARE_ABORTS else None
    if ended_without_message(chosen) or only_a_code or abort is not None:
        nearest = nearest_line(subjects)
        if nearest is None or nearest.fingerprint != LAST_ERROR:
            return None
        return nearest if abort is None or surely_after(abort, nearest) else None
    if facts is None or not _gave_no_reason(chosen):
        return None
    words = [e for e in chosen.subject.evidence if e.fingerprint == LAST_ERROR]
    # Programs print their reasons on stderr.
    return max(words, key=lambda e: (".err" in (e.stream or ""), e.at or 0, e.id), default=None)


def nearest_line(subjects: Subjects) -> Evidence | None:
    """Line to show without a cause: the last error of a text, else the last report of a launcher, else its first stop or fault of an application."""
    lines = [e for s in subjects.all.values() for e in s.evidence if e.source == "log"]
    found = [e for e in lines if e.slug == "unknown"]
    # A launcher's exception about a process has no more than the process's own.
    found = [e for e in found if e.signature != CHILD_FAILED] or found
    stops = [e for e in lines if e.slug in {"controller_verdict", "peer_teardown", "gpu_app_xid"}]
    first = min(stops, key=lambda e: (*text_place(e), e.id), default=None)
    if first is not None and first.slug == "controller_verdict":
        # A report of a failure is better than a frame.
        found = [e for e in found if e.signature != CUT_OFF or _RAISES.search(e.line) is not None]
    return max(found, key=lambda e: (e.role == "context", e.stream or "", e.order or 0, e.id), default=first)


def whole_message(best: Evidence, subjects: Subjects) -> Evidence:
    """Decisive line with the neighbouring lines about the same cause, as the head of a message before its detail."""
    place, number = line_place(best.where)
    if best.source != "log" or number is None or best.whole:
        return best
    rows = {number: best.line}
    for piece in (e for s in subjects.all.values() for e in s.evidence if e.source == "log" and e.slug == best.slug):
        file, other = line_place(piece.where)
        if file == place and other is not None and piece.rank in {None, best.rank} and _adds_to(piece.line, best.line):
            rows.setdefault(other, piece.line)
    first = last = number
    while (before := next((n for n in range(first - 1, first - _APART, -1) if n in rows), None)) is not None:
        first = before
    while (after := next((n for n in range(last + 1, last + _APART) if n in rows), None)) is not None:
        last = after
    block = sorted((n for n in rows if first <= n <= last), key=lambda n: (abs(n - number), n))[:_MAX_MESSAGE_LINES]
    lines = dict.fromkeys(rows[n] for n in sorted(block))
    kept = [one for one in lines if one == best.line or not any(one in other for other in lines if other != one)]
    return msgspec.structs.replace(best, line="\n".join(kept))


def _adds_to(other: str, line: str) -> bool:
    """False for a warning, and for the same message of another time or speaker."""
    start = round(_SAME * min(len(other), len(line)))
    return other == line or not (_WARNING.match(other) or other[:start] == line[:start])


def named_rank(subjects: Subjects, displayed: Evidence) -> int | None:
    """Rank that a line without a cause names as failed; None if lines of its kind name several."""
    if displayed.rank is not None and [r.rank for r in subjects.ranks.values() if r.reported_first] == [displayed.rank]:
        return displayed.rank
    if displayed.fingerprint != LAST_ERROR:
        signature = HEADS_OF_STACKS.get(displayed.signature or "", displayed.signature)
        return only_named_rank(subjects, {signature}) if signature in NAMES_A_RANK else None
    if displayed.rank is None:
        return only_named_rank(subjects, FIRST_ENDS)
    spoke = {e.rank for s in subjects.all.values() for e in s.evidence}
    of_others = displayed.signature != CUT_OFF and _OF_OTHERS.search(displayed.line) is not None
    return displayed.rank if spoke <= {displayed.rank, None} and not of_others else None


def only_named_rank(subjects: Subjects, signatures: Collection[str | None]) -> int | None:
    """The rank that lines with these signatures name; None if they name several or none."""
    named = {e.rank for s in subjects.all.values() for e in s.evidence if e.signature in signatures} - {None}
    return named.pop() if len(named) == 1 else None


def rank_of_head(subjects: Subjects, line: Evidence, signature: str) -> int | None:
    """The rank of the head of a line's error stack, above it or directly below; None if no head names one."""
    heads = [e for s in subjects.all.values() for e in s.evidence if e.signature == signature and e.rank is not None]
    above = [e for e in heads if surely_after(line, e)]
    if above:
        return max(above, key=lambda e: e.order or 0).rank
    below = [e for e in heads if surely_after(e, line)] if line.signature in ABOVE_THEIR_HEADS else []
    return min(below, key=lambda e: e.order or 0).rank if below else only_named_rank(subjects, {signature})


def with_silent_rank(root: Root, case: Case, subjects: Subjects) -> Root:
    """Gives a text's cause to the only rank without a complaint, if all others lost a peer after it."""
    chosen = root.chosen
    if chosen is None or root.everywhere or root.unnamed:
        return root
    best = chosen.best
    if case.run is None and best is not None and (first := _first_without_words(chosen, best, subjects)) is not None:
        chosen.unordered, chosen.gpu = True, None
        return _named(
            root, chosen, first, "its launcher saw its end first, and another rank's message is of the same end"
        )
    if best is None or best.source != "log" or chosen.subject.rank is not None or best.local_rank is not None:
        return root
    killed = [c for c, _ in root.rejected if c.slug == "killed_unknown" and c.subject.rank is not None and c.bare]
    if chosen.slug == "host_oom" and len(killed) == 1:
        # One event: the launcher names the task, the batch system the reason.
        named = msgspec.structs.replace(chosen, subject=killed[0].subject, because="the only rank that was killed")
        rejected = [row for row in root.rejected if row[0] is not killed[0]]
        return msgspec.structs.replace(root, chosen=named, rejected=rejected)
    if (head := HEADS_OF_STACKS.get(best.signature or "")) is not None:
        rank = rank_of_head(subjects, best, head)
        subject = subjects.all.get(("rank", rank)) if rank is not None else None
        return root if subject is None else _named(root, chosen, subject, "the head of its error stack names the rank")
    if (subject := _first_to_end(root, chosen, best, subjects)) is not None:
        # The others may have failed in the same way.
        chosen.unordered, chosen.gpu = True, None
        return _named(root, chosen, subject, "its launcher names the rank that ended first")
    waited = [e for s in subjects.all.values() for e in s.complaints if e.slug in LOST_PEER_SLUGS]
    if cause_info(chosen.slug).family not in _OF_A_RANK or not all(surely_after(e, best) for e in waited):
        return root
    suspects = only_consequences(case, subjects).suspects if waited else ()
    subject = subjects.all.get(("rank", suspects[0])) if len(suspects) == 1 else None
    if subject is None or chosen.subject.slot_number not in {None, subject.slot_number}:
        return root
    return _named(root, chosen, subject, "its rank was found by elimination")


def _first_without_words(chosen: Candidate, best: Evidence, subjects: Subjects) -> Subject | None:
    """The rank whose end with Python's code its launcher saw first, if the text has another rank's exception, not its own."""
    firsts = [r for r in subjects.ranks.values() if r.reported_first]
    own = chosen.subject.rank
    if own is None or len(firsts) != 1 or firsts[0].rank == own.rank or firsts[0].exit_code != 1:
        return None
    if best.source != "log" or not best.whole or cause_info(best.slug).family not in _OF_CODE:
        return None
    first = subjects.all["rank", firsts[0].rank]
    words = [e for e in first.evidence if e.role != "context" and e.slug != "peer_teardown" and not reports_code(e)]
    return None if words or on_other_nodes(best.node, first.node) else first


def _first_to_end(root: Root, chosen: Candidate, best: Evidence, subjects: Subjects) -> Subject | None:
    """The rank that a launcher names as the first that ended, if its text has one failure and no other rank's."""
    if chosen.same or cause_info(chosen.slug).family not in _OF_A_RANK:
        return None
    ends = [(s, e) for s in subjects.all.values() for e in s.evidence if e.signature in _NAME_FIRST]
    named = {s.key: s for s, _ in ends if s.rank_number is not None}
    if not named and len({e.fingerprint for e in chosen.subject.evidence if e.whole}) <= 1:
        named = {s.key: s for s in _first_reported(subjects, chosen)}
    # torch prints the exception below its line about the process, others print their line at the end.
    apart = [e for _, e in ends if not (surely_after(best, e) if e.signature in ENDS_ABOVE else surely_after(e, best))]
    if len(named) != 1 or apart or on_other_nodes(best.node, next(iter(named.values())).node):
        return None

    def before_end(e: Evidence) -> bool:
        follows = all(end.signature not in ENDS_ABOVE and surely_after(e, end) for _, end in ends)
        return e.signature not in _NAME_FIRST and not follows

    others = any(c.best is not None and before_end(c.best) for c, _ in root.rejected)
    own = chosen.subject.evidence
    more = any(e.role == "primary" and e.slug not in {chosen.slug, OWN_CODE} and before_end(e) for e in own)
    others_said = [s.complaints for s in subjects.all.values() if s.rank_number is not None and s.key not in named]
    spoke = any(e.slug != "peer_teardown" for e in chain.from_iterable(others_said))
    return None if others or more or spoke else next(iter(named.values()))


def _first_reported(subjects: Subjects, chosen: Candidate) -> list[Subject]:
    """The ranks whose end torchrun saw first; else the only one whose end a launcher reports, if by the cause's signal."""
    ended = [(s, s.rank) for s in subjects.all.values() if s.rank is not None and s.rank.state == "ended"]
    if first := [s for s, facts in ended if facts.reported_first]:
        return first
    own = [(s, facts.signal) for s, facts in ended if facts.killed_by != "agent"]
    return [s for s, signal in own if len(own) == 1 and signal is not None and signal_slug(signal) == chosen.slug]


def _named(root: Root, chosen: Candidate, subject: Subject, because: str) -> Root:
    return msgspec.structs.replace(root, chosen=msgspec.structs.replace(chosen, subject=subject, because=because))
