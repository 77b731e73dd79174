"""Maps each line of a container's log to its stream and text offset.

The wrapper writes ``[rank N] `` before ranks' lines, and ``[rank ?] `` before similar output. Without the wrapper only
torchrun's prefixes count.
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
# torchrun's ``--tee`` prefix: role and local rank.
_TAG: Final = anchored(rb"\[[A-Za-z_][\w.-]{0,60}\]:", limit=64)
_DIGITS: Final = anchored(rb"(?:0|[1-9]\d{0,2})", limit=8)
#: torchrun's default roles, now and earlier.
USUAL_ROLES: Final = ("default", "trainer")
# Directly after a timestamp, but no torch rank prefix; searched in many lines in one call.
_TAG_WITHIN: Final = bounded(rb"Z \[(?!rank\d{1,9}\]:)[A-Za-z_][\w.-]{0,59}\d\]:", limit=1 << 30)


class Routes:
    """Maps the lines of one log to streams.

    ``on_record`` returns False for a line that is not Rankfall's. ``foreign``: no wrapper.

    Attributes:
        base: Added to a local rank for its stream number.
        roles: Role names in torchrun's prefixes.
        locals: Existing local ranks, or None.
        tagged: A torchrun-like prefix was found.
    """

    def __init__(self, on_record: Callable[[bytes, int | None], bool], *, foreign: bool) -> None:
        self.base = 0
        self.roles: tuple[str, ...] = USUAL_ROLES
        self.locals: Collection[int] | None = None
        self.tagged = False
        self._on_record = on_record
        self._foreign = foreign

    def alike(self, data: bytes) -> bool:
        """True if no line has a rank prefix, so all are the slot's; always False with Rankfall's wrapper."""
        if b"]:" not in data:
            return self._foreign
        return self._foreign and "rank" not in self.roles and _TAG_WITHIN.search(data) is None

    def of(self, line: bytes, start: int, stamp: int | None) -> tuple[str, int] | None:
        """Line's stream and text offset; None for a record, which goes to ``on_record``.

        ``start`` follows its timestamp; ``stamp`` in nanoseconds since the epoch.
        """
        if self._foreign:
            local = self._local(line, start) if line.startswith(b"[", start) else None
            return (SLOT_STREAM if local is None else f"{self.base + local}.out"), start
        if line.startswith(_RANK, start):
            begin = start + len(_RANK)
            end = line.find(b"] ", begin, begin + _MAX_RANK_DIGITS + 2)
            rank = line[begin:end] if end > 0 else b""
            if rank.isdigit():
                # foreign-text: a few ASCII digits, checked above; runs for each line
                return f"r{int(rank)}.out", end + 2
            if line.startswith(_STRANGE, start):
                return SLOT_STREAM, start + len(_STRANGE)
        elif line.startswith(RECORD_MARK, start) and self._on_record(line[start:], stamp):
            return None
        return SLOT_STREAM, start

    def _local(self, line: bytes, start: int) -> int | None:
        """Local rank in torchrun's prefix, or None."""
        if _TAG.match(line, start) is None:
            return None
        name = line[start + 1 : line.index(b"]:", start)]
        for role in self.roles:
            digits = name.removeprefix(role.encode())
            if len(digits) < len(name) and _DIGITS.fullmatch(digits):
                self.tagged = True
                local = numbers.matched(digits)
                return local if self.locals is None or local in self.locals else None
        # The prefix of an unnamed role, or torch's own.
        self.tagged = self.tagged or (name[-1:].isdigit() and not name.startswith(b"rank"))
        return None


def records_within(data: bytes) -> tuple[int, int]:
    """Returns start and end of possible records in whole lines; (0, 0) without one."""
    first = data.find(_RECORD_SIGN)
    if first < 0:
        return 0, 0
    return data.rfind(b"\n", 0, first) + 1, data.index(b"\n", data.rindex(_RECORD_SIGN)) + 1
