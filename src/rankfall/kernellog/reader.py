"""Opens the kernel log and reads it with an exact cursor: each record once, overwritten records counted.

The source is /dev/kmsg or, on test beds, a SOCK_SEQPACKET socket that behaves like it. A cursor is boot id
and sequence number, because the device remembers no reader. KernelClock turns timestamps into times: the
kernel's clock is not disciplined and drifts (21 s seen), so its start is learnt from records read at the
moment they were printed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from rankfall.kernellog.record import MAX_RECORD, KmsgRecord, parse_record
from rankfall.model import EvidenceLost
from rankfall.model.patterns import anchored

DEVICE: Final = Path("/dev/kmsg")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Seconds that the other side of a socket may take to say which boot it is.
_PATIENCE_S: Final = 5.0
_BOOT: Final = anchored(r"[0-9A-Za-z-]{1,64}", limit=64)


class Opened(NamedTuple):
    """An open descriptor that never blocks, and the boot whose records it gives. Whoever opened it closes it."""

    fd: int
    boot: str


def this_boot(path: Path = BOOT_ID) -> str:
    """Boot id of the kernel that this runs on.

    Raises:
        EvidenceLost: it cannot be read.
    """
    try:
        return _boot(path.read_text("ascii"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceLost(f"cannot read the boot id {path}: {error}", hint="mount /proc") from None


def open_device(path: Path = DEVICE, *, boot_id: Path = BOOT_ID) -> Opened:
    """Open the kernel's own ring, at its oldest record.

    Raises:
        EvidenceLost: it cannot be read, with what is needed.
    """
    boot = this_boot(boot_id)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EvidenceLost(
            f"cannot read the kernel's log {path}: {error}",
            hint="it needs CAP_SYSLOG and the device itself; rankfall controller manifests gives the agent both",
        ) from None
    return Opened(fd, boot)


def open_socket(path: Path) -> Opened:
    """Connect to what gives records in the kernel's stead.

    Raises:
        EvidenceLost: nobody listens, or what is there says no boot id.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(path))
            boot = _boot(connection.recv(256).decode("ascii", "replace"), where=str(path))
        except OSError as error:
            raise EvidenceLost(
                f"cannot read records from the socket {path}: {error}",
                hint="it must be AF_UNIX, SOCK_SEQPACKET, and give its boot id first",
            ) from None
        connection.setblocking(False)
        return Opened(connection.detach(), boot)


def _boot(text: str, *, where: str) -> str:
    boot = text.strip()
    if not _BOOT.fullmatch(boot):
        raise EvidenceLost(f"{where} gives no boot id but {boot[:80]!r}", hint="it must be as 060af334-3f16-446a-8c45")
    return boot


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


SECOND: Final = 1_000_000_000
# A bound is forgotten after one to two of these, because the clocks drift: at 500 parts in a million by 0.3 s.
_EPOCH_NS: Final = 600 * SECOND
_DRIFT: Final = 500e-6
_LEARNT_S: Final = 1.0


class RingStart(NamedTuple):
    """When the kernel's clock was 0, in nanoseconds since the epoch, and seconds on each side of it."""

    at: int
    uncertainty: float


class KernelClock:
    """Turns stamps into times, better with each record that comes live.

    Args:
        real: nanoseconds since the epoch.
        steady: nanoseconds since the boot on a clock that never jumps.
    """

    def __init__(
        self,
        *,
        real: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    ) -> None:
        self._real, self._steady = real, steady
        self._epoch = 0
        self._before: int | None = None
        self._now: int | None = None
        self._live = False

    def read(self, stamp_us: int, *, live: bool) -> None:
        """Learn from a record.

        Args:
            stamp_us: of it.
            live: its reader had taken everything before it and waited for it.
        """
        now = self._steady()
        if now // _EPOCH_NS != self._epoch:
            self._epoch, self._before, self._now = now // _EPOCH_NS, self._now, None
        ahead = now - stamp_us * 1_000
        self._live = self._live or live
        self._now = ahead if self._now is None else min(self._now, ahead)

    def ring_start(self) -> RingStart:
        """As far as it is known now."""
        steady = self._steady()
        zero = self._real() - steady
        known = [each for each in (self._before, self._now) if each is not None]
        ahead = min(known, default=0)
        if self._live and known:
            return RingStart(max(0, zero + ahead), _LEARNT_S)
        # Nothing live yet: the two clocks began together, and how far they drifted since is not known.
        return RingStart(max(0, zero + min(0, ahead)), _LEARNT_S + _DRIFT * steady / SECOND)
