"""Leaves what comes on a stream in the kernel for a while, so that many small pieces are read as one.

A line a time costs a turn of the event loop, a TLS record, a chunk of HTTP and a write to the disk each; a hundred lines at once cost little more
than one. asyncio's TLS has no public way to its socket. Where the way is another one (a loop of another kind), nothing is paused and only
time passes: slower, with the same bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp

# After a large piece, bytes, there is much to come: only what is on its way already is waited for, seconds.
LARGE: Final = 8 << 10
HURRY_S: Final = 0.005


async def gathered(response: aiohttp.ClientResponse, seconds: float, *, size: int) -> None:
    """Let what comes gather before it is read. Called when all that had come was taken.

    Args:
        response: whose body is read.
        seconds: for how long, after a small piece.
        size: bytes of the piece that was taken.
    """
    if size >= LARGE:
        await asyncio.sleep(min(seconds, HURRY_S))
        return
    socket = _socket_of(response)
    if socket is None:
        await asyncio.sleep(seconds)
        return
    socket.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        if not socket.is_closing():
            socket.resume_reading()


def _socket_of(response: aiohttp.ClientResponse) -> Any:
    """The transport that reads from the socket; None when it cannot be paused."""
    connection = response.connection
    transport: Any = connection.transport if connection is not None else None
    protocol = getattr(transport, "_ssl_protocol", None)
    found = transport if protocol is None else getattr(protocol, "_transport", None)
    # Of TLS in TLS (through an HTTPS proxy) the inner one is no socket; closed ones and those that wait already are left alone.
    if not isinstance(found, asyncio.Transport) or found.is_closing() or not found.is_reading():
        return None
    return found
