"""Exec credential plug-ins (client.authentication.k8s.io/v1 and v1beta1).

One process at a time, no shell, bounded output. Stdout holds credentials and is never displayed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rankfall.kube.auth.access import Access, Endpoint, ExecPlugin
from rankfall.kube.errors import CredentialsError
from rankfall.kube.secret import Secret, excerpt
from rankfall.model import decoding

INFO: Final = "KUBERNETES_EXEC_INFO"
"""Environment variable that describes the cluster to the plug-in."""

_FIELDS: Final = ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")


class InvalidExecCredential(Exception):
    """The answer is unusable; the message contains no credential."""


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials from a plug-in; PEM, ``key`` as Latin-1.

    ``expires`` in seconds since the epoch; None = until a 401.
    """

    token: Secret | None = None
    certificate: bytes | None = None
    key: Secret | None = None
    expires: float | None = None

    def __repr__(self) -> str:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        return f"Given({', '.join(given)})"


def exec_info(plugin: ExecPlugin, endpoint: Endpoint, *, authorities: bytes | None, interactive: bool) -> str:
    """Content of ``KUBERNETES_EXEC_INFO``; with the cluster only on request."""
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.tell_cluster:
        spec["cluster"] = _cluster(plugin, endpoint, authorities)
    return msgspec.json.encode({"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec}).decode()


def parse_exec_credential(output: bytes, plugin: ExecPlugin, *, secrets: Sequence[str]) -> ExecCredential:
    """Parses the credentials in an answer; errors mask ``secrets``.

    Raises:
        InvalidExecCredential: Not this protocol, or no credentials.
    """
    try:
        document = decoding.decode(output)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, Mapping):
        raise InvalidExecCredential("printed no JSON object")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != "ExecCredential" or version != plugin.version:
        label = excerpt(f"{kind} {version}", secrets=secrets, limit=100)
        raise InvalidExecCredential(f"printed {label}, not ExecCredential {plugin.version}")
    status = document.get("status")
    if not isinstance(status, Mapping):
        raise InvalidExecCredential("gave no status")
    values = [status.get(name) or None for name in _FIELDS]
    if not all(value is None or isinstance(value, str) for value in values):
        raise InvalidExecCredential("gave a status with fields of the wrong type")
    token, certificate, key, expires = values
    if (certificate is None) != (key is None):
        raise InvalidExecCredential("gave a certificate without its key, or a key without its certificate")
    if token is None and certificate is None:
        raise InvalidExecCredential("gave neither a token nor a certificate")
    return ExecCredential(
        token=None if token is None else Secret(token),
        certificate=None if certificate is None else certificate.encode(),
        key=None if key is None else Secret(key.encode().decode("latin-1")),
        expires=None if expires is None else _moment(expires, secrets),
    )


def _cluster(plugin: ExecPlugin, endpoint: Endpoint, authorities: bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = {"server": endpoint.server}
    if endpoint.tls_server_name:
        found["tls-server-name"] = endpoint.tls_server_name
    if endpoint.insecure:
        found["insecure-skip-tls-verify"] = True
    if authorities is not None:
        found["certificate-authority-data"] = base64.b64encode(authorities).decode("ascii")
    if endpoint.proxy is not None:
        found["proxy-url"] = endpoint.proxy.reveal()
    if plugin.cluster_config is not None:
        found["config"] = msgspec.Raw(plugin.cluster_config.reveal().encode())
    return found


def _moment(text: str, secrets: Sequence[str]) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        label = excerpt(text, secrets=secrets, limit=60)
        raise InvalidExecCredential(f"gave an expirationTimestamp that is not a time: {label}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


LARGEST: Final = 1 << 20
"""Largest stdout in bytes."""

_MAX_LINES: Final = 20
_CHUNK: Final = 4096
# Seconds until a line without newline counts as a prompt.
_PROMPT_S: Final = 0.3


class Words:
    """A plug-in's stderr: copied to the terminal while it runs, its last lines are part of error messages."""

    def __init__(self, say: Callable[[str], None] | None, secrets: list[str]) -> None:
        self._say, self._secrets = say, secrets
        self._kept = b""
        self._printed = 0

    @property
    def last(self) -> str:
        """Suffix for an error message."""
        text = excerpt(self._kept, secrets=self._secrets)
        return f"; its message: {text}" if text else ""

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Reads to the end and discards the excess, so that a full pipe never blocks."""
        line = b""
        while True:
            try:
                async with asyncio.timeout(_PROMPT_S if line else None):
                    chunk = await stream.read(_CHUNK)
            except TimeoutError:
                self._show(line)
                line = b""
                continue
            if not chunk:
                self._show(line)
                return
            self._kept = (self._kept + chunk)[-_CHUNK:]
            *whole, line = (line + chunk).split(b"\n")
            for each in whole:
                self._show(each)
            line = line[-_CHUNK:]

    def _show(self, line: bytes) -> None:
        if self._say is None or not line.strip() or self._printed >= _MAX_LINES:
            return
        self._printed += 1
        self._say(excerpt(line, secrets=self._secrets))


async def both(output: Coroutine[None, None, bytes | None], words: Coroutine[None, None, None]) -> bytes | None:
    """Output while reading the other pipe; None if too large."""
    async with asyncio.TaskGroup() as group:
        talk = group.create_task(words)
        found = await output
        if found is None:
            talk.cancel()
    return found


async def bounded(stream: asyncio.StreamReader) -> bytes | None:
    """Whole stream; None if larger than ``LARGEST``."""
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.read(_CHUNK):
        size += len(chunk)
        if size > LARGEST:
            return None
        parts.append(chunk)
    return b"".join(parts)


async def end(process: asyncio.subprocess.Process, *, whole: bool) -> None:
    """Kills a running plug-in; ``whole``: its children too.

    An ended plug-in's processes (an agent, a browser) continue.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if whole else process.kill()
    await process.wait()


def to_stderr(line: str) -> None:
    """Prints a line on the terminal."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a user has to see the plug-in's prompt


_TIMEOUT_S: Final = 60.0
_INTERACTIVE_TIMEOUT_S: Final = 300.0
# Renewal starts this fraction of the lifetime before expiry, at most these seconds.
_EARLY: Final = 0.1
_EARLY_S: Final = 10.0
# Least seconds between starts, despite wrong clocks.
_LEAST_S: Final = 5.0


class Plugin:
    """One plug-in and its last credentials.

    ``timeout`` in seconds; None = 60, or 300 with terminal prompts.
    """

    def __init__(
        self,
        plugin: ExecPlugin,
        access: Access,
        *,
        authorities: Callable[[], bytes | None],
        timeout: float | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plugin, self._access, self._authorities, self._clock = plugin, access, authorities, clock
        self._timeout, self._say = timeout, say or to_stderr
        self._given: ExecCredential | None = None
        self._renew_at: float | None = None
        self._running: asyncio.Task[ExecCredential] | None = None

    async def get(self) -> ExecCredential:
        """Returns the last credentials, or new ones if they are due.

        Raises:
            CredentialsError: Not installed, failed, timed out, or invalid.
        """
        if self._given is not None and (self._renew_at is None or self._clock() < self._renew_at):
            return self._given
        try:
            return await self.renew()
        except CredentialsError:
            last = self._given
            if last is None or last.expires is None or last.expires <= self._clock():
                raise
            # The current credentials stay valid until expiry.
            self._renew_at = min(last.expires, self._clock() + _LEAST_S)
            return last

    async def renew(self) -> ExecCredential:
        """Returns new credentials; concurrent callers share one run.

        Raises:
            CredentialsError: As for ``get``.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._once())
            self._running.add_done_callback(self._ended)
        # A caller that gives up must not cancel others.
        running, caller = self._running, asyncio.current_task()
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled() and not (caller is not None and caller.cancelling()):
                # The plug-in was ended, not the caller.
                raise self._error(
                    "was stopped: the client closes, or its kubeconfig now names another plug-in"
                ) from None
            raise

    async def close(self) -> None:
        """Ends a running plug-in."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, CredentialsError):
                await self._running

    def _ended(self, task: asyncio.Task[ExecCredential]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it

    async def _once(self) -> ExecCredential:
        asked = self._clock()
        output = await self._output()
        try:
            given = parse_exec_credential(output, self._plugin, secrets=self._secrets())
        except InvalidExecCredential as error:
            refusal = self._error(str(error))
        else:
            return self._keep(given, asked)
        raise refusal

    def _keep(self, given: ExecCredential, asked: float) -> ExecCredential:
        self._given = given
        self._renew_at = None
        if given.expires is not None:
            early = min(_EARLY_S, _EARLY * max(0.0, given.expires - asked))
            self._renew_at = max(given.expires - early, self._clock() + _LEAST_S)
        return given

    async def _output(self) -> bytes:
        plugin = self._plugin
        interactive = self._interactive()
        limit = self._timeout or (_INTERACTIVE_TIMEOUT_S if interactive else _TIMEOUT_S)
        authorities = self._authorities() if plugin.tell_cluster else None
        info = exec_info(plugin, self._access.endpoint, authorities=authorities, interactive=interactive)
        environ = {**os.environ, **{name: value.reveal() for name, value in plugin.env}, INFO: info}
        program = shutil.which(plugin.command, path=environ.get("PATH"))
        if program is None:
            hint = excerpt(plugin.install_hint or "", limit=1000)
            raise self._error("is not installed", hint=hint or "install it, or put it on the PATH")
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *(word.reveal() for word in plugin.args),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environ,
                # A separate session can be killed whole but cannot prompt.
                start_new_session=not interactive,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            refusal = self._error(f"cannot be started: {why}")
        else:
            return await self._finished(process, limit=limit, interactive=interactive)
        raise refusal

    async def _finished(self, process: asyncio.subprocess.Process, *, limit: float, interactive: bool) -> bytes:
        words = Words(self._say if interactive else None, self._secrets())
        stdout, stderr = process.stdout, process.stderr
        if stdout is None or stderr is None:
            raise RuntimeError("both are pipes")
        try:
            async with asyncio.timeout(limit):
                output = await both(bounded(stdout), words.follow(stderr))
                code = await process.wait() if output is not None else 0
        except TimeoutError:
            output, code = b"", None
        finally:
            await end(process, whole=not interactive)
        if output is None:
            raise self._error(f"printed more than {LARGEST} bytes")
        if code is None:
            raise self._error(f"did not end within {limit:g} s{words.last}")
        if code:
            raise self._error(f"failed with exit code {code}{words.last}")
        return output

    def _interactive(self) -> bool:
        mode = self._plugin.interactive
        terminal = mode != "Never" and sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise self._error(
                "needs a terminal for input, and there is none",
                hint="log in from a terminal first, or use another user",
            )
        return terminal

    def _secrets(self) -> list[str]:
        """Returns texts to mask: its arguments and variables may be secret."""
        values = [*self._plugin.args, *(value for _, value in self._plugin.env)]
        given = self._given
        values += [value for value in (given.token, given.key) if value is not None] if given else []
        return [value.reveal() for value in values]

    def _error(
        self, why: str, *, hint: str = "run kubectl once as the same user: it starts the same program"
    ) -> CredentialsError:
        name = excerpt(os.path.basename(self._plugin.command), limit=100)  # noqa: PTH119 - the text need not be a path
        return CredentialsError(f"the credential plug-in {name} of user {self._access.user!r} {why}", hint=hint)
