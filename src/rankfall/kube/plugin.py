"""Exec plug-ins: programs that know the credentials (client.authentication.k8s.io/v1 and v1beta1).

One process at a time, however many requests wait for it, and never through a shell. What it prints is bounded; its stdout holds credentials
and is never shown, its stderr is shown escaped and redacted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final

from rankfall.kube.access import Access, ExecPlugin
from rankfall.kube.errors import CredentialsError
from rankfall.kube.plugin_pipes import LARGEST, Words, both, bounded, end, to_stderr
from rankfall.kube.plugin_protocol import INFO, Given, Misspoken, told, understood
from rankfall.kube.secret import excerpt

_TIMEOUT_S: Final = 60.0
# A person who logs in with a browser needs longer.
_INTERACTIVE_TIMEOUT_S: Final = 300.0
# Renewed this much of its life before it ends, at most so many seconds: a request that is on its way must still be valid when it arrives.
_EARLY: Final = 0.1
_EARLY_S: Final = 10.0
# However short the life it claims (or however wrong a clock is), the plug-in is not started for every request.
_LEAST_S: Final = 5.0


class Plugin:
    """One plug-in and what it gave last.

    Args:
        plugin: what the kubeconfig says of it.
        access: whom it is for.
        authorities: certificates of the cluster as PEM, for a plug-in that wants to be told.
        timeout: seconds that it may take; None = 60, or 300 when it may ask at the terminal.
        say: shows a line of its stderr while it runs at a terminal; None = our own stderr.
        clock: seconds since the epoch.
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
        self._given: Given | None = None
        self._renew_at: float | None = None
        self._running: asyncio.Task[Given] | None = None

    async def get(self) -> Given:
        """What it gave last, or gives now.

        Raises:
            CredentialsError: it is not there, failed, took too long, or said what cannot be understood.
        """
        if self._given is not None and (self._renew_at is None or self._clock() < self._renew_at):
            return self._given
        try:
            return await self.renew()
        except CredentialsError:
            last = self._given
            if last is None or last.expires is None or last.expires <= self._clock():
                raise
            # Renewed early and in vain: what we have is good until its end.
            self._renew_at = min(last.expires, self._clock() + _LEAST_S)
            return last

    async def renew(self) -> Given:
        """What it gives now; whoever asks while it runs gets the same.

        Raises:
            CredentialsError: as ``get``.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._once())
            self._running.add_done_callback(self._ended)
        # One caller that gives up must not take the answer from the others.
        running, caller = self._running, asyncio.current_task()
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled() and not (caller is not None and caller.cancelling()):
                # It was ended, not the caller.
                raise self._error("was ended: the client closes, or its kubeconfig names another one now") from None
            raise

    async def close(self) -> None:
        """End it if it runs."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, CredentialsError):
                await self._running

    def _ended(self, task: asyncio.Task[Given]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten when nobody waits any more

    async def _once(self) -> Given:
        asked = self._clock()
        output = await self._output()
        try:
            given = understood(output, self._plugin, secrets=self._secrets())
        except Misspoken as error:
            refusal = self._error(str(error))
        else:
            return self._keep(given, asked)
        raise refusal

    def _keep(self, given: Given, asked: float) -> Given:
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
        info = told(plugin, self._access.endpoint, authorities=authorities, interactive=interactive)
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
                # A session of its own can be ended whole, but has no terminal to ask at.
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
        """Whether it may ask at our terminal."""
        mode = self._plugin.interactive
        terminal = mode != "Never" and sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if mode == "Always" and not terminal:
            raise self._error(
                "must ask at a terminal, and there is none", hint="log in from a terminal first, or use another user"
            )
        return terminal

    def _secrets(self) -> list[str]:
        """What must not show in its words: its own arguments and variables may hold secrets."""
        values = [*self._plugin.args, *(value for _, value in self._plugin.env)]
        given = self._given
        values += [value for value in (given.token, given.key) if value is not None] if given else []
        return [value.reveal() for value in values]

    def _error(
        self, why: str, *, hint: str = "run kubectl once as the same user: it starts the same program"
    ) -> CredentialsError:
        name = excerpt(os.path.basename(self._plugin.command), limit=100)  # noqa: PTH119 - of text, which need not be a path
        return CredentialsError(f"the credential plug-in {name} of user {self._access.user!r} {why}", hint=hint)
