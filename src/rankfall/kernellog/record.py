"""Parses one /dev/kmsg record: facility, level, sequence number, timestamp, text.

Pure; the format is the kernel's dev-kmsg ABI. Text stays escaped as the kernel wrote it, so it is one line
and a newline in a name cannot start another. Facility 0 is the kernel; a process that writes to the device
cannot choose it. Anything else is returned as unreadable, never half read.

Cost: time linear in the bytes of a record, at most ``MAX_RECORD``; nothing is kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import numbers
from rankfall.model.patterns import anchored, bounded

#: More than any record: the kernel's own limit is 8 KiB with its dictionary (CONSOLE_EXT_LOG_MAX).
MAX_RECORD: Final = 16 << 10

_FACILITY_SHIFT: Final = 3
_LEVEL_MASK: Final = 7
# Numbers are bounded before they are read: a priority has a facility of at most a few digits, number and stamp are 64 bits.
_RECORD: Final = anchored(
    rb"([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,20})(?:,([^,;\n]{0,8})(?:,[^;\n]*)?)?;([^\n]*)", limit=1 << 14
)
_ESCAPE: Final = bounded(rb"\\x([0-9a-fA-F]{2})", limit=1 << 14)
_UINT64: Final = 1 << 64


class KmsgRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record.

    Attributes:
        facility: 0 = the kernel itself; any other one was written by a process.
        level: 0 (emergency) to 7 (debug).
        seq: number since the boot; 1 more than that of the record before.
        stamp_us: microseconds on the kernel's own clock since the boot, which does not run while the machine sleeps.
        flags: ``-`` whole, ``c`` beginning of a line in parts, ``+`` a later part; empty from kernels that give none.
        text: the line, escaped; ``unescape`` gives its bytes.
    """

    facility: int
    level: int
    seq: int
    stamp_us: int
    flags: str
    text: bytes

    @property
    def by_kernel(self) -> bool:
        """The kernel itself wrote it. False = any process with the device open did."""
        return self.facility == 0


def parse_record(data: bytes) -> KmsgRecord | None:
    """Read what one ``read`` of the device gave; None when it is no record."""
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
    r"""``\xNN`` as the byte that it stands for: the kernel escapes so what is not printable ASCII, and the backslash itself."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text) if b"\\x" in text else text
