"""A kernel that talks much: a socket that gives harmless records at a rate, and an Xid now and then; prints when it gave which.

``python -m bench.health.noise PATH RATE EVERY_S SECONDS``
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import uuid

_TICK_S = 0.01
#: What kernels of nodes with many pods say all the time.
HARMLESS = (
    "cni0: port {n}(veth9a15e765) entered forwarding state",
    "eth0: renamed from veth{n}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "audit: type=1400 audit(1700000000.{n}:88): apparmor=ALLOWED operation=open profile=containerd name=/proc/{n}/stat",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing {n}",
)


def device(number: int) -> str:
    """A PCI address of its own for each Xid, so that each is news."""
    return f"{number >> 8 & 0xFFFF:04x}:{number & 0xFF:02x}:00"


def main() -> None:
    """Serve one reader."""
    path, rate, every, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen(1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    reader, _ = listening.accept()
    # As the ring of a kernel, which holds some thousand records for a reader that has no turn.
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    reader.send(str(uuid.uuid4()).encode())
    begin = time.monotonic()
    number = faults = 0

    def give(text: str) -> None:
        nonlocal number
        stamp = int((time.monotonic() - begin) * 1e6) + 1
        reader.send(f"6,{number},{stamp},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n".encode())
        number += 1

    while (now := time.monotonic() - begin) < seconds:
        # What a busy machine kept from being given in time is given later, but no reader waits for it for ever.
        for _ in range(min(rate, int(now * rate) - number + faults)):
            give(HARMLESS[number % len(HARMLESS)].format(n=number % 997))
        if every and faults * every < now - 1:
            at = time.time()
            give(f"NVRM: Xid (PCI:{device(faults)}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
            sys.stdout.write(f"{device(faults)} {at}\n")
            faults += 1
        time.sleep(_TICK_S)
    sys.stdout.write(f"end {number} {time.monotonic() - begin}\n")
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        reader.recv(1)  # until the other side goes


if __name__ == "__main__":
    main()
