"""A run in the foreground whose supervisor may be killed and replaced, as a person would; and a disk that is filled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Supervised:
    """The command line of one user who has one run.

    Args:
        home: of the runs.
        prefix: before the command of the first supervisor.
        env: of all commands.
    """

    def __init__(self, home: Path, *, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._prefix = prefix
        self._env = os.environ | {"RANKFALL_HOME": str(home), "NO_COLOR": "1"} | dict(env or {})
        self._first: subprocess.Popen[str] | None = None
        self._back = threading.Event()
        self._back.set()

    def cli(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return _ended(self._started((), words), timeout)

    def run(self, file: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
        """``rankfall run`` to the run's end; a supervisor that was killed has a successor when it may."""
        self._first = self._started(self._prefix, ("run", "--quiet", "--file", str(file)))
        done = _ended(self._first, timeout)
        if done.returncode == -signal.SIGKILL:
            if not self._back.wait(timeout):
                raise TimeoutError("nobody let the run have a supervisor again")
            done = self.cli("attach", "--quiet", timeout=timeout)
        return done

    @contextmanager
    def killed(self) -> Iterator[None]:
        """SIGKILL for the run's supervisor; inside, nobody supervises it."""
        if self._first is None:
            raise ProcessLookupError("the run has no supervisor yet")
        self._back.clear()
        self._first.kill()
        try:
            yield
        finally:
            self._back.set()

    def _started(self, prefix: tuple[str, ...], words: tuple[str, ...]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            (*prefix, sys.executable, "-m", "rankfall", *words),
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )


def _ended(process: subprocess.Popen[str], timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def fill(path: Path) -> None:
    """Take what room is left on a file system."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
