"""Answers the liveness probe from the loop that reads the kernel log, so that a hanging agent is restarted.

Minimal HTTP; never waits.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rankfall.model import UsageError

#: Open connections; the oldest is closed.
MOST: Final = 8
_LARGEST: Final = 4 << 10


class Probe:
    """Server of the liveness probe; port 0 for any.

    Raises:
        UsageError: The address is not available.
    """

    def __init__(self, address: tuple[str, int], *, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy
        self._epoll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        try:
            self._listening = socket.create_server(address, backlog=MOST)
        except OSError as error:
            self._epoll.close()
            raise UsageError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}",
                hint="choose another address with --probe-address",
            ) from None
        self._listening.setblocking(False)
        self._epoll.register(self._listening, select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._open):
            self._drop(number)
        self._listening.close()
        self._epoll.close()

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self._listening.getsockname()[1])  # foreign-text: the number of an own port

    def fileno(self) -> int:
        """Returns a descriptor that is readable when ``serve`` has work."""
        return self._epoll.fileno()

    def serve(self) -> None:
        """Accepts connections and answers requests. Never waits."""
        for number, _ in self._epoll.poll(0):
            if number == self._listening.fileno():
                self._accept()
            else:
                self._answer(number)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:  # closed already
            return
        connection.setblocking(False)
        if len(self._open) >= MOST:
            self._drop(next(iter(self._open)))
        self._open[connection.fileno()] = connection
        self._epoll.register(connection, select.EPOLLIN)

    def _answer(self, number: int) -> None:
        connection = self._open[number]
        with contextlib.suppress(OSError):
            if connection.recv(_LARGEST):
                status, text = ("200 OK", b"ok\n") if self._healthy() else ("503 Service Unavailable", b"not ok\n")
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                connection.send(head.encode() + text)
        self._drop(number)

    def _drop(self, number: int) -> None:
        connection = self._open.pop(number)
        self._epoll.unregister(connection)
        connection.close()
