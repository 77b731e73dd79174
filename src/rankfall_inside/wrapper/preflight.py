"""Checks in child processes before the command starts: names resolve, torch exists.

Process 1 must handle signals, so it makes no call that may hang.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time

from rankfall_inside import untrusted
from rankfall_inside.wrapper import processes, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Sequence

# Pause between attempts to resolve.
_FIRST_S, _LAST_S = 0.1, 2.0
# First message, then interval.
_SAY_S, _AGAIN_S = 5.0, 60.0
_MAX_LISTED = 5


class Child:
    """Child with a pipe; ``status`` of wait(2) once reaped."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self.fd, write = os.pipe()
        os.set_blocking(self.fd, False)
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        try:
            os.close(self.fd)
            signals.reset_in_child()
            processes.die_with_parent(signal.SIGKILL)
            run(write)
        finally:
            os._exit(processes.NOT_EXECUTABLE)

    def ended(self, pid: int, status: int) -> None:
        """Stores the status of a reaped ``pid``."""
        if pid == self.pid:
            self.status = status

    def step(self) -> None:
        """Does nothing: a child needs no polling."""

    def close(self) -> None:
        """Kills a child that still runs."""
        os.close(self.fd)
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except OSError:
                return


def ask(argv: Sequence[str], environ: Mapping[str, str]) -> Child:
    """Starts a command without output whose exit code is the answer."""

    def run(_: int) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        processes.replace(argv, environ)

    return Child(run)


class Names:
    """Waits until every name resolves, without limit: a missing peer pod is no failure."""

    def __init__(self, names: Sequence[str], *, say: Callable[[str], None]) -> None:
        self._names = list(dict.fromkeys(names))
        self._say = say
        self._missing = dict.fromkeys(range(len(self._names)))
        self._began = time.monotonic()
        self._due = self._began + _SAY_S
        self._buffer = b""
        self._said = False
        self._child = Child(lambda fd: _resolve(self._names, fd))

    @property
    def done(self) -> bool:
        """True if all names resolve."""
        return not self._missing

    def step(self) -> None:
        """Reads results and logs the wait when due."""
        try:
            self._buffer += os.read(self._child.fd, 1 << 16)
        except OSError:
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            number = untrusted.whole(line)
            if number is not None:
                self._missing.pop(number, None)
        now = time.monotonic()
        if self.done:
            if self._said:
                self._say(f"all names resolve after {now - self._began:.0f} s")
        elif now >= self._due:
            self._due = now + _AGAIN_S
            self._said = True
            left = [self._names[number] for number in self._missing]
            more = f" and {len(left) - _MAX_LISTED} more" if len(left) > _MAX_LISTED else ""
            self._say(
                f"waiting for names to resolve: {', '.join(left[:_MAX_LISTED])}{more} ({now - self._began:.0f} s)"
            )
        if self._child.status is not None and not self.done:
            # The child was killed: restart for the missing names.
            self._child.close()
            left = [self._names[number] for number in self._missing]
            self._names, self._missing, self._buffer = left, dict.fromkeys(range(len(left))), b""
            self._child = Child(lambda fd: _resolve(self._names, fd))

    def ended(self, pid: int, status: int) -> None:
        """Handles a reaped ``pid`` with its wait(2) status."""
        self._child.ended(pid, status)

    def close(self) -> None:
        """Kills a child that still runs."""
        self._child.close()


def _resolve(names: Sequence[str], fd: int) -> None:
    """Runs in the child: writes each name's number when it resolves."""
    missing = list(range(len(names)))
    pause = _FIRST_S
    while missing:
        for number in list(missing):
            try:
                socket.getaddrinfo(names[number], None)
            except (OSError, UnicodeError):
                continue
            missing.remove(number)
            os.write(fd, b"%d\n" % number)
        if missing:
            # Spreads the queries of many pods.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
            pause = min(_LAST_S, pause * 2)
    os._exit(0)
