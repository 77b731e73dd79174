"""The proxy itself, on an event loop of its own in a thread, with a synchronous face for tests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import resource
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from testbed.errors import TestbedError
from testbed.proxy.face import Command, Face, carry_out
from testbed.proxy.hub import Settings
from testbed.proxy.server import Server
from testbed.proxy.shift import NodeOf

T = TypeVar("T")

# Longer than anything that is asked of the loop takes on a machine that is busy with something else.
_PATIENCE_S = 60.0
_MANY_FILES = 65536


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
