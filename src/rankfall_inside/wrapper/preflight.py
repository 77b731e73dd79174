"""Checks before the command starts, each in a child: peers' names resolve, torch is installed.

A call that may hang (a dead name server, an interpreter on a dead disk) never runs in the wrapper, which as
process 1 must take signals. Loaded only when a check is needed: ``socket`` would slow the start of every
slot.
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

# Between two attempts to resolve a name.
_FIRST_S, _LAST_S = 0.1, 2.0
# When the wait is spoken of first, and then again.
_SAY_S, _AGAIN_S = 5.0, 60.0
# More names than this are counted, not listed.
_MAX_LISTED = 5


class Child:
    """A child with a pipe that says when it is over; ``status`` as of wait(2) when it was reaped."""

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
        """Take in that ``pid`` was reaped."""
        if pid == self.pid:
            self.status = status

    def step(self) -> None:
        """Nothing is to be done while it runs."""

    def close(self) -> None:
        """End it, when it has not ended."""
        os.close(self.fd)
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except OSError:
                return


def ask(argv: Sequence[str], environ: Mapping[str, str]) -> Child:
    """Start a question: a command that answers by its exit code and is not heard."""

    def run(_: int) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        processes.replace(argv, environ)

    return Child(run)


class Names:
    """Waits until every name resolves, for as long as it takes: a peer whose pod is not there yet is no failure.

    Args:
        names: of hosts.
        say: called with a text for people when the wait is long.
    """

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
        """Whether all names resolve."""
        return not self._missing

    def step(self) -> None:
        """Take in what was resolved, and speak when it is time."""
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
            # It was killed by something: begin again with what is missing.
            self._child.close()
            left = [self._names[number] for number in self._missing]
            self._names, self._missing, self._buffer = left, dict.fromkeys(range(len(left))), b""
            self._child = Child(lambda fd: _resolve(self._names, fd))

    def ended(self, pid: int, status: int) -> None:
        """Take in that ``pid`` was reaped."""
        self._child.ended(pid, status)

    def close(self) -> None:
        """End the child, when it has not ended."""
        self._child.close()


def _resolve(names: Sequence[str], fd: int) -> None:
    """In the child: writes the number of each name when it resolves; ends when all do."""
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
            # Many pods wait for the same names: they shall not ask in step.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
            pause = min(_LAST_S, pause * 2)
    os._exit(0)
