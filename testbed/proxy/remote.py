"""The control socket: other processes order faults of a running proxy, a line of JSON a command."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import TestbedError
from testbed.proxy.face import Command, Face, carry_out
from testbed.proxy.server import Server

# A map of a thousand pods is a long line.
_MAX_LINE = 16 * 1024 * 1024
_PATIENCE_S = 60.0


class _Reply(msgspec.Struct):
    ok: Any = None
    error: str | None = None


class Listener:
    """Takes commands for a proxy.

    Args:
        server: the proxy.
        path: of the unix socket; its folder's rights say who may order faults.
    """

    def __init__(self, server: Server, path: Path) -> None:
        self._server, self._path = server, path
        self._clients: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Take commands until cancelled; the socket's file is removed then."""
        # Under its name only when it answers: whoever waits for the file must not be refused.
        early = self._path.with_name(f"{self._path.name}.new")
        early.unlink(missing_ok=True)
        listening = await asyncio.start_unix_server(self._client, early, limit=_MAX_LINE)
        early.chmod(0o600)
        early.replace(self._path)
        try:
            async with listening:
                await listening.serve_forever()
        finally:
            for task in list(self._clients):
                task.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            self._path.unlink(missing_ok=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - callbacks of a server are tasks
        self._clients.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError, ValueError):
                while line := await reader.readline():
                    writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                    await writer.drain()
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> _Reply:
        try:
            return _Reply(ok=await carry_out(self._server, msgspec.json.decode(line, type=Command)))
        except (TestbedError, msgspec.MsgspecError, OSError) as error:
            return _Reply(error=str(error))


class Remote(Face):
    """A proxy that runs in another process.

    Args:
        path: of its control socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def order(self, command: Command) -> Any:
        """Have a command carried out.

        Raises:
            TestbedError: it was refused, or nobody answers.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(_PATIENCE_S)
                sock.connect(str(self._path))
                sock.sendall(msgspec.json.encode(command) + b"\n")
                with sock.makefile("rb") as answer:
                    line = answer.readline()
        except OSError as error:
            raise TestbedError(
                f"the fault proxy at {self._path} does not answer: {error}", hint="does it run? python -m testbed.proxy"
            ) from error
        if not line:
            raise TestbedError(f"the fault proxy at {self._path} ended", hint="see its log")
        reply = msgspec.json.decode(line, type=_Reply)
        if reply.error is not None:
            raise TestbedError(f"the fault proxy refused: {reply.error}")
        return reply.ok
