"""Listens and serves: one fault proxy on the event loop that runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from testbed.errors import StartError
from testbed.proxy.connection import Connection
from testbed.proxy.hub import Hub, Settings

_BACKLOG = 4096
# Out of file numbers: a moment later some connection may have gone.
_RETRY_S = 0.1


class Server:
    """Listens and serves; lives on the running event loop.

    Args:
        settings: of the proxy.

    Raises:
        StartError: the address is taken.
    """

    def __init__(self, settings: Settings) -> None:
        self.hub = Hub(settings)
        try:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            self._listening = socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise StartError(
                f"the fault proxy cannot listen on {settings.host}:{settings.port}: {error}",
                hint="choose another port; 0 = any",
            ) from error
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def cut_all(self) -> None:
        """Reset every connection that is open now."""
        await self._end(list(self._connections))

    async def close(self) -> None:
        """Stop listening, end every connection; no task and no socket stays."""
        self._accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting
        self._listening.close()
        await self.cut_all()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            task = loop.create_task(Connection(self.hub, sock).serve())
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
