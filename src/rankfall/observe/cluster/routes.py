"""Which stream a line of a container's log belongs to, and where its own bytes begin.

The wrapper puts ``[rank N] `` in front of the lines of ranks, and ``[rank ?] `` in front of what only looks like that or like a record; a record is
a line of its own. Where no wrapper of ours is in the container all of that is the job's own text, and only torchrun's numbers are looked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

SLOT_STREAM: Final = "slot.out"
RECORD_MARK: Final = b"\x1erankfall/1 "
_RECORD_SIGN: Final = RECORD_MARK[:1]
_RANK: Final = b"[rank "
_STRANGE: Final = b"[rank ?] "
_MAX_RANK_DIGITS: Final = 7
# What torchrun puts before the lines of its ranks when it is to (``--tee``): the role's name and the local rank.
_TAG: Final = re.compile(rb"\[(?:default|trainer)(\d{1,3})\]:")


class Routes:
    """The way of each line of one log.

    Args:
        on_record: takes a record's line (without its newline) and its stamp; False when it is none of ours after all.
        foreign: no wrapper of ours is in the container.

    Attributes:
        base: added to a local rank gives the number of its stream; set by whoever knows of the launcher's rounds.
    """

    def __init__(self, on_record: Callable[[bytes, int | None], bool], *, foreign: bool) -> None:
        self.base = 0
        self._on_record = on_record
        self._foreign = foreign

    def of(self, line: bytes, start: int, stamp: int | None) -> tuple[str, int] | None:
        """Stream of a line and where its own bytes begin; None for a record, which was given away.

        Args:
            line: without its newline.
            start: where it begins behind its stamp.
            stamp: nanoseconds since the epoch; None = it has none.
        """
        if self._foreign:
            tag = _TAG.match(line, start)
            return (f"{self.base + int(tag[1])}.out" if tag else SLOT_STREAM), start
        if line.startswith(_RANK, start):
            begin = start + len(_RANK)
            end = line.find(b"] ", begin, begin + _MAX_RANK_DIGITS + 2)
            rank = line[begin:end] if end > 0 else b""
            if rank.isdigit():
                return f"r{int(rank)}.out", end + 2
            if line.startswith(_STRANGE, start):
                return SLOT_STREAM, start + len(_STRANGE)
        elif line.startswith(RECORD_MARK, start) and self._on_record(line[start:], stamp):
            return None
        return SLOT_STREAM, start


def records_within(data: bytes) -> tuple[int, int]:
    """Where the first of these whole lines that may be a record begins, and where the last one ends; twice 0 where there is none."""
    first = data.find(_RECORD_SIGN)
    if first < 0:
        return 0, 0
    return data.rfind(b"\n", 0, first) + 1, data.index(b"\n", data.rindex(_RECORD_SIGN)) + 1
