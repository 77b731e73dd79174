"""Processes that the bench of node health starts and measures: their CPU and memory, and the noise that it speaks with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.common import ROOT
from bench.health.figures import Noise

RATE: Final = 10_000
#: Longest that noise on orders lasts where nobody ends it.
_LONGEST_S: Final = 900
#: Told by each part itself, never taken over from whoever starts the bench.
_OWN: Final = frozenset({"KUBECONFIG", "NODE_NAME", "LOG_ENDPOINT", "RANKFALL_LOKI_URL", "RANKFALL_HEALTH_CONFIG"})


def memory(pid: int) -> float:
    """Peak resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def environ(**more: str) -> dict[str, str]:
    """Of a process that is measured."""
    return {key: value for key, value in os.environ.items() if key not in _OWN} | more


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of this machine, ended afterwards."""
    pipe = subprocess.PIPE
    made = subprocess.Popen([sys.executable, *words], stdin=pipe, stdout=pipe, text=True, env=environ(), cwd=ROOT)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


@contextlib.contextmanager
def unheard(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same where nobody reads what it prints: in a pipe that is full it would wait for ever.

    Raises:
        RuntimeError: it ended by itself, so what was measured is not what it was meant to be.
    """
    nothing = subprocess.DEVNULL
    made = subprocess.Popen([sys.executable, *words], stdin=nothing, stdout=nothing, env=environ(), cwd=ROOT)
    try:
        yield made
        if made.poll() is not None:
            raise RuntimeError(f"{' '.join(words[:3])} ended with {made.returncode}: its reason is above")
    finally:
        made.kill()
        made.wait()


def lines(made: subprocess.Popen[str], last: str) -> list[str]:
    """What it prints, up to the line that begins so."""
    found: list[str] = []
    for line in made.stdout or ():
        found.append(line)
        if line.startswith(last):
            break
    return found


class Speaker:
    """Noise that gives an Xid for each order.

    Args:
        made: a process that takes orders on stdin: ``bench.health.noise`` and its like.
    """

    def __init__(self, made: subprocess.Popen[str]) -> None:
        self._made = made

    async def give(self) -> float:
        """Have an Xid given; the moment before that, seconds since the epoch."""
        return float((await self._answer("xid")).split()[1])

    async def end(self) -> Noise:
        """No more; what was said."""
        _, records, seconds = (await self._answer("end")).split()
        return Noise(int(records), float(seconds), RATE)

    async def _answer(self, order: str) -> str:
        return await asyncio.to_thread(self._ask, order)

    def _ask(self, order: str) -> str:
        if self._made.stdin is None or self._made.stdout is None:
            raise RuntimeError("the noise has no pipes")
        with contextlib.suppress(BrokenPipeError):
            self._made.stdin.write(f"{order}\n")
            self._made.stdin.flush()
        line = self._made.stdout.readline()
        if not line:
            raise RuntimeError(f"the noise ended with {self._made.wait()}: its reason is above")
        return line


@contextlib.contextmanager
def noise(
    folder: Path, *, every: float, seconds: float, boot: str = ""
) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A kernel that talks much, and its socket. It begins when somebody reads it.

    Args:
        folder: for the socket.
        every: seconds between two Xids; 0 = for each order (:class:`Speaker`).
        seconds: that it lasts.
        boot: boot id of that kernel; one of its own where none is given.
    """
    path = folder / f"{time.monotonic_ns()}.sock"
    words = ("-m", "bench.health.noise", str(path), str(RATE), str(every), str(seconds), *([boot] if boot else []))
    with process(*words) as made:
        lines(made, "ready")
        yield path, made


@contextlib.contextmanager
def speaking(folder: Path, *, boot: str) -> Iterator[tuple[Path, Speaker]]:
    """The same, with Xids on orders."""
    with noise(folder, every=0, seconds=_LONGEST_S, boot=boot) as (path, made):
        yield path, Speaker(made)


@contextlib.contextmanager
def ring_speaking() -> Iterator[Speaker]:
    """This machine's own ring, written at the same rate; its limit must have been lifted."""
    with process("-m", "bench.health.ring_noise", str(RATE), str(_LONGEST_S)) as made:
        lines(made, "ready")
        yield Speaker(made)
