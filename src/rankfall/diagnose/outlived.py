"""Text that its speaker outlived, and how it weighs against an exception that nobody caught.

A program that goes on prints errors too: a retry, a fallback, a quotation. What a reader of the text saw to be followed by further work is
context already. Here the rest is weighed: against the facts of the rank, and against the exception that ended it.
"""

from __future__ import annotations

from typing import Final

from rankfall.diagnose.rules import ECHO_TYPES, SAME_FAULT, TRUSTED, YIELDS_TO
from rankfall.diagnose.subjects import Subject
from rankfall.model import Evidence, cause_info

OWN_CODE: Final = "user_code_exception"
_NS: Final = 1_000_000_000
# How much of an exception's message a line must hold to repeat it, and how long that must be to say something, characters.
_MESSAGE: Final = 200
_LEAST_MESSAGE: Final = 12


def without_outlived(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Without text before the exception that nobody caught, unless it tells the same fault; and without that of a rank that ended well."""
    facts = subject.rank
    if facts is not None and facts.state == "ended" and facts.exit_code == 0:
        pieces = [e for e in pieces if e.source != "log"]
    finals = [e for e in pieces if e.source == "record" and e.slug != "user_exit"]
    whole = [e for e in pieces if e.source == "log" and e.whole]
    if not finals and whole:
        finals = [max(whole, key=lambda e: (e.at or 0, e.stream or "", e.order or 0, e.id))]
    if not finals:
        return pieces
    kept = [e for e in pieces if _stands_beside(e, finals)]
    return kept or pieces


def _stands_beside(piece: Evidence, finals: list[Evidence]) -> bool:
    if piece.source != "log" or piece.trust in TRUSTED or any(piece is one for one in finals):
        return True
    if piece.whole and not any(one.source != "log" and surely_after(one, piece) for one in finals):
        # The recorded exception as its process printed it, or the inner one that it brought along.
        return True
    return any(_same_fault(piece, one) for one in finals) or all(surely_after(piece, one) for one in finals)


def _same_fault(piece: Evidence, final: Evidence) -> bool:
    """Whether a line may be a detail that a library printed before the exception: of the same cause, or of one that is more exact."""
    if piece.slug == final.slug or piece.slug in YIELDS_TO.get(final.slug, frozenset()) or repeats(piece, final):
        return True
    family = cause_info(piece.slug).family
    return final.slug != OWN_CODE and family in SAME_FAULT and family == cause_info(final.slug).family


def repeats(piece: Evidence, final: Evidence) -> bool:
    """Whether a line holds the exception's own message, as a program prints it that reports the exception itself."""
    message = final.line.partition("\n")[0].partition(": ")[2].strip()[:_MESSAGE]
    return len(message) >= _LEAST_MESSAGE and message in piece.line


def surely_after(piece: Evidence, other: Evidence) -> bool:
    """Whether a piece was written after the other: by its place in the same stream, else by the clock of the same slot."""
    if (
        piece.stream is not None
        and piece.stream == other.stream
        and piece.order is not None
        and other.order is not None
    ):
        return piece.order > other.order
    if piece.at is None or other.at is None or piece.slot != other.slot:
        return False
    return piece.at - other.at > round(((piece.uncertainty or 0.0) + (other.uncertainty or 0.0)) * _NS)


def of_own_code(piece: Evidence | None) -> bool:
    """Whether it is an exception that nobody caught, of the job's own code, and of a type that no lost partner raises."""
    if piece is None or piece.slug != OWN_CODE or not (piece.whole or piece.source == "record"):
        return False
    kind = piece.line.partition(":")[0].strip().rpartition("]: ")[2]
    return not kind.startswith(ECHO_TYPES)
