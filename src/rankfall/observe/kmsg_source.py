"""Opens what gives kernel records: ``/dev/kmsg``, or a socket that behaves as it does; and says which boot they are of.

The socket is for nodes that have no ring of their own: those of a test bed share one kernel. It is ``AF_UNIX`` with ``SOCK_SEQPACKET``; the first
message is the boot id, every further one a record in the device's form. From the open call on nothing knows which of the two it is.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, NamedTuple

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
