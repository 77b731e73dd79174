"""The evidence of a verdict as lines: the decisive piece first and whole, the others in one line each, all of it harmless."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from rankfall.model import Proof, Verdict
from rankfall.report import words
from rankfall.report.escape import clean, one_line, shorten
from rankfall.report.paint import Paint

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
    date = words.day(verdict.time.at)
    lines = [paint.bold("Evidence") + (paint.dim(f"  {date}, times in UTC") if date else "")]
    shown = _in_order(verdict)
    for number, proof in enumerate(shown[:_MAX_EVIDENCE]):
        lines += _proof(proof, whole=number == 0, width=width, paint=paint)
        if number == 0 and _is_decisive(proof, verdict):
            lines += [f"        at {one_line(frame, width=300)}" for frame in frames]
    if not shown and verdict.decisive is not None:
        lines.append(f"  {verdict.decisive.source}  {paint.dim(one_line(verdict.decisive.where, width=300))}")
        lines += _line_of(verdict.decisive.line, whole=True, width=width)
    if len(shown) > _MAX_EVIDENCE:
        lines.append(paint.dim(f"  and {len(shown) - _MAX_EVIDENCE} more, all of them in -o json"))
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
    time = words.clock(proof.at) or "time unknown"
    about = words.plus_minus(proof.uncertainty_s)
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
        lines = [lines[0], f"… {words.count(cut, 'line')} left out", *lines[-(_MAX_PROOF_LINES - 1) :]]
    shown = [shorten(line, room) for line in lines[:-1]]
    # What the error says stands in the last line, so that one is not cut.
    shown += textwrap.wrap(lines[-1], room, subsequent_indent="  ", replace_whitespace=False) if lines else []
    return [f"      {line}" for line in shown]
