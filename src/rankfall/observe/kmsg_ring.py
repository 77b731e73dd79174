"""Reads the ring of ``/dev/kmsg`` with an exact cursor: every record once, and a counted gap where the ring moved on.

The device remembers no reader: an open begins at the oldest record. What was seen is therefore known by boot id and number alone, so a
reader that starts again repeats nothing and says what it missed. It never waits; its owner asks again when the descriptor is readable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from rankfall.observe.kmsg import MAX_RECORD, KmsgRecord, parse_record

# A ring that is written faster than it is read only tells of overruns; after so many of them the owner has its turn again.
_MAX_OVERRUNS: Final = 1_000


class Cursor(msgspec.Struct, frozen=True):
    """The last record that was taken: boot id and number. The same number of another boot is another record."""

    boot: str
    seq: Annotated[int, msgspec.Meta(ge=0)]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were overwritten before they were read: ``first`` to ``last``, both among them."""

    boot: str
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many records are lost."""
        return self.last - self.first + 1


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are no record, as they came."""

    data: bytes


Entry = KmsgRecord | Gap | Unreadable


class Ring:
    """One open ring.

    Args:
        fd: the device, or what gives a record a read as it does (a ``SOCK_SEQPACKET`` socket), opened without blocking.
        boot: id of the boot whose ring it is.
        after: what was taken before; None = begin with the oldest record, and what is older than that is no loss.
        read: ``os.read``; a test gives errors of the kernel.

    Attributes:
        cursor: the last record that was taken; it moves with each one that ``take`` gives.
        lost: records of all gaps.
        repeated: records that were there already and were left out.
        overruns: how often the kernel said that the ring moved on under the reader.
        ended: what is read is at its end; the device has none.
    """

    def __init__(
        self, fd: int, *, boot: str, after: Cursor | None = None, read: Callable[[int, int], bytes] = os.read
    ) -> None:
        self._fd = fd
        self._boot = boot
        self._read = read
        # After another boot the ring begins with 0, and what is not there any more is lost.
        self._next = None if after is None else after.seq + 1 if after.boot == boot else 0
        self.cursor = after
        self.lost = 0
        self.repeated = 0
        self.overruns = 0
        self.ended = False

    def take(self, limit: int = 1_000) -> list[Entry]:
        """The next entries, at most about ``limit`` (a gap comes with the record behind it); empty when there are none now.

        Raises:
            OSError: the device cannot be read any more; its owner opens it again with ``cursor``.
        """
        found: list[Entry] = []
        until = self.overruns + _MAX_OVERRUNS
        while len(found) < limit and self.overruns < until and not self.ended:
            try:
                data = self._read(self._fd, MAX_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # EPIPE: the next read goes on with the oldest record, whose number tells the gap
                self.overruns += 1
                continue
            if data:
                self._add(data, found)
            else:
                self.ended = True
        return found

    def _add(self, data: bytes, found: list[Entry]) -> None:
        record = parse_record(data)
        if record is None:
            found.append(Unreadable(data=data))
            return
        if self._next is not None and record.seq < self._next:
            self.repeated += 1
            return
        if self._next is not None and record.seq > self._next:
            gap = Gap(boot=self._boot, first=self._next, last=record.seq - 1)
            self.lost += gap.size
            found.append(gap)
        found.append(record)
        self._next = record.seq + 1
        self.cursor = Cursor(self._boot, record.seq)
