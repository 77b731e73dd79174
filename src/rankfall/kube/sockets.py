"""The sockets of one client, remembered so that none outlives it.

A connection whose making is cancelled in its very last step is open and belongs to no session of aiohttp's, so closing these does not close it
(seen with aiohttp 3.14: an unclosed transport when the loop ends).
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from typing import Any


class Sockets:
    """Makes sockets, as aiohttp's ``socket_factory``, and closes at the end what nobody else closed."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, info: Any) -> socket.socket:
        """A socket for one address of a name."""
        family, kind, protocol, _, _ = info
        made = socket.socket(family=family, type=kind, proto=protocol)
        self._made.add(made)
        return made

    async def close(self) -> int:
        """Close what is still open; how many there were. Called when every session is closed, in the loop that they lived in."""
        # What was closed by its session leaves the loop a turn later.
        await asyncio.sleep(0)
        loop: Any = asyncio.get_running_loop()
        # asyncio's own table, of its selector loops; in another loop only the bare sockets can be closed.
        transports = getattr(loop, "_transports", {})
        count = 0
        for one in list(self._made):
            number = one.fileno()
            if number < 0:
                continue
            transport = transports.get(number)
            if transport is None:
                one.close()
            elif not transport.is_closing():
                transport.abort()
            else:
                continue
            count += 1
        if count:
            await asyncio.sleep(0)
        return count
