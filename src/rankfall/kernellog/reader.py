"""Opens the kernel log and reads each record once; counts overwritten ones.

The source is /dev/kmsg, a plain file with its records or, on test beds, a similar SOCK_SEQPACKET socket. The cursor
is boot id and sequence number, because the device stores no position. The kernel's undisciplined clock drifts (21 s
seen), so KernelClock learns its start from records read when printed.
"""

from __future__ import annotations

import os
import socket
import stat
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
# Seconds for the server to send its boot id.
_PATIENCE_S: Final = 5.0
_BOOT: Final = anchored(r"[0-9A-Za-z-]{1,64}", limit=64)


class Opened(NamedTuple):
    """A non-blocking descriptor, closed by the caller, and the boot id of its records."""

    fd: int
    boot: str


def this_boot(path: Path = BOOT_ID) -> str:
    """Returns the boot id of the running kernel.

    Raises:
        EvidenceLost: The file is unreadable.
    """
    try:
        return _boot(path.read_text("ascii"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceLost(f"cannot read the boot id {path}: {error}", hint="mount /proc") from None


def open_device(path: Path = DEVICE, *, boot_id: Path = BOOT_ID) -> Opened:
    """Opens the kernel's own ring at its oldest record, or a plain file of records.

    Raises:
        EvidenceLost: Unreadable, with the needed rights in the hint; or it has no records.
    """
    boot = this_boot(boot_id)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EvidenceLost(
            f"cannot read the kernel log {path}: {error}",
            hint="give the process CAP_SYSLOG and the device; the manifests of rankfall controller manifests do so for the agent",
        ) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISCHR(mode) or (stat.S_ISREG(mode) and _holds_records(fd)):
        return Opened(fd, boot)
    os.close(fd)
    if stat.S_ISREG(mode):
        raise EvidenceLost(
            f"{path} is no kernel log: no line has the form of /dev/kmsg",
            hint=f"make it with: cat /dev/kmsg; text of dmesg or a journal is read by: rankfall why {path}",
        )
    raise EvidenceLost(f"the kernel log {path} is neither a device nor a file", hint=f"give {DEVICE}, or a file")


def _holds_records(fd: int) -> bool:
    """True if the first bytes hold a record, or nothing."""
    data = os.pread(fd, MAX_RECORD, 0)
    return not data or any(parse_record(line) for line in data.splitlines())


class _FileRecords:
    """Splits a plain file into records, which the device gives one per read.

    Lines that begin with a space belong to the record before them.
    """

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, fd: int, size: int) -> bytes:
        begin = 0
        while True:
            end = self._rest.find(b"\n", begin)
            if 0 <= end < len(self._rest) - 1:
                begin = end + 1
                if self._rest[begin : begin + 1] != b" ":
                    return self._cut(min(begin, size))
            elif len(self._rest) > size:
                return self._cut(size)
            elif more := os.read(fd, size):
                self._rest += more
            else:
                return self._cut(min(len(self._rest), size))

    def _cut(self, size: int) -> bytes:
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def open_socket(path: Path) -> Opened:
    """Connects to a socket that replaces the kernel's ring.

    Raises:
        EvidenceLost: No server, or it sends no boot id.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(path))
            boot = _boot(connection.recv(256).decode("ascii", "replace"), where=str(path))
        except OSError as error:
            raise EvidenceLost(
                f"cannot read records from the socket {path}: {error}",
                hint="use a socket of AF_UNIX and SOCK_SEQPACKET that sends its boot id first",
            ) from None
        connection.setblocking(False)
        return Opened(connection.detach(), boot)


def _boot(text: str, *, where: str) -> str:
    boot = text.strip()
    if not _BOOT.fullmatch(boot):
        raise EvidenceLost(
            f"{where} sent no boot id but {boot[:80]!r}", hint="send a boot id such as 060af334-3f16-446a-8c45"
        )
    return boot


# A ring written too fast yields only overruns; after this many, ``take`` returns.
_MAX_OVERRUNS: Final = 1_000


class Cursor(msgspec.Struct, frozen=True):
    """Boot id and sequence number of the last record; numbers are unique per boot."""

    boot: str
    seq: Annotated[int, msgspec.Meta(ge=0)]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Overwritten, unread records from ``first`` to ``last``, both included."""

    boot: str
    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of lost records."""
        return self.last - self.first + 1


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Unchanged bytes that are not a valid record."""

    data: bytes


Entry = KmsgRecord | Gap | Unreadable


class Ring:
    """One open ring of kernel records.

    Args:
        fd: Non-blocking descriptor of device or ``SOCK_SEQPACKET`` socket, one record per read; or of a plain file.
        boot: Boot id of the ring.
        after: Last record read earlier; None = start at the oldest, without loss.
        read: Returns one record; tests raise kernel errors.

    Attributes:
        cursor: Last record returned by ``take``.
        lost: Number of records in all gaps.
        repeated: Skipped records that were read before.
        overruns: Times the ring overtook the reader.
        ended: True at the source's end; the device has none.
    """

    def __init__(
        self, fd: int, *, boot: str, after: Cursor | None = None, read: Callable[[int, int], bytes] | None = None
    ) -> None:
        self._fd = fd
        self._boot = boot
        self._read = read or (_FileRecords() if stat.S_ISREG(os.fstat(fd).st_mode) else os.read)
        # After a reboot the ring starts at 0; missing records count as lost.
        self._next = None if after is None else after.seq + 1 if after.boot == boot else 0
        self.cursor = after
        self.lost = 0
        self.repeated = 0
        self.overruns = 0
        self.ended = False

    def take(self, limit: int = 1_000) -> list[Entry]:
        """Returns the next entries; empty if there are none now.

        The result may exceed ``limit`` by one: a gap comes with the next record.

        Raises:
            OSError: The device is unreadable; reopen it with ``cursor``.
        """
        found: list[Entry] = []
        until = self.overruns + _MAX_OVERRUNS
        while len(found) < limit and self.overruns < until and not self.ended:
            try:
                data = self._read(self._fd, MAX_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # EPIPE: the next read gets the oldest record, whose number shows the gap
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
# A bound lasts one to two epochs, because clocks drift: 500 ppm is 0.3 s per epoch.
_EPOCH_NS: Final = 600 * SECOND
_DRIFT: Final = 500e-6
_LEARNT_S: Final = 1.0


class RingStart(NamedTuple):
    """Zero of the kernel's clock in nanoseconds since the epoch, with uncertainty in seconds."""

    at: int
    uncertainty: float


class KernelClock:
    """Converts kernel timestamps to times; each live record improves the estimate.

    Args:
        real: Returns nanoseconds since the epoch.
        steady: Nanoseconds since boot, never jumping.
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
        """Learns from one record.

        Args:
            stamp_us: Timestamp of the record in microseconds.
            live: True if the reader was waiting for this record.
        """
        now = self._steady()
        if now // _EPOCH_NS != self._epoch:
            self._epoch, self._before, self._now = now // _EPOCH_NS, self._now, None
        ahead = now - stamp_us * 1_000
        self._live = self._live or live
        self._now = ahead if self._now is None else min(self._now, ahead)

    def ring_start(self) -> RingStart:
        """Current estimate."""
        steady = self._steady()
        zero = self._real() - steady
        known = [each for each in (self._before, self._now) if each is not None]
        ahead = min(known, default=0)
        if self._live and known:
            return RingStart(max(0, zero + ahead), _LEARNT_S)
        # Nothing live yet: both clocks started at boot, but the drift is unknown.
        return RingStart(max(0, zero + min(0, ahead)), _LEARNT_S + _DRIFT * steady / SECOND)
