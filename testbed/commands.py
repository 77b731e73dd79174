"""Long commands: their output goes to a log, a line now and then says how far they are, and their failures are put into words."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed.errors import BuildError

Say = Callable[[str], None]
_EVERY_S = 15.0
_TAIL_BYTES = 16384
_TAIL_LINES = 15
_NEWS_WIDTH = 90
_TITLE_WIDTH = 120
_END_S = 5.0

# Words of a failed command's output -> what to do.
_ADVICE = (
    ("no space left on device", "free some disk space, or keep the cache on another disk: TESTBED_CACHE, GOCACHE, GOMODCACHE"),
    ("security error", "a download is not what it was when its checksum was written down: look at GOPROXY, and at the log"),
    ("checksum mismatch", "a download is not what it was when its checksum was written down: look at GOPROXY, and at the log"),
    ("signal: killed", "the machine ran out of memory: GOFLAGS=-p=1 needs less"),
)  # fmt: skip
_NETWORK = (
    "dial tcp", "no such host", "connection refused", "connection reset", "i/o timeout", "tls handshake timeout",
    "unexpected eof", "502 bad gateway", "503 service unavailable", "504 gateway", "temporary failure", "unable to connect",
    "failed getting release file", "couldn't download",
)  # fmt: skip


class CommandError(Exception):
    """A command ended with an error.

    Args:
        command: its name.
        code: its exit code.
        tail: the last lines of its log.
        log: the whole log.
    """

    def __init__(self, command: str, code: int, tail: str, log: Path) -> None:
        super().__init__(f"{command} ended with code {code}")
        self.command, self.code, self.tail, self.log = command, code, tail, log

    @property
    def network(self) -> bool:
        """Whether it may well work the next time."""
        return any(words in self.tail.lower() for words in _NETWORK)

    def explain(self, what: str) -> BuildError:
        """The error for people."""
        text = self.tail.lower()
        hint = next((advice for words, advice in _ADVICE if words in text), "")
        if not hint and self.network:
            hint = "the network does not reach the source; check the connection and proxy, then start again: what is there already is kept"
        lines = "\n".join(f"    {line}" for line in self.tail.splitlines())
        return BuildError(
            f"{what}: {self}\n{lines}",
            hint=f"{hint}\n  the whole log: {self.log}" if hint else f"the whole log: {self.log}",
        )


def run(
    command: Sequence[str],
    *,
    log: Path,
    what: str,
    seconds: int,
    say: Say,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    every_s: float = _EVERY_S,
) -> None:
    """Run a command to its end.

    Args:
        command: program and arguments.
        log: takes its output, after what is there already.
        what: begins each line of progress.
        seconds: how long it may take, for those lines.
        say: takes the lines.
        env: its whole environment.
        folder: to run in.
        every_s: time between two lines.

    Raises:
        CommandError: it ended with an error.
        BuildError: there is no such program.
    """
    if not shutil.which(command[0]):
        raise BuildError(f"{what}: there is no program {command[0]} on this machine")
    log.parent.mkdir(parents=True, exist_ok=True)
    # A killed builder takes the command with it.
    tied = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
    began = time.monotonic()
    with log.open("ab") as out:
        start = out.tell()
        process = subprocess.Popen(
            [*tied, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    try:
        while _code(process, every_s) is None:
            say(f"{what}: {time.monotonic() - began:.0f} s of about {seconds}: {_news(log, start)}")
    finally:
        _end_group(process)
    if process.returncode != 0:
        title = textwrap.shorten(shlex.join([Path(command[0]).name, *command[1:]]), _TITLE_WIDTH)
        raise CommandError(title, process.returncode, "\n".join(_lines(log, start)), log)


def _code(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    try:
        return process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Take the command's children with it when we are interrupted: compilers would go on for minutes."""
    if process.poll() is not None:
        return
    for how in (signal.SIGINT, signal.SIGTERM):
        _signal_group(process, how)
        if _code(process, _END_S) is not None:
            break
    # Those that outlive their parent.
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def _news(log: Path, start: int) -> str:
    lines = _lines(log, start)
    return lines[-1].strip()[:_NEWS_WIDTH] if lines else "no output yet"


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
