"""Renders a verdict for a terminal: summary, proof, consequences, next commands.

Five lines answer; then comes the evidence, the decisive piece first and whole, the others in one line each.
Everything is escaped.
"""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Final

from rankfall.model import Confidence, Consequence, Decision, Proof, Verdict
from rankfall.render import formatting
from rankfall.render.escape import clean, one_line, shorten
from rankfall.render.formatting import Paint
from rankfall.rundir.incomplete import PREFIX

_MAX_EVIDENCE: Final = 6
_MAX_PROOF_LINES: Final = 8
_MAX_PROOF_LINE: Final = 1000


def decisive_lines(verdict: Verdict, frames: Sequence[str], *, width: int, paint: Paint) -> list[str]:
    """The decisive piece alone, with the innermost frame."""
    lines = []
    for proof in _in_order(verdict)[:1]:
        lines += _proof(proof, whole=False, width=width, paint=paint)
        if _is_decisive(proof, verdict):
            lines += [f"        at {one_line(frame, width=300)}" for frame in frames[:1]]
    return lines


def evidence_block(verdict: Verdict, frames: Sequence[str], *, width: int, paint: Paint) -> str:
    """All that is shown of the evidence under its heading; empty when there is none. ``frames`` as for ``render_verdict``."""
    if not verdict.evidence and verdict.decisive is None:
        return ""
    date = formatting.day(verdict.time.at)
    lines = [paint.bold("Evidence") + (paint.dim(f"  {date}, times in UTC") if date else "")]
    proofs = _in_order(verdict)
    for number, proof in enumerate(proofs[:_MAX_EVIDENCE]):
        lines += _proof(proof, whole=number == 0, width=width, paint=paint)
        if number == 0 and _is_decisive(proof, verdict):
            lines += [f"        at {one_line(frame, width=300)}" for frame in frames]
    if not proofs and verdict.decisive is not None:
        lines.append(f"  {verdict.decisive.source}  {paint.dim(one_line(verdict.decisive.where, width=300))}")
        lines += _line_of(verdict.decisive.line, whole=True, width=width)
    if len(proofs) > _MAX_EVIDENCE:
        lines.append(paint.dim(f"  and {len(proofs) - _MAX_EVIDENCE} more, all of them in -o json"))
    return "\n".join(lines)


def _is_decisive(proof: Proof, verdict: Verdict) -> bool:
    return verdict.decisive is not None and proof.where == verdict.decisive.where


def _in_order(verdict: Verdict) -> list[Proof]:
    """The decisive piece first, then as the verdict orders them; what only repeats a line is left out."""
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


def _proof(proof: Proof, *, whole: bool, width: int, paint: Paint) -> list[str]:
    time = formatting.clock(proof.at) or "time unknown"
    about = formatting.plus_minus(proof.uncertainty_s)
    who = f"rank {proof.rank}" if proof.rank is not None else f"slot {proof.slot}" if proof.slot is not None else ""
    head = "  ".join(text for text in (f"{time}{about}", proof.source, who) if text)
    where = one_line(proof.where, width=300)
    return [f"  {head}  {paint.dim(where)}", *_line_of(proof.line, whole=whole, width=width)]


def _line_of(text: str, *, whole: bool, width: int) -> list[str]:
    lines = [line.rstrip() for line in clean(text, max_line=_MAX_PROOF_LINE).split("\n") if line.strip()]
    room = width - 6
    if not whole:
        return [f"      {shorten(line, room)}" for line in lines[-1:]]
    if len(lines) > _MAX_PROOF_LINES:
        cut = len(lines) - _MAX_PROOF_LINES
        lines = [lines[0], f"… {formatting.count(cut, 'line')} left out", *lines[-(_MAX_PROOF_LINES - 1) :]]
    wrapped = [shorten(line, room) for line in lines[:-1]]
    # What the error says stands in the last line, so that one is not cut.
    wrapped += textwrap.wrap(lines[-1], room, subsequent_indent="  ", replace_whitespace=False) if lines else []
    return [f"      {line}" for line in wrapped]


_LABEL: Final = 8
_MAX_OTHERS: Final = 4
_MAX_MISSING: Final = 6
_MIN_WIDTH: Final = 40

_SURE: Final[dict[Confidence, str]] = {
    "proven": "proven",
    "likely": "likely",
    "suspected": "only suspected",
    "unknown": "not known",
}
_ACTIONS: Final = {
    "none": "nothing",
    "retry": "started again",
    "retry_elsewhere": "started again on another node",
    "resize": "started again with another size",
    "quarantine": "node taken out, started again",
    "stop": "stopped",
}


@cache
def advice() -> dict[str, str]:
    """What a person can do about a cause, by slug; one sentence each, from ``advice.csv``."""
    text = resources.files(__package__).joinpath("advice.csv").read_text("utf-8")
    return {row["slug"]: row["advice"] for row in csv.DictReader(text.splitlines())}


def render_verdict(
    verdict: Verdict,
    *,
    source: str | None = None,
    frames: Sequence[str] = (),
    apart: bool = True,
    width: int = 100,
    color: bool = False,
) -> str:
    """The whole answer as text, without a newline at its end.

    Args:
        verdict: what is shown.
        source: what was read, when there is no run (offline).
        frames: where the deciding exception was raised, innermost first, as ``FILE:LINE in FUNCTION``.
        apart: the lines of its rank are stored apart from the others of its slot.
        width: columns of the terminal.
        color: SGR attributes.
    """
    paint = Paint(color=color)
    width = max(_MIN_WIDTH, width)
    blocks = [_five_lines(verdict, source=source, width=width, paint=paint)]
    lost = [text for text in verdict.missing if text.startswith(PREFIX)]
    blocks += [_wrapped(paint.warn(one_line(text, width=600)), first="", width=width, indent=0) for text in lost]
    gaps = () if _nothing_wrong(verdict) else [text for text in verdict.missing if text not in lost]
    missing = _listed("Not known", gaps, limit=_MAX_MISSING, width=width, paint=paint)
    if verdict.cause.confidence == "unknown" and missing:
        blocks.append(missing)
        missing = ""
    blocks += [
        evidence_block(verdict, frames, width=width, paint=paint),
        _consequences(verdict.consequences, width=width),
        _independent(verdict, width=width, paint=paint),
        _alternatives(verdict, width=width, paint=paint),
        missing,
        _next(verdict, apart=apart, width=width, paint=paint),
    ]
    return "\n\n".join(block for block in blocks if block)


def render_brief(verdict: Verdict, *, frames: Sequence[str] = (), width: int = 100, color: bool = False) -> str:
    """The five lines and the decisive piece only: for an attempt that is followed by another one."""
    paint = Paint(color=color)
    width = max(_MIN_WIDTH, width)
    lines = [
        _five_lines(verdict, source=None, width=width, paint=paint),
        *decisive_lines(verdict, frames, width=width, paint=paint),
    ]
    return "\n".join(lines)


def headline(verdict: Verdict) -> str:
    """The answer in one line, as ``rank 2 on node1: Python exception in training code (user_code_exception, proven)``."""
    place = f" on {one_line(verdict.node, width=60)}" if verdict.node else ""
    return f"{_who(verdict)}{place}: {_cause(verdict)}"


def next_commands(verdict: Verdict, *, apart: bool = True) -> tuple[str, ...]:
    """What the user may want to type after this verdict; ``apart`` as for ``render_verdict``."""
    if verdict.run is None:
        return ()  # the user knows better than we do what was piped in
    if verdict.attempt is None:
        # Nothing was begun, so there are no lines.
        return (f"rankfall status {verdict.run}", f"rankfall why {verdict.run} -o json")
    attempt = f" --attempt {verdict.attempt}"
    if _nothing_wrong(verdict):
        follow = " -f" if verdict.state == "running" else ""
        return (f"rankfall logs {verdict.run}{follow} --tail 50", f"rankfall status {verdict.run}")
    which = f" --rank {verdict.rank}" if verdict.rank is not None else " --rank failed"
    if not apart and verdict.slot is not None:
        which = f" --slot {verdict.slot}"
    commands = [f"rankfall logs {verdict.run}{attempt}{which} --tail 50"]
    if verdict.cause.confidence == "unknown" or verdict.scope in {"all", "external"}:
        commands = [f"rankfall logs {verdict.run}{attempt} --tail 200"]
    if verdict.state == "running":
        commands.append(f"rankfall attach {verdict.run}")
    commands.append(f"rankfall why {verdict.run}{attempt} -o json")
    return tuple(commands)


def done_text(decision: Decision | None) -> str:
    """What was done about it, in words."""
    if decision is None:
        return "nothing yet"
    text = _ACTIONS.get(decision.action, decision.action)
    if decision.state == "intent" and decision.action not in {"none", "stop"}:
        text = f"to be {text}"
    if decision.because:
        text = f"{text}: {one_line(decision.because, width=400)}"
    if decision.budget and decision.left is not None and decision.action != "stop":
        text += f" ({formatting.count(decision.left, 'restart')} left of budget {decision.budget})"
    return text


def _five_lines(verdict: Verdict, *, source: str | None, width: int, paint: Paint) -> str:
    done = done_text(verdict.decision) if verdict.run else "nothing: these are files, no run of Rankfall"
    if _nothing_wrong(verdict) and verdict.decision is None:
        done = "nothing to do"
    return "\n".join(
        _field(label, text, style=style, width=width, paint=paint)
        for label, text, style in (
            ("run", _run(verdict, source), paint.bold),
            ("rank", _rank(verdict), None),
            ("pod" if verdict.pod else "node", _node(verdict), None),
            ("cause", _cause(verdict), _cause_style(verdict, paint)),
            ("done", done, None),
        )
    )


def _field(label: str, text: str, *, style: Callable[[str], str] | None, width: int, paint: Paint) -> str:
    first, *more = _wrapped(text, first="", width=width - _LABEL, indent=0).split("\n")
    lines = [style(line) if style else line for line in (first, *more)]
    # Painted after wrapping: attributes have no width and must not reach over a line's end.
    return ("\n" + " " * _LABEL).join([paint.dim(label) + " " * (_LABEL - len(label)) + lines[0], *lines[1:]])


def _wrapped(text: str, *, first: str, width: int, indent: int = _LABEL) -> str:
    """``text`` wrapped behind ``first``, whose visible width is ``indent``."""
    lines = textwrap.wrap(
        text, max(_MIN_WIDTH - indent, width - indent), break_long_words=False, break_on_hyphens=False
    ) or [""]
    return ("\n" + " " * indent).join([first + lines[0], *lines[1:]])


def _run(verdict: Verdict, source: str | None) -> str:
    if verdict.run is None:
        return f"none, read from {one_line(source or 'files', width=200)}"
    attempt = f", attempt {verdict.attempt}" if verdict.attempt is not None else ""
    return f"{verdict.run}{attempt}, {verdict.state}"


def _who(verdict: Verdict) -> str:
    if verdict.rank is not None:
        return f"rank {verdict.rank}"
    if verdict.scope == "all":
        return "all ranks"
    if verdict.scope in {"slot", "node"} and verdict.slot is not None:
        return f"slot {verdict.slot}"
    if verdict.scope == "external":
        return "from outside"
    return "rank not known"


def _rank(verdict: Verdict) -> str:
    if _nothing_wrong(verdict):
        return "none"
    if verdict.cause.slug == "unknown" and verdict.rank is None:
        return "not known"
    if verdict.rank is None:
        return {
            "all": "all, the same fault on each",
            "slot": f"none in particular, the whole of slot {verdict.slot}",
            "node": "none in particular, the whole node",
            "external": "none, it came from outside the job",
        }.get(verdict.scope or "", "not known")
    inside = [f"local rank {verdict.local_rank}"] if verdict.local_rank is not None else []
    inside += [f"slot {verdict.slot}"] if verdict.slot is not None else []
    inside += [f"GPU {one_line(verdict.gpu, width=60)}"] if verdict.gpu else []
    return f"{verdict.rank} ({', '.join(inside)})" if inside else str(verdict.rank)


def _node(verdict: Verdict) -> str:
    if _nothing_wrong(verdict):
        return "none"
    place = " on ".join(one_line(text, width=253) for text in (verdict.pod, verdict.node) if text)
    return place or ("none in particular" if verdict.scope in {"all", "external"} else "not known")


def _cause(verdict: Verdict) -> str:
    cause = verdict.cause
    if _nothing_wrong(verdict):
        return "none, it succeeded" if verdict.state == "succeeded" else "none so far"
    if cause.slug == "unknown":
        return "unknown, the evidence does not hold it"
    return f"{cause.title} ({cause.slug}, {_SURE[cause.confidence]})"


def _nothing_wrong(verdict: Verdict) -> bool:
    return verdict.state in {"succeeded", "running"} and verdict.cause.slug == "unknown"


def _cause_style(verdict: Verdict, paint: Paint) -> Callable[[str], str] | None:
    if _nothing_wrong(verdict) or verdict.state == "cancelled":
        return None
    return paint.warn if verdict.cause.confidence in {"suspected", "unknown"} else paint.bad


def _consequences(consequences: Sequence[Consequence], *, width: int) -> str:
    if not consequences:
        return ""
    named = [c for c in consequences if c.rank is not None]
    numbers = {c.rank for c in named if c.rank is not None}
    nameless = len(consequences) - len(named)
    total = len(numbers) or nameless
    noun = "other rank" if numbers or nameless == 1 else "message"
    kinds = sorted({c.slug for c in consequences})
    head = f"{formatting.count(total, noun)} fell as a consequence" if numbers else "Other ranks fell as a consequence"
    which = f": {formatting.ranks(numbers)}" if numbers else ""
    return _wrapped(f"{head}{which} ({', '.join(kinds)})", first="", width=width, indent=0)


def _independent(verdict: Verdict, *, width: int, paint: Paint) -> str:
    lines = []
    for fault in verdict.independent or ():
        who = f"rank {fault.rank}" if fault.rank is not None else f"slot {fault.slot}"
        place = f"{who} on {one_line(fault.node, width=253)}" if fault.node else who
        said = one_line(fault.line, width=200)
        lines.append(f"{fault.slug}, {place}: {said} ({one_line(fault.because, width=200)})")
    return _listed("Failed as well, for a reason of its own", lines, limit=_MAX_OTHERS, width=width, paint=paint)


def _alternatives(verdict: Verdict, *, width: int, paint: Paint) -> str:
    named = {(fault.slug, fault.rank) for fault in verdict.independent or ()}
    lines = []
    for other in verdict.alternatives:
        if (other.slug, other.rank) in named:
            continue
        who = f"rank {other.rank}, " if other.rank is not None else ""
        lines.append(f"{who}{other.slug}: {one_line(other.rejected, width=300)}")
    return _listed("Looked at, and not chosen", lines, limit=_MAX_OTHERS, width=width, paint=paint)


def _listed(title: str, lines: Sequence[str], *, limit: int, width: int, paint: Paint) -> str:
    if not lines:
        return ""
    wrapped = [_wrapped(one_line(line, width=600), first="  ", width=width, indent=2) for line in lines[:limit]]
    if len(lines) > limit:
        wrapped.append(paint.dim(f"  and {len(lines) - limit} more, all of them in -o json"))
    return "\n".join([paint.bold(title), *wrapped])


def _next(verdict: Verdict, *, apart: bool, width: int, paint: Paint) -> str:
    text = advice().get(verdict.cause.slug, "")
    lines = [_wrapped(text, first="  ", width=width, indent=2)] if text and not _nothing_wrong(verdict) else []
    lines += [f"  {paint.bold('$')} {command}" for command in next_commands(verdict, apart=apart)]
    return "\n".join([paint.bold("Next"), *lines]) if lines else ""
