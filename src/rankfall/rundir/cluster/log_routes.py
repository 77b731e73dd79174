"""Which stream a line of a container's log belongs to, and where its own bytes begin.

The wrapper puts ``[rank N] `` in front of the lines of ranks, and ``[rank ?] `` in front of what only looks like that or like a record; a record is
a line of its own. Where no wrapper of ours is in the container all of that is the job's own text, and only torchrun's prefixes are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded

SLOT_STREAM: Final = "slot.out"
RECORD_MARK: Final = b"\x1erankfall/1 "
_RECORD_SIGN: Final = RECORD_MARK[:1]
_RANK: Final = b"[rank "
_STRANGE: Final = b"[rank ?] "
_MAX_RANK_DIGITS: Final = 7
# What torchrun puts before the lines of its ranks when it is to (``--tee``): the role's name and the local rank.
_TAG: Final = anchored(rb"\[[A-Za-z_][\w.-]{0,60}\]:", limit=64)
_DIGITS: Final = anchored(rb"(?:0|[1-9]\d{0,2})", limit=8)
#: Names of roles in these prefixes, while nothing proves which ones torchrun puts: its default, and that of older tools.
USUAL_ROLES: Final = ("default", "trainer")
# One of these right behind a stamp, but for torch's own mark of a rank: what is searched for in many lines at once.
_TAG_WITHIN: Final = bounded(rb"Z \[(?!rank\d{1,9}\]:)[A-Za-z_][\w.-]{0,59}\d\]:", limit=1 << 30)


class Routes:
    """The way of each line of one log.

    Args:
        on_record: takes a record's line (without its newline) and its stamp; False when it is none of ours after all.
        foreign: no wrapper of ours is in the container.

    Attributes:
        base: added to a local rank gives the number of its stream; set by whoever knows of the launcher's rounds.
        roles: names of roles in torchrun's prefixes, where no wrapper of ours is in the container.
        locals: local ranks that there are; None = that is not known.
        tagged: whether a line came that begins as torchrun's prefixes do.
    """

    def __init__(self, on_record: Callable[[bytes, int | None], bool], *, foreign: bool) -> None:
        self.base = 0
        self.roles: tuple[str, ...] = USUAL_ROLES
        self.locals: Collection[int] | None = None
        self.tagged = False
        self._on_record = on_record
        self._foreign = foreign

    def alike(self, data: bytes) -> bool:
        """Whether no line of a foreign job among these can have a launcher's tag: all of them are of its slot, as they are."""
        if b"]:" not in data:
            return self._foreign
        return self._foreign and "rank" not in self.roles and _TAG_WITHIN.search(data) is None

    def of(self, line: bytes, start: int, stamp: int | None) -> tuple[str, int] | None:
        """Stream of a line and where its own bytes begin; None for a record, which was given away.

        Args:
            line: without its newline.
            start: where it begins behind its stamp.
            stamp: nanoseconds since the epoch; None = it has none.
        """
        if self._foreign:
            local = self._local(line, start) if line.startswith(b"[", start) else None
            return (SLOT_STREAM if local is None else f"{self.base + local}.out"), start
        if line.startswith(_RANK, start):
            begin = start + len(_RANK)
            end = line.find(b"] ", begin, begin + _MAX_RANK_DIGITS + 2)
            rank = line[begin:end] if end > 0 else b""
            if rank.isdigit():
                # foreign-text: a few ASCII digits, seen above; each line comes here
                return f"r{int(rank)}.out", end + 2
            if line.startswith(_STRANGE, start):
                return SLOT_STREAM, start + len(_STRANGE)
        elif line.startswith(RECORD_MARK, start) and self._on_record(line[start:], stamp):
            return None
        return SLOT_STREAM, start

    def _local(self, line: bytes, start: int) -> int | None:
        """The local rank in torchrun's prefix; None where the line has none of a known role and local rank."""
        if _TAG.match(line, start) is None:
            return None
        name = line[start + 1 : line.index(b"]:", start)]
        for role in self.roles:
            digits = name.removeprefix(role.encode())
            if len(digits) < len(name) and _DIGITS.fullmatch(digits):
                self.tagged = True
                local = numbers.matched(digits)
                return local if self.locals is None or local in self.locals else None
        # Of a role that nothing has named yet, or torch's own mark of a rank's traceback and messages.
        self.tagged = self.tagged or (name[-1:].isdigit() and not name.startswith(b"rank"))
        return None


def records_within(data: bytes) -> tuple[int, int]:
    """Where the first of these whole lines that may be a record begins, and where the last one ends; twice 0 where there is none."""
    first = data.find(_RECORD_SIGN)
    if first < 0:
        return 0, 0
    return data.rfind(b"\n", 0, first) + 1, data.index(b"\n", data.rindex(_RECORD_SIGN)) + 1
