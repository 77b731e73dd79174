"""Our connection to the real API server: one for each client's connection, kept as long as both like."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeAlias

import h11

from testbed.proxy.hub import Hub
from testbed.proxy.stream import Alarm, TlsStream

# Bearer tokens make heads long.
MAX_HEAD = 1024 * 1024
Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class ServerSide:
    """The connection and HTTP's state of it.

    Args:
        hub: knows the way.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stream: TlsStream | None = None
        self.wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    @property
    def stream(self) -> TlsStream:
        """The connection, which is there."""
        if self._stream is None:
            raise ConnectionAbortedError("there is no connection to the server")
        return self._stream

    async def open(self, *, front: bool) -> None:
        """Connect, or use the connection again.

        Raises:
            OSError: nobody there.
        """
        if self._stream is not None and self.wire.our_state is h11.DONE and self.wire.their_state is h11.DONE:
            self.wire.start_next_cycle()
            return
        await self.close()
        self._stream = await self._hub.connect(front=front)
        self.wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    async def send(self, event: h11.Event) -> None:
        """Send a head or an end."""
        self.stream.put(as_bytes(self.wire.send(event)))
        await self.stream.flush()

    def next_event(self) -> Event:
        """What the server said."""
        return self.wire.next_event()

    async def receive(self, alarm: Alarm | None) -> bool:
        """Read on; False = the alarm rang first."""
        data = await self.stream.receive(alarm)
        if data is not None:
            self.wire.receive_data(data)
        return data is not None

    def gone(self) -> asyncio.Task[bytes | None] | None:
        """Done when the server ends an idle connection; None = there is none."""
        return asyncio.create_task(_end(self._stream)) if self._stream is not None else None

    async def close(self) -> None:
        """End the connection in order, without waiting for the server."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(0.1):
                    await stream.half_close()
            stream.close()


async def _end(stream: TlsStream) -> bytes | None:
    with contextlib.suppress(OSError):
        return await stream.receive()
    return b""


def as_bytes(data: bytes | None) -> bytes:
    """What h11 wants sent."""
    return data or b""


async def stop(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks and wait until they are over; what they raised has been seen or does not matter."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
