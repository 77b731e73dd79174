"""The time before the command starts: what starts it is chosen, names of peers are waited for. An order to end ends it at once.

No thread may be there while processes are forked, so signals are taken here by asking for them between two looks.
"""

from __future__ import annotations

import signal
import time

from rankfall_inside import launch, reap, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from rankfall_inside import before
    from rankfall_inside.loop import Loop
    from rankfall_inside.options import Options
    from rankfall_inside.orders import Orders

_LOOK_S = 0.05


class Prelude:
    """One wrapper's beginning.

    Args:
        options: of the wrapper.
        orders: end it.
        loop: of the wrapper; serves ``ctl`` and the console meanwhile.
        environ: of the command.
    """

    def __init__(self, options: Options, orders: Orders, loop: Loop, environ: Mapping[str, str]) -> None:
        self._options = options
        self._orders = orders
        self._loop = loop
        self._environ = environ

    def choose(self, words: list[str] | None) -> launch.Choice:
        """What is to be started; asks the job's Python for torch where that decides.

        Args:
            words: the torchrun command that the environment named, or None.
        """
        options = self._options
        if options.launcher in ("exec", "plain"):
            return launch.Choice(options.launcher, options.command)
        torch, why = (False, "") if words is None else self._torch(words)
        return launch.chosen(options.launcher, options.command, words, torch=torch, why=why)

    def _torch(self, words: list[str]) -> tuple[bool, str]:
        """Whether the Python of ``words`` has torch, and why not."""
        known = launch.known(words)
        if known is not None:
            return known, f"{words[0]} finds no torch"
        from rankfall_inside import before

        argv = launch.question(words, self._environ)
        if argv is None:
            return False, f"{words[0]} is no Python that can be asked for torch"
        # Where the pod names a rank, the hook would take the question for it.
        child = before.ask(argv, {name: value for name, value in self._environ.items() if name != "RANKFALL_WRAPPER"})
        due = time.monotonic() + launch.TIMEOUT_S
        self._wait(child, lambda: child.status is not None or time.monotonic() >= due)
        if child.status is None:
            return False, f"{words[0]} did not say within {launch.TIMEOUT_S:.0f} s whether it has torch"
        return child.status == 0, f"{words[0]} finds no torch"

    def wait_for_names(self, say: Callable[[str], None]) -> None:
        """Wait until all names resolve, or an order to end comes."""
        if not self._options.wait_for:
            return
        from rankfall_inside import before

        names = before.Names(self._options.wait_for, say=say)
        self._wait(names, lambda: names.done)

    def _wait(self, work: before.Child | before.Names, done: Callable[[], bool]) -> None:
        while not done() and not self._orders.ending:
            self._signals(work)
            self._loop.turn(0)
            work.step()
        work.close()

    def _signals(self, work: before.Child | before.Names) -> None:
        """Take the signals that come within a moment; the end of a child is one."""
        info = signal.sigtimedwait(signals.WATCHED, _LOOK_S)
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._orders.signal(info.si_signo, info.si_pid)
        elif info is not None:
            for pid, status in reap.ended():
                work.ended(pid, status)
