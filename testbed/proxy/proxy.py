"""The proxy itself, on an event loop of its own in a thread, with a synchronous face for tests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import socket
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from testbed.errors import StartError, TestbedError
from testbed.proxy.connection import Connection
from testbed.proxy.face import Command, Face, carry_out
from testbed.proxy.hub import Hub, Settings
from testbed.proxy.shift import NodeOf

T = TypeVar("T")

_BACKLOG = 4096
# Longer than anything that is asked of the loop takes on a machine that is busy with something else.
_PATIENCE_S = 60.0
_MANY_FILES = 65536
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


class Proxy(Face):
    """A fault proxy in this process.

    Use it as a context manager; ``url`` is where clients go.

    Args:
        settings: where it stands.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """Where clients go."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"https://{host}:{self._running.port}"

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise TestbedError("the fault proxy does not run", hint="use it in a with statement")
        return self._server

    def start(self) -> Self:
        """Listen.

        Raises:
            StartError: the address is taken.
        """
        allow_many_files()
        self._thread.start()

        async def make() -> Server:
            return Server(self._settings)

        try:
            self._server = self.do(make())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """End everything: no connection, task, socket or thread stays."""
        if self._server is not None:
            self.do(self._server.close())
            self._server = None
        self._end()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the proxy's loop and wait for it."""
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_PATIENCE_S)

    def nodes(self, node_of: NodeOf) -> None:
        """Tell which node a pod is on: a function of namespace and pod, called in the proxy's thread; it must not block."""
        self._running.hub.node_of = node_of

    def order(self, command: Command) -> Any:
        """Carry out a command."""
        return self.do(carry_out(self._running, command))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def allow_many_files() -> None:
    """Raise this process's soft limit of open files: each stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(_MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
