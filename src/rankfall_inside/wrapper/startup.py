"""From options to the started command: launcher, place among the roles, environment, and the wait.

torchrun is used where the job's Python has torch, else N plain ranks; nothing of the job is imported here.
Kubernetes numbers the pods of each role from 0 and cannot add, so slot numbers are summed here. No thread may
exist while processes are forked, so signals are polled.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time

from rankfall_inside import untrusted
from rankfall_inside.wrapper import processes, signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, MutableMapping, Sequence

    from rankfall_inside.event_loop import Loop
    from rankfall_inside.wrapper import preflight
    from rankfall_inside.wrapper.control import Orders
    from rankfall_inside.wrapper.options import Options
    from rankfall_inside.wrapper.slot_files import SlotFiles

VARIABLE = "RANKFALL_TORCHRUN"
# A Python that starts from a cold disk takes seconds; one that takes longer hangs.
TIMEOUT_S = 30.0
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
_QUESTION = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('torch') else 3)"


class Choice:
    """What is started: ``launcher`` is ``exec``, ``plain`` or ``torchrun``; ``problem`` says why nothing can be, "" otherwise."""

    def __init__(self, launcher: str, command: Sequence[str], *, note: str = "", problem: str = "") -> None:
        self.launcher = launcher
        self.command = list(command)
        self.note = note
        self.problem = problem


def words_of(environ: Mapping[str, str]) -> list[str] | None:
    """The torchrun command that the environment names, or None when it names none."""
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        words = untrusted.loads(text)
    except ValueError:
        return None
    if isinstance(words, list) and words and all(isinstance(word, str) and word for word in words[:1]):
        return words if all(isinstance(word, str) for word in words) else None
    return None


def question(words: Sequence[str], environ: Mapping[str, str]) -> list[str] | None:
    """The command that exits with 0 when the Python of ``words`` can find torch; None when no Python stands behind them.

    Args:
        words: begin with a Python, or with a script whose first line names one (torchrun itself).
        environ: of the job, for PATH.
    """
    import shutil

    path = shutil.which(words[0], path=environ.get("PATH"))
    if path is None:
        return None
    if _PYTHON.match(os.path.basename(words[0])):
        return [path, "-c", _QUESTION]
    try:
        with open(path, "rb") as file:
            first = os.fsdecode(file.readline(512))
    except OSError:
        return None
    named = first[2:].split() if first.startswith("#!") else []
    if any(_PYTHON.match(os.path.basename(word)) for word in named[:2]):
        return [*named, "-c", _QUESTION]
    return None


def launch_known(words: Sequence[str]) -> bool | None:
    """Whether torch is there, when ``words`` begin with the very Python that runs the wrapper; None when it must be asked."""
    import shutil

    path = shutil.which(words[0])
    # Not their real paths: two virtual environments are links to one program.
    if path is None or os.path.abspath(path) != sys.executable or sys.flags.isolated or sys.flags.no_site:
        return None
    from importlib import util

    try:
        return util.find_spec("torch") is not None
    except (ImportError, ValueError, AttributeError):
        return None


def chosen(wanted: str, plain: Sequence[str], words: Sequence[str] | None, *, torch: bool, why: str) -> Choice:
    """The launcher to use.

    Args:
        wanted: ``auto`` or ``torchrun``.
        plain: the command after ``--``.
        words: of :func:`words_of`.
        torch: whether the Python of ``words`` has torch.
        why: says why not, when it has not.
    """
    if words is None:
        why = f"{VARIABLE} names no command"
    elif torch:
        return Choice("torchrun", words)
    if wanted == "torchrun":
        return Choice("torchrun", words or plain, problem=f"torchrun cannot be started: {why}")
    return Choice("plain", plain, note=f"started without torchrun: {why}")


# The token makes a line trustworthy; the others are of another wrapper, when this one runs inside a rank.
_REMOVED = (
    "RANKFALL_TOKEN",
    VARIABLE,
    "RANKFALL_ORDINAL",
    "RANKFALL_CLAIMED",
    "RANKFALL_PIPES",
    "RANKFALL_CHANNEL",
)


def command_environment(
    inherited: Mapping[str, str], options: Options, files: SlotFiles, *, channel: bool
) -> dict[str, str]:
    """What the command starts with.

    Args:
        inherited: of the wrapper.
        options: of the wrapper.
        files: of the slot; its folders may be others than the environment named.
        channel: whether hooks should tell of each record.
    """
    environ = {name: value for name, value in inherited.items() if name not in _REMOVED}
    environ.update(
        RANKFALL_WRAPPER=str(files.pid),
        RANKFALL_INSTANCE=options.instance,
        RANKFALL_SLOT_DIR=files.path,
        RANKFALL_RECORD_DIR=files.records,
    )
    if channel:
        environ["RANKFALL_CHANNEL"] = "1"
    if environ.get("RANKFALL_INSIDE") != "off":
        theirs = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = options.home + (os.pathsep + theirs if theirs else "")
    return environ


# Kubernetes leaves a reference to a variable alone that it does not know.
NODE_REFERENCE = "$(RANKFALL_PLAIN_NODE_RANK)"


def settle(options: Options, environ: MutableMapping[str, str]) -> None:
    """Set ``RANKFALL_SLOT`` and ``RANKFALL_PLAIN_NODE_RANK``, and put the latter into the words of the command. Once is enough.

    Args:
        options: of the wrapper; its command is changed.
        environ: of the wrapper; without ``RANKFALL_INDEX`` nothing is changed.
    """
    index = environ.get("RANKFALL_INDEX", "")
    number = untrusted.whole(index)
    if number is None:
        return
    environ["RANKFALL_SLOT"] = str((untrusted.whole(environ.get("RANKFALL_SLOT_BASE")) or 0) + number)
    first = untrusted.whole(environ.get("RANKFALL_FIRST_NODE"))
    if first is None:
        return
    node = environ["RANKFALL_PLAIN_NODE_RANK"] = str(first + number)
    options.command = [node if word == NODE_REFERENCE else word for word in options.command]
    if "RANKFALL_TORCHRUN" in environ:
        # A word of its own in a JSON list.
        environ["RANKFALL_TORCHRUN"] = environ["RANKFALL_TORCHRUN"].replace(
            '"' + NODE_REFERENCE + '"', '"' + node + '"'
        )


_LOOK_S = 0.05


class Startup:
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

    def choose(self, words: list[str] | None) -> Choice:
        """What is to be started; asks the job's Python for torch where that decides.

        Args:
            words: the torchrun command that the environment named, or None.
        """
        options = self._options
        if options.launcher in ("exec", "plain"):
            return Choice(options.launcher, options.command)
        torch, why = (False, "") if words is None else self._torch(words)
        return chosen(options.launcher, options.command, words, torch=torch, why=why)

    def _torch(self, words: list[str]) -> tuple[bool, str]:
        """Whether the Python of ``words`` has torch, and why not."""
        known = launch_known(words)
        if known is not None:
            return known, f"{words[0]} finds no torch"
        from rankfall_inside.wrapper import preflight

        argv = question(words, self._environ)
        if argv is None:
            return False, f"{words[0]} is no Python that can be asked for torch"
        # Where the pod names a rank, the hook would take the question for it.
        child = preflight.ask(
            argv, {name: value for name, value in self._environ.items() if name != "RANKFALL_WRAPPER"}
        )
        due = time.monotonic() + TIMEOUT_S
        self._wait(child, lambda: child.status is not None or time.monotonic() >= due)
        if child.status is None:
            return False, f"{words[0]} did not say within {TIMEOUT_S:.0f} s whether it has torch"
        return child.status == 0, f"{words[0]} finds no torch"

    def wait_for_names(self, say: Callable[[str], None]) -> None:
        """Wait until all names resolve, or an order to end comes."""
        if not self._options.wait_for:
            return
        from rankfall_inside.wrapper import preflight

        names = preflight.Names(self._options.wait_for, say=say)
        self._wait(names, lambda: names.done)

    def _wait(self, work: preflight.Child | preflight.Names, done: Callable[[], bool]) -> None:
        while not done() and not self._orders.stop_requested:
            self._signals(work)
            self._loop.run_once(0)
            work.step()
        work.close()

    def _signals(self, work: preflight.Child | preflight.Names) -> None:
        """Take the signals that come within a moment; the end of a child is one."""
        info = signal.sigtimedwait(signals.WATCHED, _LOOK_S)
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._orders.signal(info.si_signo, info.si_pid)
        elif info is not None:
            for pid, status in processes.ended():
                work.ended(pid, status)
