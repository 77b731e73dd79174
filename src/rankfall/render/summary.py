"""Summarizes a verdict in sentences: what failed first, what followed, what Rankfall does.

Verbs come from ``advice.csv``, one predicate per cause. All text of the job is escaped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

from rankfall.model import Decision, Decisive, Proof, Verdict
from rankfall.model.patterns import Bounded, anchored, bounded
from rankfall.model.verdict import AFTER_ROOT, HANG
from rankfall.render import formatting
from rankfall.render.escape import one_line

# A consequence names the rank or slot that the others complain of, if it is silent itself.
_WAITED: Final = {
    "peer_lost": "went away without a message",
    "collective_timeout": "never joined the collective",
    "rdzv_closed": "never joined the rendezvous",
}
_SIGKILL: Final = bounded(r"SIGKILL|Killed|[Ss]ignal:? 9\b|[Cc]ode:? \(?(?:-9|137)\b|= -9", limit=4096)
# Class of an exception at the beginning of a line, behind prefixes of launchers as ``[rank1]: ``.
_EXCEPTION: Final = anchored(
    r"(?:\[[^\]]{1,40}\]:?\s{0,8}){0,4}(?:[^\W\d]\w{0,40}\.){0,8}([^\W\d_a-z]\w{0,60})(?::|$)", limit=1024
)
# The same behind any other words, as of a collector, a quotation or a frame of a group.
_BEHIND: Final = bounded(
    r"[\s>|\]):\"'](?:[^\W\d]\w{0,40}\.){0,8}([^\W\d_a-z]\w{0,60}(?:Error|Exception|Timeout|Interrupt))(?::|\"|$)",
    limit=1024,
)
# As a record or a launcher states it.
_EXIT_CODE: Final = bounded(r"\b[Ee]xit ?(?:[Cc]ode|status) *:? *(\d{1,3})\b|\bSystemExit: (\d{1,3})\b", limit=1 << 20)
_EXIT: Final = "SystemExit: "
# Ends of the names of exceptions, and exceptions of launchers, which only report an end.
_ENDINGS: Final = ("Error", "Exception", "Timeout", "Interrupt")
_OF_LAUNCHERS: Final = frozenset({"ChildFailedError", "CalledProcessError", "ProcessExitedException"})
_OF_SYNTAX: Final = frozenset({"SyntaxError", "IndentationError", "TabError"})
# Place of an error of syntax in a traceback and in its message.
_SYNTAX_AT: Final = bounded(
    r"(?m)^[^\n\"]{0,200}File \"([^\"\n]{1,1024})\", line (\d{1,9})\b|\(([^()\n]{1,255}), line (\d{1,9})\)$", limit=4096
)
_GROUPS: Final = frozenset({"ExceptionGroup", "BaseExceptionGroup"})
_HEAD: Final = "Traceback (most recent call last)"
_UNKNOWN: Final = "an unknown rank"
_ELSEWHERE: Final = "If the job failed, its errors are elsewhere: give the output of all ranks and of their launcher."
_PLURAL: Final = {"was": "were", "has": "have", "hangs": "hang", "uses": "use", "runs": "run"}
_ITS: Final = bounded(r"\bits\b", limit=256)
# Place of the evidence that a suspended job never began.
NOT_BEGUN: Final = "state of the workload"
_NO_FAILURE_RULES: Final = frozenset({"no_failure", "not_begun"})
_ACTIONS: Final = {
    "none": "none",
    "retry": "restart",
    "retry_elsewhere": "restart on another node",
    "resize": "restart with another size",
    "quarantine": "quarantine the node and restart",
    "stop": "stop",
}


class Advice(NamedTuple):
    """Texts about one cause.

    Attributes:
        happened: Predicate of the rank or slot.
        advice: What a person can do.
        needs: Fact of ``_FACTS`` without which ``otherwise`` is the advice.
        words: Case-insensitive pattern of the decisive line that the texts are for; empty = any.
    """

    happened: str
    advice: str
    needs: str = ""
    otherwise: str = ""
    words: Bounded[str] | None = None


@cache
def _rows() -> dict[str, tuple[Advice, ...]]:
    text = resources.files(__package__).joinpath("advice.csv").read_text("utf-8")
    found: dict[str, tuple[Advice, ...]] = {}
    for row in csv.DictReader(text.splitlines(), restval=""):
        words = bounded(row["words"], limit=8_192, flags=re.IGNORECASE) if row["words"] else None
        made = Advice(row["happened"], row["advice"], row["needs"], row["otherwise"], words)
        found[row["slug"]] = (*found.get(row["slug"], ()), made)
    return found


def advice() -> dict[str, Advice]:
    """Returns the texts of all causes for any line, by slug, from ``advice.csv``."""
    return {slug: rows[-1] for slug, rows in _rows().items()}


def _advice_of(verdict: Verdict) -> Advice | None:
    """First row whose words the decisive line has; without such a line the cause's evidence counts."""
    lines = [proof.line for proof in verdict.evidence if proof.slug == verdict.cause.slug]
    text = verdict.decisive.line if verdict.decisive is not None else "\n".join(lines)
    rows = _rows().get(verdict.cause.slug, ())
    return next((row for row in rows if row.words is None or row.words.search(text)), None)


def advice_text(verdict: Verdict, *, frames: Sequence[str] = ()) -> str:
    """Returns what a person can do about a verdict's cause, as its evidence allows; empty if nothing.

    Args:
        verdict: Verdict to react to.
        frames: Frames of the decisive exception, innermost first, as ``FILE:LINE in FUNCTION``.
    """
    if is_nothing_found(verdict):
        return _ELSEWHERE
    known = _advice_of(verdict)
    if known is None or is_no_failure(verdict):
        return ""
    if known.needs == "place":
        # A text holds the place above the decisive line.
        innermost = next(iter(frames), "").partition(" in ")[0]
        place = _place_of_syntax(verdict) or one_line(innermost, width=200)
        return known.advice.replace("{place}", place) if place and place[0] != "<" else known.otherwise
    return known.advice if not known.needs or _FACTS[known.needs](verdict) else known.otherwise


def _lines(verdict: Verdict) -> str:
    return "\n".join([proof.line for proof in verdict.evidence] + ([verdict.decisive.line] if verdict.decisive else []))


# Facts that an advice refers to.
_FACTS: Final[dict[str, Callable[[Verdict], bool]]] = {
    "stacks": lambda verdict: (
        any(proof.source == "recorder" for proof in verdict.evidence)
        or any(words in _lines(verdict) for words in (" stands at ", " waits in "))
    ),
    "no_stack": lambda verdict: (
        not any(words in _lines(verdict) for words in ("Fatal Python error", "(most recent call first)"))
    ),
    "restart": lambda verdict: verdict.decision is not None and verdict.decision.action in {"retry", "retry_elsewhere"},
    "node": lambda verdict: verdict.node is not None,
    "missing": lambda verdict: bool(verdict.missing),
    "path": lambda verdict: verdict.decisive is not None and "/" in verdict.decisive.line,
}


def summary(verdict: Verdict, *, step: int | None = None) -> str:
    """Returns one to three sentences on one line: failure, consequences, action.

    Args:
        verdict: Verdict to summarize.
        step: Last training step of the verdict's rank, if known.
    """
    first = first_sentence(verdict, step=step)
    if is_no_failure(verdict) or verdict.run is None:
        return first
    return " ".join(text for text in (first, _reaction(verdict.decision)) if text)


def first_sentence(verdict: Verdict, *, step: int | None = None) -> str:
    """Returns what failed first and what followed, without the reaction; arguments as for :func:`summary`."""
    if is_no_failure(verdict):
        run = f"Run {verdict.run}" if verdict.run else "The job"
        if verdict.state == "succeeded":
            return f"{run} succeeded{_although(verdict)}."
        return f"{run} is running; no failure so far."
    failed = _failure(verdict, step=step) + _followed(verdict)
    if isinstance(verdict.succeeded_in, int):
        before = f"attempt {verdict.attempt} failed: {failed[0].lower()}{failed[1:]}"
        return f"Run {verdict.run} succeeded in attempt {verdict.succeeded_in}; {before}"
    return failed


def _although(verdict: Verdict) -> str:
    """Clause about exceptions that the exit code of the job hides; empty if there is none."""
    first = next((proof for proof in verdict.evidence if proof.rank is not None), None)
    if first is None:
        return ""
    others = len({proof.rank for proof in verdict.evidence if proof.rank is not None} - {first.rank})
    more = f" and {formatting.count(others, 'other rank')} raised one too" if others else ""
    return f", although rank {first.rank} raised {_exception(first) or 'an exception'}{more}"


def is_no_failure(verdict: Verdict) -> bool:
    """Returns True if the run succeeded, or runs without a failure."""
    return verdict.state in {"succeeded", "running"} and verdict.cause.slug == "unknown"


def is_nothing_found(verdict: Verdict) -> bool:
    """Returns True if files show no failure: the job may have succeeded, or its errors may be elsewhere."""
    survived = {proof.where for proof in verdict.evidence if proof.role == "context" and proof.slug != "unknown"}
    decided = verdict.decisive is not None and verdict.decisive.where not in survived
    found = decided or verdict.consequences or any(proof.role != "context" for proof in verdict.evidence)
    return verdict.run is None and verdict.cause.slug == "unknown" and verdict.rank is None and not found


def cause_text(verdict: Verdict) -> str:
    """Returns title, slug and confidence of the cause."""
    cause = verdict.cause
    if is_no_failure(verdict):
        return "none" if verdict.state == "succeeded" else "none so far"
    if is_nothing_found(verdict):
        return "none found"
    if cause.slug == "unknown":
        return "unknown: no recorded evidence explains the failure"
    sure = "only suspected" if cause.confidence == "suspected" else cause.confidence
    return f"{cause.title} ({cause.slug}, {sure})"


def action_text(decision: Decision | None) -> str:
    """Returns what Rankfall does about the verdict, with reason and budget."""
    if decision is None:
        return "none so far"
    text = _ACTIONS.get(decision.action, decision.action)
    if decision.budget and decision.left is not None and decision.action not in {"none", "stop"}:
        text += f" ({formatting.count(decision.left, 'restart')} left, budget {one_line(decision.budget, width=60)})"
    return f"{text}: {one_line(decision.because, width=400)}" if decision.because else text


def _failure(verdict: Verdict, *, step: int | None) -> str:
    slug = verdict.cause.slug
    subject = _subject(verdict)
    subject = subject[0].upper() + subject[1:]
    if verdict.node and subject.startswith(("Rank ", "Slot ", "Local ")):
        subject += f" on {one_line(verdict.node, width=60)}"
    seen = _seen(verdict)
    if slug == "unknown" and verdict.rank is None and not (seen and verdict.scope == "external"):
        if is_nothing_found(verdict):
            return "No failure was found in the files" + ("; the shown lines ended nothing" if verdict.evidence else "")
        if verdict.run is None:
            # Files alone do not prove that the job failed.
            return "No known failure was found in the files; the shown line may belong to one"
        hang = next((text for text in verdict.missing if text.startswith(HANG)), None)
        what = f"hung: {one_line(hang.removeprefix(HANG), width=100)}" if hang else "failed"
        return f"The job {what}; no recorded evidence explains it"
    if slug == "cancelled" and verdict.state in {"suspended", "restarting"}:
        if verdict.state == "suspended" and verdict.decisive is not None and verdict.decisive.where == NOT_BEGUN:
            return f"The job is {one_line(verdict.decisive.line, width=200)}"
        change = "a suspension" if verdict.state == "suspended" else "another size"
        return f"The attempt was stopped for {change}"
    known = _advice_of(verdict)
    happened = known.happened if known is not None else f"failed: {verdict.cause.title}"
    if slug == "user_exit":
        happened = _exited(verdict) or happened
    if slug == "user_code_exception" and (name := _exception(verdict.decisive)):
        happened = f"raised {name}"
    if slug == "import_error" and (name := _exception(verdict.decisive)) in _OF_SYNTAX:
        file, _, line = _place_of_syntax(verdict).rpartition(":")
        happened = f"raised {name}" + (f" in {file.rpartition('/')[2]}:{line}" if file else "")
    if slug == "unknown" and seen:
        happened = f"{seen} for an unknown reason"
    if slug in _WAITED and not _complains(verdict):
        happened = _WAITED[slug]
    if slug == "killed_unknown" and verdict.cause.confidence == "suspected" and not _names_signal(verdict):
        happened = "died without a message"
    first, _, others = happened.partition(" ")
    if subject.startswith("All "):
        first, others = _PLURAL.get(first, first), _ITS.sub("their", others)
    confidence = verdict.cause.confidence
    # Where the event itself is a fact, the confidence is about its place in the order of failures.
    fact = verdict.cause.family in {"user", "data"} or slug in {"gpu_oom", "killed_unknown"}
    order = {"likely": ", probably as the first failure", "suspected": ", which may be the first failure"}
    if confidence == "likely" and not fact:
        first = f"{first} probably" if first in {"was", "were"} else f"probably {first}"
    if confidence == "suspected" and not fact:
        subject = f"Suspected: {subject[0].lower()}{subject[1:]}"
    at = f" in step {step}" if step is not None and verdict.rank is not None else ""
    return f"{subject} {first} {others}".rstrip() + at + (order.get(confidence, "") if fact else "")


def _exited(verdict: Verdict) -> str:
    """Predicate with the exit code, or with the message of ``sys.exit``; empty without both."""
    piece = verdict.decisive
    message = piece.line.partition(_EXIT)[2] if piece is not None and piece.source == "record" else ""
    if message and not message.isdigit():
        # Python prints a text and exits with 1; it may itself name another code.
        return f'exited with code 1 and the message "{one_line(message, width=120)}"'
    code = _EXIT_CODE.search(_lines(verdict))
    return f"exited with code {code[1] or code[2]}" if code else ""


def _seen(verdict: Verdict) -> str:
    """Predicate about a failure without a cause, by its decisive line; empty if that line states none."""
    line = verdict.decisive.line if verdict.decisive is not None else ""
    code = _EXIT_CODE.search(line)
    name = _exception(verdict.decisive)
    if code is not None:
        return f"exited with code {code[1] or code[2]}"
    return f"raised {name}" if name.endswith(_ENDINGS) and name not in _OF_LAUNCHERS else ""


def _complains(verdict: Verdict) -> bool:
    """True if the named rank or slot itself reports the lost peer, or none is named."""
    if verdict.rank is not None:
        return any(e.rank == verdict.rank for e in verdict.evidence)
    found = [e.slot for e in verdict.evidence if e.slug == verdict.cause.slug]
    return verdict.scope != "slot" or not found or verdict.slot in found


def _names_signal(verdict: Verdict) -> bool:
    return verdict.decisive is not None and _SIGKILL.search(verdict.decisive.line) is not None


def has_local_rank_only(verdict: Verdict) -> bool:
    """True if a line gives only the local rank of the failure, and no fact gives its place."""
    nowhere = verdict.rank is None and verdict.scope in {None, "external"} and verdict.cause.confidence != "proven"
    return nowhere and verdict.local_rank is not None


def _subject(verdict: Verdict) -> str:
    if verdict.rank is not None:
        return f"rank {verdict.rank}"
    if verdict.scope == "all":
        stopped = any(one.slug == "peer_teardown" and one.rank is not None for one in verdict.consequences)
        return "all ranks that were not stopped before" if stopped else "all ranks"
    if verdict.scope in {"slot", "node"} and verdict.slot is not None:
        return f"slot {verdict.slot}"
    if verdict.scope == "node" and verdict.node:
        return f"node {one_line(verdict.node, width=60)}"
    if has_local_rank_only(verdict):
        return f"local rank {verdict.local_rank}"
    return "the job" if verdict.scope == "external" else _UNKNOWN


def _exception(piece: Decisive | Proof | None) -> str:
    """Class name of the exception in a piece of evidence; empty if there is none."""
    if piece is None:
        return ""
    lines = piece.line.strip().split("\n")
    # Any line of a message may resemble an exception, but the type comes before the message.
    if piece.source == "record" and (name := _recorded(lines[0])):
        # A group, and a data loader, has the exception of its member or worker behind its message.
        other = name in _GROUPS or ": Caught " in lines[0]
        return next((inner for line in lines[1:] if other and (inner := _printed(line))), name)
    last = max((number for number, line in enumerate(lines) if _HEAD in line), default=-1)
    found = [name for line in lines[last + 1 :] if (name := _printed(line))]
    if not found and piece.source == "log":
        found = [match[1] for line in lines[last + 1 :] if (match := _BEHIND.search(line))]
    return next((name for name in found if name.endswith(_ENDINGS)), found[0] if found else "")


def _place_of_syntax(verdict: Verdict) -> str:
    """``FILE:LINE`` of code that Python cannot parse; empty if the decisive line names no file."""
    text = verdict.decisive.line if verdict.decisive is not None else ""
    places = [(match[1] or match[3], match[2] or match[4]) for match in _SYNTAX_AT.finditer(text)]
    # Code that is no file has a name as <string>.
    return "" if not places or places[-1][0].startswith("<") else one_line(":".join(places[-1]), width=200)


def _recorded(line: str) -> str:
    """Class name at the beginning of the text of a recorded exception."""
    name = line.partition(":")[0].rpartition(".")[2].strip()
    return name if name.isidentifier() else ""


def _printed(line: str) -> str:
    """Class name of the exception in a printed line; empty if there is none."""
    from rankfall.evidence.readers.prefixes import parse_prefix  # noqa: PLC0415 - few sentences need it

    data = line.encode("utf-8", "surrogatepass")
    behind = data[parse_prefix(data).length :].decode("utf-8", "replace")
    match = _EXCEPTION.match(line) or _EXCEPTION.match(behind)
    return match[1] if match else ""


def names_nothing(verdict: Verdict) -> bool:
    """Returns True if a failed verdict names neither a cause nor a place, so that nothing is its consequence."""
    return verdict.cause.slug == "unknown" and _of_nobody(verdict)


def others_of(verdict: Verdict) -> str:
    """Returns the noun for one rank among the consequences: it is another one only beside a named rank or place."""
    return "rank" if _of_nobody(verdict) else "other rank"


def _of_nobody(verdict: Verdict) -> bool:
    return _subject(verdict) in {"the job", _UNKNOWN}


def because_or_after(verdict: Verdict) -> str:
    """``after`` if only its time connects a consequence with the root, else ``because of``."""
    timed = any(one.because == AFTER_ROOT for one in verdict.consequences if one.rank is not None)
    return "after" if timed else "because of"


def _followed(verdict: Verdict) -> str:
    ranks = {one.rank for one in verdict.consequences if one.rank is not None}
    # Without a known failure in files, nothing followed from it.
    if not ranks or (names_nothing(verdict) and verdict.run is None):
        return "."
    slugs = {one.slug for one in verdict.consequences if one.rank is not None}
    if slugs == {"peer_teardown"}:
        did = "was stopped" if len(ranks) == 1 else "were stopped"
    else:
        did = "failed or was stopped" if len(ranks) == 1 else "failed or were stopped"
        did = did if "peer_teardown" in slugs else "failed"
    # The unknown rank may be one of those that are counted.
    because = "" if names_nothing(verdict) or _subject(verdict) == _UNKNOWN else f" {because_or_after(verdict)} it"
    return f"; {formatting.count(len(ranks), others_of(verdict))} {did}{because}."


def _reaction(decision: Decision | None) -> str:
    if decision is None or decision.action == "none" or decision.rule in _NO_FAILURE_RULES:
        return ""
    if decision.action == "stop":
        return f"Not restarted: {one_line(decision.because, width=200)}." if decision.because else "Not restarted."
    tense = {"intent": "Restarting", "done": "Restarted"}[decision.state]
    how = _ACTIONS.get(decision.action, "").partition("restart")[2]
    first = "Node quarantined. " if decision.action == "quarantine" else ""
    left = f" ({formatting.count(decision.left, 'restart')} left)" if decision.left is not None else ""
    return f"{first}{tense}{how}{left}."
