"""Parses one /dev/kmsg record: facility, level, sequence number, timestamp, text.

Pure; the format is the kernel's dev-kmsg ABI. Text stays escaped on one line, so a newline in a name cannot start
another. Facility 0 is the kernel; no process can choose it. Invalid input is unreadable as a whole.

Cost: time linear in the bytes of a record, at most ``MAX_RECORD``; stores nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded

#: Larger than any record: the kernel's limit is 8 KiB with its dictionary (CONSOLE_EXT_LOG_MAX).
MAX_RECORD: Final = 16 << 10

_FACILITY_SHIFT: Final = 3
_LEVEL_MASK: Final = 7
# Bounds digits before conversion: few for the priority's facility, 64 bits for number and timestamp.
_RECORD: Final = anchored(
    rb"([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,20})(?:,([^,;\n]{0,8})(?:,[^;\n]*)?)?;([^\n]*)", limit=1 << 14
)
_ESCAPE: Final = bounded(rb"\\x([0-9a-fA-F]{2})", limit=1 << 14)
_UINT64: Final = 1 << 64


class KmsgRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel record.

    Attributes:
        facility: 0 = the kernel; others = a process.
        level: 0 (emergency) to 7 (debug).
        seq: Number since boot; consecutive.
        stamp_us: Microseconds since boot; stops while the machine sleeps.
        flags: ``-`` whole line, ``c`` first part, ``+`` later part; may be empty.
        text: The escaped line; see ``unescape``.
    """

    facility: int
    level: int
    seq: int
    stamp_us: int
    flags: str
    text: bytes

    @property
    def by_kernel(self) -> bool:
        """True if the kernel wrote the record, False for a process."""
        return self.facility == 0


def parse_record(data: bytes) -> KmsgRecord | None:
    """Parses the bytes of one device ``read``; None if invalid."""
    if len(data) > MAX_RECORD:
        return None
    found = _RECORD.match(data)
    if found is None:
        return None
    head, seq, stamp, flags, text = found.groups()
    number, stamp_us = numbers.matched(seq, most=20), numbers.matched(stamp, most=20)
    if number >= _UINT64 or stamp_us >= _UINT64:
        return None
    priority = numbers.matched(head)
    return KmsgRecord(
        facility=priority >> _FACILITY_SHIFT,
        level=priority & _LEVEL_MASK,
        seq=number,
        stamp_us=stamp_us,
        flags=flags.decode("ascii", "backslashreplace") if flags else "",
        text=text,
    )


def unescape(text: bytes) -> bytes:
    r"""Replaces ``\xNN`` by its byte; the kernel escapes backslashes and non-printable ASCII."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text) if b"\\x" in text else text
