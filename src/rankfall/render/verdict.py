"""Renders a verdict for a terminal: summary, labels, evidence, consequences, unknowns, next commands.

The decisive evidence comes first and whole, all other evidence in one line each. All text is escaped and wrapped.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rankfall.model import Proof, Verdict
from rankfall.render import formatting
from rankfall.render.escape import clean, clean_line, one_line, shorten
from rankfall.render.formatting import Paint
from rankfall.render.summary import (
    action_text,
    advice_text,
    because_or_after,
    cause_text,
    has_local_rank_only,
    is_no_failure,
    names_nothing,
    others_of,
    summary,
)
from rankfall.rundir.incomplete import PREFIX

_MAX_EVIDENCE: Final = 6
_MAX_PROOF_LINES: Final = 8
_MAX_PROOF_LINE: Final = 1000
# Wider than any line of evidence.
_UNCUT: Final = 2 * _MAX_PROOF_LINE


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the run directory that a verdict does not hold.

    Attributes:
        frames: Frames of the decisive exception, innermost first, as ``FILE:LINE in FUNCTION``.
        before: Lines before the decisive one, oldest first.
        step: Last training step of the rank.
        apart: The rank has a separate stream.
        name: Name of the run in commands; None = its id.
        foreign: ``KIND/NAME`` of a job that Rankfall only observes.
        held: Message about an unfinished run without a supervisor.
    """

    frames: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    step: int | None = None
    apart: bool = True
    name: str | None = None
    foreign: str | None = None
    held: str = ""


NO_DETAILS: Final = Details()


def _decisive_lines(verdict: Verdict, details: Details, *, width: int, cut: bool, paint: Paint) -> list[str]:
    """Decisive evidence with its innermost frame."""
    lines = []
    for proof in _in_order(verdict)[:1]:
        lines += _proof(proof, whole=False, width=width, cut=cut, paint=paint)
        if _is_decisive(proof, verdict):
            lines += _frames(details.frames[:1], width=width)
    return lines


def _evidence(verdict: Verdict, details: Details, *, width: int, cut: bool, paint: Paint) -> str:
    if not verdict.evidence and verdict.decisive is None:
        return ""
    date = formatting.day(verdict.time.at)
    lines = [paint.bold("Evidence") + (paint.dim(f"  {date}, times in UTC") if date else "")]
    proofs = _in_order(verdict)
    # That the other ranks were stopped is in the block of consequences.
    others = [proof for proof in proofs if proof.slug != "peer_teardown" or _is_decisive(proof, verdict)]
    hidden = len(proofs) - len(others[:_MAX_EVIDENCE])
    proofs = others
    for number, proof in enumerate(proofs[:_MAX_EVIDENCE]):
        decisive = number == 0 and _is_decisive(proof, verdict)
        before = details.before if decisive else ()
        lines += _proof(proof, whole=number == 0, width=width, cut=cut, paint=paint, before=before)
        if decisive:
            lines += _frames(details.frames, width=width)
    if not proofs and verdict.decisive is not None:
        lines += _head(verdict.decisive.source, verdict.decisive.where, width=width, paint=paint)
        lines += _line_of(verdict.decisive.line, whole=True, room=(width if cut else _UNCUT) - 6)
    if hidden:
        lines.append(paint.dim(f"  and {hidden} more: see -o json"))
    return "\n".join(lines)


def _frames(frames: Sequence[str], *, width: int) -> list[str]:
    """Returns one line per frame, or two where path and function do not fit on one."""
    lines = []
    for frame in frames:
        text = f"        at {one_line(frame, width=300)}"
        place, middle, function = text.rpartition(" in ")
        lines += [text] if len(text) <= width or not middle else [place, f"          in {function}"]
    return lines


def _is_decisive(proof: Proof, verdict: Verdict) -> bool:
    return verdict.decisive is not None and proof.where == verdict.decisive.where


def _in_order(verdict: Verdict) -> list[Proof]:
    """Decisive evidence first, then the rest in the verdict's order, without repeated lines."""
    where = verdict.decisive.where if verdict.decisive else None
    ordered = sorted(verdict.evidence, key=lambda proof: proof.where != where)
    seen: set[tuple[str, int | None]] = set()
    kept = []
    for proof in ordered:
        key = (one_line(proof.line, width=200), proof.rank)
        if key not in seen:
            seen.add(key)
            kept.append(proof)
    return kept


def _proof(proof: Proof, *, whole: bool, width: int, cut: bool, paint: Paint, before: Sequence[str] = ()) -> list[str]:
    room = (width if cut else _UNCUT) - 6
    time = formatting.clock(proof.at) or "time unknown"
    about = formatting.plus_minus(proof.uncertainty_s)
    who = f"rank {proof.rank}" if proof.rank is not None else f"slot {proof.slot}" if proof.slot is not None else ""
    head = "  ".join(text for text in (f"{time}{about}", proof.source, who) if text)
    lines = [clean_line(line, max_line=_MAX_PROOF_LINE).rstrip() for line in before]
    context = [paint.dim(f"      {shorten(line, room)}") for line in lines]
    return [
        *_head(head, proof.where, width=width, paint=paint),
        *context,
        *_line_of(proof.line, whole=whole, room=room),
    ]


def _head(text: str, where: str, *, width: int, paint: Paint) -> list[str]:
    """Returns time, source and place of a piece of evidence; the place on a second line if it does not fit."""
    place = one_line(where, width=300)
    if len(text) + len(place) + 4 <= width:
        return [f"  {text}  {paint.dim(place)}"]
    return [f"  {text}", f"    {paint.dim(place)}"]


def _line_of(text: str, *, whole: bool, room: int) -> list[str]:
    lines = [line.rstrip() for line in clean(text, max_line=_MAX_PROOF_LINE).split("\n") if line.strip()]
    if not whole:
        return [f"      {shorten(line, room)}" for line in lines[-1:]]
    if len(lines) > _MAX_PROOF_LINES:
        cut = len(lines) - _MAX_PROOF_LINES
        lines = [lines[0], f"… {formatting.count(cut, 'line')} omitted", *lines[-(_MAX_PROOF_LINES - 1) :]]
    wrapped = [shorten(line, room) for line in lines[:-1]]
    # The last line holds the message of an exception, so it is not cut.
    wrapped += textwrap.wrap(lines[-1], room, subsequent_indent="  ", replace_whitespace=False) if lines else []
    return [f"      {line}" for line in wrapped]


_LABEL: Final = 8
_MAX_OTHERS: Final = 4
_MAX_MISSING: Final = 6
_MIN_WIDTH: Final = 40


def render_verdict(
    verdict: Verdict,
    *,
    source: str | None = None,
    details: Details = NO_DETAILS,
    width: int = 100,
    color: bool = False,
    cut: bool = True,
) -> str:
    """Returns the whole answer as text, without a newline at its end.

    ``source``: name of the input without a run. ``width``: columns. ``color``: add SGR attributes. ``cut``: fit lines
    of evidence to the columns; a file or pipe needs them whole.
    """
    paint = Paint(color=color)
    width = max(_MIN_WIDTH, width)
    blocks = [
        _summary(verdict, details, width=width, paint=paint),
        _labels(verdict, source=source, width=width, paint=paint),
        _wrapped(one_line(details.held, width=600), first="", width=width, indent=0) if details.held else "",
    ]
    lost = [text for text in verdict.missing if text.startswith(PREFIX)]
    blocks += [_wrapped(paint.warn(one_line(text, width=600)), first="", width=width, indent=0) for text in lost]
    gaps = () if is_no_failure(verdict) else [text for text in verdict.missing if text not in lost]
    missing = _listed("Unknown", gaps, limit=_MAX_MISSING, width=width, paint=paint)
    if verdict.cause.confidence == "unknown" and missing:
        blocks.append(missing)
        missing = ""
    blocks += [
        _evidence(verdict, details, width=width, cut=cut, paint=paint),
        _consequences(verdict, width=width),
        _independent(verdict, width=width, paint=paint),
        _alternatives(verdict, width=width, paint=paint),
        missing,
        _next(verdict, details, width=width, paint=paint),
    ]
    return "\n\n".join(block for block in blocks if block)


def render_brief(
    verdict: Verdict, *, details: Details = NO_DETAILS, width: int = 100, color: bool = False, cut: bool = True
) -> str:
    """Returns summary, labels and decisive evidence: for an attempt that is followed by another one."""
    paint = Paint(color=color)
    width = max(_MIN_WIDTH, width)
    lines = [
        _summary(verdict, details, width=width, paint=paint),
        "",
        _labels(verdict, source=None, width=width, paint=paint),
        *_decisive_lines(verdict, details, width=width, cut=cut, paint=paint),
    ]
    return "\n".join(lines)


def next_commands(verdict: Verdict, details: Details = NO_DETAILS) -> tuple[str, ...]:
    """Returns the commands to type next."""
    if verdict.run is None:
        return (f"sbatch --exclude={shlex.quote(verdict.exclude)} SCRIPT",) if verdict.exclude else ()
    run = details.name or verdict.run
    if verdict.attempt is None:
        # Without an attempt there are no lines.
        return (f"rankfall status {run}", f"rankfall why {run} -o json")
    attempt = f" --attempt {verdict.attempt}"
    if is_no_failure(verdict):
        follow = " -f" if verdict.state == "running" else ""
        return (f"rankfall logs {run}{follow} --tail 50", f"rankfall status {run}")
    which = f" --rank {verdict.rank}" if verdict.rank is not None else " --rank failed"
    if not details.apart and verdict.slot is not None:
        which = f" --slot {verdict.slot}"
    commands = [f"rankfall logs {run}{attempt}{which} --tail 50"]
    if verdict.cause.confidence == "unknown" or verdict.scope in {"all", "external"}:
        commands = [f"rankfall logs {run}{attempt} --tail 200"]
    if verdict.state == "running":
        commands.append(f"rankfall logs -f {details.foreign}" if details.foreign else f"rankfall attach {run}")
    commands.append(f"rankfall why {run}{attempt} -o json")
    return tuple(commands)


def _summary(verdict: Verdict, details: Details, *, width: int, paint: Paint) -> str:
    lines = _wrapped(summary(verdict, step=details.step), first="", width=width, indent=0).split("\n")
    # Painted after wrapping: attributes have no width and must not reach over the end of a line.
    return "\n".join(paint.bold(line) for line in lines)


def labels(verdict: Verdict, *, source: str | None) -> tuple[tuple[str, str], ...]:
    """Returns label and text of run, rank, place, cause and action."""
    action = action_text(verdict.decision) if verdict.run else "none: the input is files, not a run"
    if is_no_failure(verdict) and verdict.decision is None:
        action = "none"
    return (
        ("run", _run(verdict, source)),
        ("rank", _rank(verdict)),
        ("pod" if verdict.pod else "node", _node(verdict)),
        ("cause", cause_text(verdict)),
        ("action", action),
    )


def _labels(verdict: Verdict, *, source: str | None, width: int, paint: Paint) -> str:
    styles = {"cause": _cause_style(verdict, paint)}
    return "\n".join(
        _field(label, text, style=styles.get(label), width=width, paint=paint)
        for label, text in labels(verdict, source=source)
    )


def _field(label: str, text: str, *, style: Callable[[str], str] | None, width: int, paint: Paint) -> str:
    first, *more = _wrapped(text, first="", width=width - _LABEL, indent=0).split("\n")
    lines = [style(line) if style else line for line in (first, *more)]
    return ("\n" + " " * _LABEL).join([paint.dim(label) + " " * (_LABEL - len(label)) + lines[0], *lines[1:]])


def _wrapped(text: str, *, first: str, width: int, indent: int = _LABEL) -> str:
    """Returns ``text`` wrapped behind ``first``; later lines are indented by ``indent`` columns."""
    lines = textwrap.wrap(
        text, max(_MIN_WIDTH - indent, width - indent), break_long_words=False, break_on_hyphens=False
    ) or [""]
    return ("\n" + " " * indent).join([first + lines[0], *lines[1:]])


def _run(verdict: Verdict, source: str | None) -> str:
    if verdict.run is None:
        return f"none; input: {one_line(source or 'files', width=200)}"
    attempt = f", attempt {verdict.attempt}" if verdict.attempt is not None else ""
    return f"{verdict.run}{attempt}, {verdict.state}"


def _rank(verdict: Verdict) -> str:
    if is_no_failure(verdict):
        return "none"
    if verdict.rank is None:
        return _no_rank(verdict)
    inside = [f"local rank {verdict.local_rank}"] if verdict.local_rank is not None else []
    inside += [f"slot {verdict.slot}"] if verdict.slot is not None else []
    inside += [f"GPU {one_line(verdict.gpu, width=60)}"] if verdict.gpu else []
    return f"{verdict.rank} ({', '.join(inside)})" if inside else str(verdict.rank)


def _no_rank(verdict: Verdict) -> str:
    if has_local_rank_only(verdict):
        return f"unknown (local rank {verdict.local_rank})"
    if verdict.cause.slug == "unknown":
        return "unknown"
    if verdict.scope == "external":
        # Only a proven cause excludes that a rank of the job was the first.
        return "none: the cause is outside the job" if verdict.cause.confidence == "proven" else "unknown"
    if verdict.scope == "slot" and verdict.decisive is not None and verdict.decisive.source == "log":
        return f"unknown: one of slot {verdict.slot}"
    return {
        "all": "all: each has the same failure",
        "slot": f"none in particular: slot {verdict.slot} failed as a whole",
        "node": "none in particular: the node failed",
    }.get(verdict.scope or "", "unknown")


def _node(verdict: Verdict) -> str:
    if is_no_failure(verdict):
        return "none"
    place = " on ".join(one_line(text, width=253) for text in (verdict.pod, verdict.node) if text)
    if place:
        return place
    nowhere = verdict.scope == "all" or (verdict.scope == "external" and verdict.cause.confidence == "proven")
    return "none in particular" if nowhere else "unknown"


def _cause_style(verdict: Verdict, paint: Paint) -> Callable[[str], str] | None:
    if is_no_failure(verdict) or verdict.state == "cancelled":
        return None
    return paint.warn if verdict.cause.confidence in {"suspected", "unknown"} else paint.bad


def _consequences(verdict: Verdict, *, width: int) -> str:
    consequences = verdict.consequences
    if not consequences:
        return ""
    named = [c for c in consequences if c.rank is not None]
    numbers = {c.rank for c in named if c.rank is not None}
    other = others_of(verdict)
    why = "as a consequence" if because_or_after(verdict) == "because of" else "afterwards, perhaps as a consequence"
    why = "without a known cause" if names_nothing(verdict) else why
    kinds = sorted({c.slug for c in consequences})
    head = f"{formatting.count(len(numbers), other)} failed or stopped {why}"
    head = head if numbers else f"{other.capitalize()}s failed {why}"
    which = f": {formatting.ranks(numbers)}" if numbers else ""
    return _wrapped(f"{head}{which} ({', '.join(kinds)})", first="", width=width, indent=0)


def _independent(verdict: Verdict, *, width: int, paint: Paint) -> str:
    lines = []
    for fault in verdict.independent or ():
        who = f"rank {fault.rank}" if fault.rank is not None else f"slot {fault.slot}"
        place = f"{who} on {one_line(fault.node, width=253)}" if fault.node else who
        line = one_line(fault.line, width=200)
        lines.append(f"{fault.slug}, {place}: {line} ({one_line(fault.because, width=200)})")
    return _listed("Separate failures, not caused by the first one", lines, limit=_MAX_OTHERS, width=width, paint=paint)


def _alternatives(verdict: Verdict, *, width: int, paint: Paint) -> str:
    named = {(fault.slug, fault.rank) for fault in verdict.independent or ()}
    lines = []
    for other in verdict.alternatives:
        if (other.slug, other.rank) in named:
            continue
        who = f"rank {other.rank}, " if other.rank is not None else ""
        lines.append(f"{who}{other.slug}: {one_line(other.rejected, width=300)}")
    return _listed("Rejected alternatives", lines, limit=_MAX_OTHERS, width=width, paint=paint)


def _listed(title: str, lines: Sequence[str], *, limit: int, width: int, paint: Paint) -> str:
    if not lines:
        return ""
    wrapped = [_wrapped(one_line(line, width=600), first="  ", width=width, indent=2) for line in lines[:limit]]
    if len(lines) > limit:
        wrapped.append(paint.dim(f"  and {len(lines) - limit} more: see -o json"))
    return "\n".join([paint.bold(title), *wrapped])


def _next(verdict: Verdict, details: Details, *, width: int, paint: Paint) -> str:
    text = advice_text(verdict, frames=details.frames)
    lines = [_wrapped(text, first="  ", width=width, indent=2)] if text else []
    lines += [f"  {paint.bold('$')} {command}" for command in next_commands(verdict, details)]
    return "\n".join([paint.bold("Next"), *lines]) if lines else ""
