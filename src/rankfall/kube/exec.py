"""Run a command in a running container, as ``kubectl exec`` does: argv, stdin, stdout, stderr, exit code.

:func:`execute` is for commands with little output; :func:`open_exec` streams any amount both ways, never more than a few frames in memory: who
does not read makes the command wait, and a command that does not read makes the writer wait. The words of the command are passed one by
one; no shell ever sees them unless the caller names one.

Ending the connection does not end the command: nothing in the protocol does. Who needs that lets the command watch its stdin, or gives it a
time limit of its own. It refuses to pretend that stdin can be ended where the server does not know how (before Kubernetes 1.30).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final

import msgspec

from rankfall.kube import exec_frames as frames
from rankfall.kube.client import Kube
from rankfall.kube.exec_errors import ExecLost, ExecTimeout, ExecTooMuch
from rankfall.kube.exec_frames import Output
from rankfall.kube.exec_session import LAST_S, Exec
from rankfall.kube.resources import PODS

__all__ = ["MAX_OUTPUT", "Exec", "ExecResult", "execute", "open_exec"]

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
    what = f"exec in {PODS.shown(pod, space)}, container {container}"
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
    task = asyncio.create_task(_feed(session, source, ends=ends))
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


async def _feed(session: Exec, source: bytes | AsyncIterable[bytes], *, ends: bool) -> None:
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
