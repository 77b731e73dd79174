"""A kernel that talks much: a socket that gives harmless records at a rate, and an Xid now and then; prints when it gave which.

``python -m bench.health.noise PATH RATE EVERY_S SECONDS [BOOT]``. With EVERY_S 0 an Xid is given for each line ``xid`` on stdin, and a line ``end`` ends it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator

_TICK_S = 0.01
#: What kernels of nodes with many pods say all the time.
HARMLESS = (
    "cni0: port {n}(veth9a15e765) entered forwarding state",
    "eth0: renamed from veth{n}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "audit: type=1400 audit(1700000000.{n}:88): apparmor=ALLOWED operation=open profile=containerd name=/proc/{n}/stat",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing {n}",
)


def harmless(number: int) -> str:
    """One of these lines; the next number gives another one."""
    return HARMLESS[number % len(HARMLESS)].format(n=number % 997)


def device(number: int, *, salt: int = 0) -> str:
    """A PCI address of its own for each Xid, so that each is news; ``salt`` tells those of one run from what an earlier one left."""
    return f"{(number >> 8) + salt & 0xFFFF:04x}:{number & 0xFF:02x}:00"


def xid(bus: str) -> str:
    """The driver's line of a GPU that is gone."""
    return f"NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Orders:
    """What is asked for on stdin, a word a line. Nothing is waited for."""

    def __init__(self) -> None:
        os.set_blocking(0, False)
        self._rest = b""
        self.ended = False

    def take(self) -> int:
        """How many Xids were asked for since the last call."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(0, 4_096)
            self.ended = self.ended or not data
            *words, self._rest = (self._rest + data).split(b"\n")
            self.ended = self.ended or b"end" in words
            return words.count(b"xid")
        return 0


def talk(give: Callable[[str], None], *, rate: int, every: float, seconds: float, salt: int = 0) -> tuple[int, float]:
    """Give lines until the time is over or nobody wants more; how many, and the seconds that it took.

    Args:
        give: takes one line.
        rate: harmless lines a second.
        every: seconds between two Xids; 0 = as ordered on stdin.
        seconds: the longest that it lasts.
        salt: of the Xids' devices.
    """
    orders = None if every else Orders()
    begin = time.monotonic()
    number = faults = 0
    while (now := time.monotonic() - begin) < seconds and not (orders and orders.ended):
        # What a busy machine kept from being given in time is given later, but no reader waits for it for ever.
        for _ in range(min(rate, int(now * rate) - number + faults)):
            give(harmless(number))
            number += 1
        due = orders.take() if orders else int(faults * every < now - 1)
        for _ in range(due):
            bus = device(faults, salt=salt)
            at = time.time()
            give(xid(bus))
            sys.stdout.write(f"{bus} {at}\n")
            sys.stdout.flush()
            number += 1
            faults += 1
        time.sleep(_TICK_S)
    return number, time.monotonic() - begin


@contextlib.contextmanager
def reader_of(path: str, *, boot: str) -> Iterator[socket.socket]:
    """The first that connects, once it was told the boot id."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(1)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        reader, _ = listening.accept()
        with reader:
            # As the ring of a kernel, which holds some thousand records for a reader that has no turn.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            reader.send(boot.encode())
            yield reader


def main() -> None:
    """Serve one reader."""
    path, rate, every, seconds, *rest = sys.argv[1:]
    with reader_of(path, boot=rest[0] if rest else str(uuid.uuid4())) as reader:
        begin = time.monotonic()
        number = 0

        def give(text: str) -> None:
            nonlocal number
            stamp = int((time.monotonic() - begin) * 1e6) + 1
            reader.send(f"6,{number},{stamp},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n".encode())
            number += 1

        given, took = talk(give, rate=int(rate), every=float(every), seconds=float(seconds))
        sys.stdout.write(f"end {given} {took}\n")
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            reader.recv(1)  # until the other side goes


if __name__ == "__main__":
    main()
