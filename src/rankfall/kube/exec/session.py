"""Runs a command in a container like ``kubectl exec``, without a shell.

Closing the connection does not end the command: let it watch its stdin. Closing stdin requires Kubernetes 1.30.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import Final

import aiohttp
import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.exec import protocol as frames
from rankfall.kube.exec.protocol import ExecLost, ExecTimeout, ExecTooMuch, ExecUnsupported, Output, not_run
from rankfall.kube.resources import PODS

__all__ = ["MAX_OUTPUT", "Exec", "ExecResult", "execute", "open_exec"]

# Bytes of stdin per message; servers read whole messages.
_PIECE: Final = 64 << 10
# Seconds to wait for remaining status parts.
LAST_S: Final = 5.0
_NAMES: Final[dict[int, Output]] = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}


class Exec:
    """A running command.

    Read and write in two tasks: a command blocked on output reads no stdin.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, what: str) -> None:
        self.code: int | None = None
        self._socket, self._what = socket, what

    @property
    def protocol(self) -> str:
        """Protocol that the server chose."""
        return self._socket.protocol or ""

    @property
    def can_close_stdin(self) -> bool:
        """True if stdin can be ended while the command runs."""
        return self.protocol == frames.V5

    def require_close(self) -> None:
        """Checks that the server can end stdin.

        Raises:
            ExecUnsupported: The server cannot.
        """
        if not self.can_close_stdin:
            raise ExecUnsupported(
                f"cannot {self._what}: this server cannot end the stdin of a command",
                hint="use Kubernetes 1.30 or later, or a command that knows how much it has to read",
            )

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data to stdin; returns when accepted.

        Raises:
            ExecLost: The connection ended.
        """
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            await self._send(frames.data_message(frames.STDIN, view[at : at + _PIECE]))
            # Lets the loop notice a broken connection: sends with room do not wait.
            await asyncio.sleep(0)

    async def close_stdin(self) -> None:
        """Ends stdin; the command reads its end.

        Raises:
            ExecUnsupported: The server cannot end stdin.
            ExecLost: The connection has ended.
        """
        self.require_close()
        await self._send(frames.close_message(frames.STDIN))

    def abandon(self) -> None:
        """Aborts the connection; :meth:`output` ends with ``ExecLost``.

        A close message may never be answered.
        """
        connection = self._socket._response.connection  # noqa: SLF001 - there is no public way to the transport
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    async def output(self) -> AsyncGenerator[tuple[Output, bytes], None]:
        """Yields the command's output until it has ended, then sets ``code``.

        Raises:
            ExecFailed: The command did not run.
            ExecLost: The connection ended before the command.
        """
        status, end = b"", None
        try:
            while end is None and (message := await self._receive(LAST_S if status else None)):
                channel, data = frames.split(message)
                if channel == frames.STATUS:
                    # The status is last.
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
        """Next message; empty when the connection ended."""
        try:
            message = await self._socket.receive(timeout=patience)
        except TimeoutError:
            return b""
        if message.type is aiohttp.WSMsgType.BINARY:
            data: bytes = message.data
            # Empty messages are forbidden; ignored.
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
        # Outside the block: aiohttp's errors contain headers and must not be chained.
        raise ExecLost(
            f"cannot {self._what}: {'the command has' if ended else 'the connection'} ended",
            hint="read its exit code" if ended else ExecLost.advice,
        )


# Bytes that ``execute`` accepts.
MAX_OUTPUT: Final = 16 << 20


class ExecResult(msgspec.Struct, frozen=True):
    """Result of a command that ended.

    ``code`` 0 alone proves no success: an API server that loses the kubelet first sends ``Success`` (seen with 1.34.4;
    kubernetes/kubectl issue 1726). For certainty let the command print a last line.

    Attributes:
        stdout: Standard output.
        stderr: Standard error.
        code: Signals are 128 plus number.
    """

    stdout: bytes
    stderr: bytes
    code: int


@contextlib.asynccontextmanager
async def open_exec(
    kube: Kube,
    pod: str,
    argv: Sequence[str],
    *,
    container: str,
    namespace: str | None = None,
    stdin: bool = False,
    timeout: float | None,  # noqa: ASYNC109 - bounds the block, not a call
) -> AsyncIterator[Exec]:
    """Starts a command and yields its session; ``timeout`` bounds the block.

    Raises:
        ValueError: ``argv`` is empty or not a list.
        ObjectNotFound: The pod does not exist.
        ApiError: No such container, or not running.
        ExecTimeout: Time-out; the command may still run.
        Unreachable: No answer; ``maybe_done`` = may have started.
    """
    if isinstance(argv, str) or not argv or not argv[0]:
        raise ValueError(f"a command is a list of words, the first one a program; this is {argv!r:.100}")
    space = kube.namespace if namespace is None else namespace
    what = f"exec in {PODS.label(pod, space)}, container {container}"
    params = [("container", container), *(("command", word) for word in argv), ("stdout", "true"), ("stderr", "true")]
    params += [("stdin", "true")] if stdin else []
    limit = asyncio.timeout(timeout)
    try:
        async with (
            limit,
            # No pings: a server waiting for the command to read stdin answers none.
            kube.websocket(
                PODS.path(space, pod, "exec"),
                params=params,
                protocols=frames.PROTOCOLS,
                what=what.removeprefix("exec "),
                heartbeat=None,
            ) as socket,
        ):
            session = Exec(socket, what=what)
            try:
                yield session
            finally:
                session.abandon()
    except TimeoutError:
        if not limit.expired():
            raise
        raise ExecTimeout(
            f"cannot {what}: it has not ended in {timeout:g} s", hint="check the container: the command may still run"
        ) from None


async def execute(
    kube: Kube,
    pod: str,
    argv: Sequence[str],
    *,
    container: str,
    namespace: str | None = None,
    stdin: bytes | AsyncIterable[bytes] | None = None,
    stdin_ends: bool = True,
    timeout: float,  # noqa: ASYNC109 - time-out of the command, with a separate error
    max_output: int = MAX_OUTPUT,
) -> ExecResult:
    """Runs a command to its end, within ``timeout`` seconds.

    Unread stdin is no error. With megabytes unread, the kubelet may never report the end (seen with 1.34 and
    containerd, also with kubectl), or the exit code reads 0.

    ``stdin_ends=False``: the command knows the length, which works before 1.30. ``max_output`` in bytes.

    Raises:
        ExecFailed: The command did not run.
        ExecTooMuch: The output exceeds ``max_output``.
        ExecUnsupported: The server cannot end stdin.
        KubeError: Errors of ``open_exec`` and ``Exec.output``.
    """
    opened = open_exec(
        kube, pod, argv, container=container, namespace=namespace, stdin=stdin is not None, timeout=timeout
    )
    async with opened as session, _fed(session, stdin, ends=stdin_ends):
        parts: dict[Output, list[bytes]] = {"stdout": [], "stderr": []}
        size = 0
        async with contextlib.aclosing(session.output()) as output:
            async for name, data in output:
                size += len(data)
                if size > max_output:
                    raise ExecTooMuch(
                        f"cannot exec in pod {pod}: {argv[0]!r:.100} printed more than {max_output} bytes",
                        hint="let the command write to a file",
                    )
                parts[name].append(data)
    code = -1 if session.code is None else session.code
    return ExecResult(b"".join(parts["stdout"]), b"".join(parts["stderr"]), code)


@contextlib.asynccontextmanager
async def _fed(session: Exec, source: bytes | AsyncIterable[bytes] | None, *, ends: bool) -> AsyncIterator[None]:
    """Writes stdin during the block; a source's error replaces the resulting ``ExecLost``."""
    if source is None:
        yield
        return
    if ends:
        session.require_close()
    task = asyncio.create_task(_send_input(session, source, ends=ends))
    try:
        yield
    except ExecLost:
        await asyncio.wait({task}, timeout=LAST_S)
        failure = task.exception() if task.done() and not task.cancelled() else None
        if failure is not None:
            raise failure from None
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _send_input(session: Exec, source: bytes | AsyncIterable[bytes], *, ends: bool) -> None:
    try:
        if isinstance(source, bytes):
            await session.write(source)
        else:
            async for chunk in source:
                await session.write(chunk)
        if ends:
            await session.close_stdin()
    except ExecLost:
        # The reader finds out whether command or connection ended.
        return
    except BaseException:
        session.abandon()
        raise
