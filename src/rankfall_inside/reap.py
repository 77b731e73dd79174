"""Ends every descendant of the wrapper: found in /proc by ancestry, not by process group or session. And takes in those that have ended.

As the subreaper the wrapper inherits every orphan, so a process that did setsid and a double fork is still below it.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator

# A killed process that is still there after this hangs in the kernel (D state); the wrapper then leaves without it.
GIVE_UP_S = 30.0


def ended() -> Iterator[tuple[int, int]]:
    """Pid and status of each child that has ended by now; each is reaped when it is asked for."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


class Ender:
    """Sends SIGTERM to what is left, SIGKILL after ``grace`` seconds, until nothing lives.

    Args:
        root: the wrapper's pid.
        grace: seconds between the two signals.
        mark: called as ``mark(pid, signum, reason)`` before each signal.
    """

    def __init__(self, root: int, *, grace: float, reason: str, mark: Callable[[int, int, str], None]) -> None:
        self._root = root
        self._reason = reason
        self._mark = mark
        self._sent: set[tuple[int, int, int]] = set()
        self._deadline = time.monotonic() + grace
        self.left: list[procfs.Stat] = []

    def hurry(self, grace: float) -> None:
        """Shorten the grace time."""
        self._deadline = min(self._deadline, time.monotonic() + grace)

    def step(self) -> bool:
        """One look; True when nothing is left, or what is left does not die."""
        self.left = [one for one in procfs.descendants(self._root) if one.state not in ("Z", "X")]
        if not self.left:
            return True
        now = time.monotonic()
        if now > self._deadline + GIVE_UP_S:
            return True
        signum = signal.SIGKILL if now >= self._deadline else signal.SIGTERM
        for one in self.left:
            self._send(one, signum)
        return False

    def _send(self, one: procfs.Stat, signum: int) -> None:
        sent = (one.pid, one.start, signum)
        if sent in self._sent:
            return
        self._sent.add(sent)
        self._mark(one.pid, signum, self._reason)
        # The mark took time: the pid may be another's by now.
        if procfs.start_ticks(one.pid) != one.start:
            return
        try:
            os.kill(one.pid, signum)
            if signum == signal.SIGTERM:
                # A stopped process takes SIGTERM only when it runs again.
                os.kill(one.pid, signal.SIGCONT)
        except OSError:
            return
