"""What a credential plug-in prints, while it runs: stdout bounded and kept for us alone, stderr bounded, escaped, redacted and shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Final

from rankfall.kube.secret import excerpt

LARGEST: Final = 1 << 20
"""Bytes of stdout: no credential is larger."""

_SHOWN_LINES: Final = 20
_CHUNK: Final = 4096
# A prompt has no newline: what has not gone on for so long is shown as it is.
_PROMPT_S: Final = 0.3


class Words:
    """The stderr of a plug-in: shown while it runs at a terminal, and its end kept for the error."""

    def __init__(self, say: Callable[[str], None] | None, secrets: list[str]) -> None:
        self._say, self._secrets = say, secrets
        self._kept = b""
        self._shown = 0

    @property
    def last(self) -> str:
        """For the end of a message."""
        shown = excerpt(self._kept, secrets=self._secrets)
        return f"; it said: {shown}" if shown else ""

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Read to the end; what is beyond the bounds is thrown away, so that it is never stopped by a full pipe."""
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
        if self._say is None or not line.strip() or self._shown >= _SHOWN_LINES:
            return
        self._shown += 1
        self._say(excerpt(line, secrets=self._secrets))


async def both(output: Coroutine[None, None, bytes | None], words: Coroutine[None, None, None]) -> bytes | None:
    """The output, while the other pipe is read too; None at once when it is too much."""
    async with asyncio.TaskGroup() as group:
        talk = group.create_task(words)
        found = await output
        if found is None:
            talk.cancel()
    return found


async def bounded(stream: asyncio.StreamReader) -> bytes | None:
    """All of it; None when it is too much."""
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.read(_CHUNK):
        size += len(chunk)
        if size > LARGEST:
            return None
        parts.append(chunk)
    return b"".join(parts)


async def end(process: asyncio.subprocess.Process, *, whole: bool) -> None:
    """End what still runs, with what it started. What a plug-in that ended by itself left behind (an agent, a browser) is its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if whole else process.kill()
    await process.wait()


def to_stderr(line: str) -> None:
    """Show a line to whoever sits at the terminal."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a person has to see what the plug-in asks for
