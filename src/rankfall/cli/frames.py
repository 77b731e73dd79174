"""What the run directory adds to a verdict for people: where in the user's code the deciding exception was raised, and where its rank's lines are."""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import Record, Verdict, decoding
from rankfall.model.patterns import anchored
from rankfall.observe.left_file import read_left
from rankfall.store import RunDir

_NAME: Final = anchored(r"records/([A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json)", limit=512)
_MAX_RECORD: Final = 1 << 20
_SHOWN: Final = 3


def stored_apart(directory: RunDir, verdict: Verdict) -> bool:
    """Whether the lines of the verdict's rank are stored apart from the others of its slot."""
    if verdict.slot is None:
        return True
    with directory.reader() as reader:
        rows = [row for row in reader.streams(verdict.attempt) if row.slot == verdict.slot]
    return not rows or any(row.rank is not None for row in rows)


def raised_at(directory: RunDir, verdict: Verdict) -> tuple[str, ...]:
    """``FILE:LINE in FUNCTION`` of the innermost frames of the user's own code, innermost first; empty when nobody knows."""
    match = _NAME.fullmatch(verdict.decisive.where) if verdict.decisive else None
    if match is None:
        return ()
    try:
        record = decoding.decode(read_left(directory.records_dir / match[1], limit=_MAX_RECORD)[0], kind=Record)
    except (OSError, msgspec.MsgspecError):
        return ()
    frames = record.error.frames if record.error else ()
    own = [frame for frame in frames if frame.user] or list(frames)
    return tuple(f"{frame.file}:{frame.line} in {frame.func or '?'}" for frame in reversed(own[-_SHOWN:]))
