"""Runs a command in a running container as ``kubectl exec`` does: argv, stdin, stdout, stderr, exit code.

:func:`execute` is for little output; :func:`open_exec` streams both ways and holds no more than a few frames,
so back pressure reaches both sides. Arguments are passed one by one; no shell sees them. Closing the
connection does not end the command: let it watch its stdin, or give it a time limit. Closing stdin is refused
where the server cannot do it (before Kubernetes 1.30).
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


# Of stdout and stderr that ``execute`` keeps.
MAX_OUTPUT: Final = 16 << 20


class ExecResult(msgspec.Struct, frozen=True):
    """A command that ended.

    Attributes:
        stdout: all of it.
        stderr: all of it.
        code: exit code, 0 to 255; a signal is 128 and its number. 0 proves nothing by itself, and then stdout and stderr may be incomplete: an
            API server whose connection to the kubelet ends without the exit code sends ``Success`` (seen with 1.34.4; kubernetes/kubectl
            issue 1726). If the caller needs to know, the command must print a last line, and the caller must look for it.
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
    """Start a command and stream.

    Args:
        kube: an open client.
        pod: its name.
        argv: program and arguments, as they are.
        container: its name.
        namespace: None = the client's.
        stdin: whether there will be any.
        timeout: seconds for the whole block; None = the caller has a limit of its own.

    Raises:
        ValueError: there are no words.
        ObjectNotFound: no such pod.
        ApiError: no such container, or the pod is not running.
        ExecTimeout: the time is over; the command may still run.
        Unreachable: no answer; ``maybe_done`` tells whether the command may have been started.
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
            # No pings: a server that waits for the command to read its stdin answers none, and is well.
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
            f"cannot {what}: it has not ended in {timeout:g} s", hint="the command may still run in the container"
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
    timeout: float,  # noqa: ASYNC109 - of the command, with an error of its own
    max_output: int = MAX_OUTPUT,
) -> ExecResult:
    """Run a command to its end.

    Args:
        kube: an open client.
        pod: its name.
        argv: program and arguments, as they are.
        container: its name.
        namespace: None = the client's.
        stdin: sent while output is read. A command that ends before it has read all is no error; where megabytes are left unread, though, the
            kubelet may never tell that it has ended (seen with 1.34 and containerd, as with kubectl), and the time-out is all that helps; or
            the exit code is lost on the way and 0 is reported instead.
        stdin_ends: the command reads stdin to its end; False = it knows how much to read, so that servers before 1.30 will do.
        timeout: seconds for all of it.
        max_output: bytes of stdout and stderr together.

    Raises:
        ExecFailed: it did not run.
        ExecTooMuch: it printed more.
        ExecUnsupported: stdin cannot be ended on this server.
        KubeError: as for ``open_exec`` and ``Exec.output``.
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
                        hint="let it write to a file",
                    )
                parts[name].append(data)
    # Set by the end of the output, which is the only way to get here.
    code = -1 if session.code is None else session.code
    return ExecResult(b"".join(parts["stdout"]), b"".join(parts["stderr"]), code)


@contextlib.asynccontextmanager
async def _fed(session: Exec, source: bytes | AsyncIterable[bytes] | None, *, ends: bool) -> AsyncIterator[None]:
    """While the block reads, stdin is written. What goes wrong with its source is raised in place of what follows from it."""
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
        # The command has ended, or the connection has: whoever reads learns which.
        return
    except BaseException:
        session.abandon()
        raise
