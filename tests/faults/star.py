"""A collective over plain sockets: rank 0 is the centre. For ranks that need no torch, so that many jobs fit on a small machine.

It behaves as gloo does where it matters: nobody goes on before all are there, and who loses its partner raises. It has no limit of time.
"""

from __future__ import annotations

import os
import socket
import struct
import time

_NUMBER = struct.Struct("<d")


# As torch's own group does, it lives as long as its process: one that leaves is not gone for its partners before it ends.
_KEPT: list[socket.socket] = []


class Star:
    """One group of all ranks; comes about when all have come."""

    def __init__(self) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # The port that is kept for the job; where torchrun's own store listens there, the one beside it, which anybody may have.
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        port += "TORCHELASTIC_USE_AGENT_STORE" in os.environ
        self._centre = rank == 0
        self._others: list[socket.socket] = []
        if self._centre:
            with socket.create_server(("", port), family=socket.AF_INET) as server:
                self._others = [server.accept()[0] for _ in range(world - 1)]
            self._tell(0.0)
        else:
            self._others = [_reach(host, port)]
            self._hear(self._others[0])
        _KEPT.extend(self._others)

    def all_reduce(self, value: float) -> float:
        """The sum of all ranks' values.

        Raises:
            ConnectionResetError: a partner is gone.
        """
        if not self._centre:
            self._tell(value)
            return self._hear(self._others[0])
        total = value + sum(self._hear(one) for one in self._others)
        self._tell(total)
        return total

    def close(self) -> None:
        """Leave together: nobody is gone before all are done."""
        self.all_reduce(0.0)
        for one in self._others:
            one.close()

    def _tell(self, value: float) -> None:
        for one in self._others:
            one.sendall(_NUMBER.pack(value))

    def _hear(self, one: socket.socket) -> float:
        data = b""
        while len(data) < _NUMBER.size:
            part = one.recv(_NUMBER.size - len(data))
            if not part:
                raise ConnectionResetError("Connection closed by peer")
            data += part
        value: float = _NUMBER.unpack(data)[0]
        return value


def _reach(host: str, port: int) -> socket.socket:
    """A connection to the centre, which may come later."""
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            time.sleep(0.05)
