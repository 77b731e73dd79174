"""Where in the user's code the deciding exception was raised: from the record that the verdict points at."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from rankfall.model import Record, Verdict, decoding
from rankfall.store import RunDir

_NAME: Final = re.compile(r"records/([A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json)")
_MAX_RECORD: Final = 1 << 20
_SHOWN: Final = 3


def raised_at(directory: RunDir, verdict: Verdict) -> tuple[str, ...]:
    """``FILE:LINE in FUNCTION`` of the innermost frames of the user's own code, innermost first; empty when nobody knows."""
    match = _NAME.fullmatch(verdict.decisive.where) if verdict.decisive else None
    if match is None:
        return ()
    try:
        with (directory.records_dir / match[1]).open("rb") as file:
            record = decoding.decode(file.read(_MAX_RECORD), kind=Record)
    except (OSError, msgspec.MsgspecError):
        return ()
    frames = record.error.frames if record.error else ()
    own = [frame for frame in frames if frame.user] or list(frames)
    return tuple(f"{frame.file}:{frame.line} in {frame.func or '?'}" for frame in reversed(own[-_SHOWN:]))
