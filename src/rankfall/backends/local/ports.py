"""Reserves a free TCP port until its real owner listens on it."""

from __future__ import annotations

import socket
from typing import Self


class Reservation:
    """One port, reserved from construction until ``close``; 0 = any free one.

    Raises:
        OSError: In use, or none is free.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Releases the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _bound(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, "::", port)
    except OSError:
        # No IPv6, or in use.
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
