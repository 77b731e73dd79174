"""A free TCP port that stays free until its real owner listens on it.

Asking the kernel for a free port and closing the socket is a race: anybody may get the port in between. Here the socket stays open,
bound and never listening, with ``SO_REUSEADDR``. Linux then lets exactly those bind the port who ask for it by number with
``SO_REUSEADDR`` too (torch's TCPStore, Python's servers), gives it to nobody who asks for any port, and lets one of them listen.
Bound to both IPv4 and IPv6 where the machine has both. Held for the whole attempt, it harms nobody: after the owner listens, others are
refused by the kernel as usual.
"""

from __future__ import annotations

import socket
from typing import Self


class Reservation:
    """One port, held from the making of the object until ``close``.

    Args:
        port: a port that an earlier supervisor had reserved; 0 = any free one.

    Raises:
        OSError: the port is taken, or no port is free.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let go of the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _bound(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OSError:
        # No IPv6 on this machine, or the port is taken: the second try tells which.
        return _bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - bound, never listening


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made
