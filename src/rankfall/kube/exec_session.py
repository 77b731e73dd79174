"""A command that runs in a container: its output out of one websocket, its stdin into it.

Never more than a few frames are held: who does not read makes the command wait, and a command that does not read makes the writer wait.
It refuses to pretend that stdin can be ended where the server does not know how (before Kubernetes 1.30).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import aiohttp

from rankfall.kube import exec_frames as frames
from rankfall.kube.exec_errors import ExecLost, ExecUnsupported, not_run
from rankfall.kube.exec_frames import Output

# Of stdin in one message. Servers read a message whole before they pass it on.
_PIECE: Final = 64 << 10
# Seconds that the rest of a status is waited for; servers write it at once.
LAST_S: Final = 5.0
_NAMES: Final[dict[int, Output]] = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}


class Exec:
    """A command that runs.

    Reading (:meth:`output`) and writing may and should happen in two tasks: a command that waits for somebody to read its output reads no stdin.

    Args:
        socket: open.
        what: names it in messages.

    Attributes:
        code: its exit code, once :meth:`output` has ended; 0 proves nothing by itself, as in ``ExecResult``.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, what: str) -> None:
        self.code: int | None = None
        self._socket, self._what = socket, what

    @property
    def protocol(self) -> str:
        """What the server speaks."""
        return self._socket.protocol or ""

    @property
    def can_close_stdin(self) -> bool:
        """Whether stdin can be ended while the command runs on."""
        return self.protocol == frames.V5

    def require_close(self) -> None:
        """Refuse a server that cannot end stdin.

        Raises:
            ExecUnsupported: this one.
        """
        if not self.can_close_stdin:
            raise ExecUnsupported(
                f"cannot {self._what}: this server cannot end the stdin of a command",
                hint="Kubernetes 1.30 or later can; before, use a command that knows how much it has to read",
            )

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send to stdin; returns when the connection has taken it.

        Raises:
            ExecLost: the connection has ended, which it also does when the command has.
        """
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            await self._send(frames.data_message(frames.STDIN, view[at : at + _PIECE]))
            # Sending does not wait while there is room, nor on a connection that broke a moment ago: the loop has to get a chance to notice.
            await asyncio.sleep(0)

    async def close_stdin(self) -> None:
        """End stdin; the command reads its end.

        Raises:
            ExecUnsupported: the server does not know how.
            ExecLost: the connection has ended.
        """
        self.require_close()
        await self._send(frames.close_message(frames.STDIN))

    def abandon(self) -> None:
        """End the connection at once; :meth:`output` ends with ``ExecLost``.

        A server that waits for the command to read, or no longer reads because the command has ended, takes no good-bye; the library would
        wait for that without end.
        """
        connection = self._socket._response.connection  # noqa: SLF001 - there is no public way to the transport
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    async def output(self) -> AsyncGenerator[tuple[Output, bytes], None]:
        """What the command prints, as it comes, until it has ended; then ``code`` is there.

        Raises:
            ExecFailed: the command did not run.
            ExecLost: the connection ended, and nobody knows how the command did, or whether it has.
        """
        status, end = b"", None
        try:
            while end is None and (message := await self._receive(LAST_S if status else None)):
                channel, data = frames.split(message)
                if channel == frames.STATUS:
                    # The last word: nothing of the command comes after it, and the server's good-bye is not waited for.
                    status = frames.longer_status(status, data)
                    end = frames.read_status(status) if frames.is_whole(status) else None
                elif data and channel in _NAMES:
                    yield _NAMES[channel], data
            end = end or (frames.read_status(status) if status else None)
        except frames.BadFrame as error:
            raise ExecLost(f"cannot {self._what}: the server sent {error}", hint=ExecLost.advice) from None
        if end is None:
            raise ExecLost(f"cannot {self._what}: the connection ended before the command did", hint=ExecLost.advice)
        if isinstance(end, frames.NotRun):
            raise not_run(end, what=self._what)
        self.code = end.code

    async def _receive(self, patience: float | None) -> bytes:
        """The next message; none when there will be no more."""
        try:
            message = await self._socket.receive(timeout=patience)
        except TimeoutError:
            return b""
        if message.type is aiohttp.WSMsgType.BINARY:
            data: bytes = message.data
            # Empty messages say nothing; the protocol forbids them.
            return data or bytes((frames.CLOSE,))
        if message.type is aiohttp.WSMsgType.TEXT:
            raise frames.BadFrame("text")
        return b""

    async def _send(self, message: bytes) -> None:
        ended = self.code is not None
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            if not ended:
                await self._socket.send_bytes(message)
                return
        # Outside the block: aiohttp's errors carry the headers that were sent, and must not be chained to ours.
        raise ExecLost(
            f"cannot {self._what}: {'the command has' if ended else 'the connection'} ended",
            hint="its exit code is known" if ended else ExecLost.advice,
        )
