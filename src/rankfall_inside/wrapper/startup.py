"""Starts the command: launcher, slot number, environment, and waits for names.

Uses torchrun if the job's Python has torch. No thread may exist during forks.
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
# Seconds; a start from a cold disk takes some.
TIMEOUT_S = 30.0
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*\Z")
_QUESTION = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('torch') else 3)"


class Choice:
    """Launcher (``exec``, ``plain``, ``torchrun``) and command; ``problem`` is the reason for no start, or ""."""

    def __init__(self, launcher: str, command: Sequence[str], *, note: str = "", problem: str = "") -> None:
        self.launcher = launcher
        self.command = list(command)
        self.note = note
        self.problem = problem


def words_of(environ: Mapping[str, str]) -> list[str] | None:
    """Returns the environment's torchrun command, or None."""
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
    """Returns a command that exits with 0 if the Python of ``words`` finds torch; None without a Python."""
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
    """Returns True if torch exists and ``words`` use the wrapper's Python; None if a child must check."""
    import shutil

    path = shutil.which(words[0])
    # Virtual environments link to one program.
    if path is None or os.path.abspath(path) != sys.executable or sys.flags.isolated or sys.flags.no_site:
        return None
    from importlib import util

    try:
        return util.find_spec("torch") is not None
    except (ImportError, ValueError, AttributeError):
        return None


def chosen(wanted: str, plain: Sequence[str], words: Sequence[str] | None, *, torch: bool, why: str) -> Choice:
    """Returns the launcher to use; ``torch``: the job's Python has torch, else ``why`` is the reason."""
    if words is None:
        why = f"{VARIABLE} names no command"
    elif torch:
        return Choice("torchrun", words)
    if wanted == "torchrun":
        return Choice("torchrun", words or plain, problem=f"torchrun cannot be started: {why}")
    return Choice("plain", plain, note=f"started without torchrun: {why}")


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
    """Returns the command's environment; the slot's folders win over inherited ones."""
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


# Kubernetes keeps references to unknown variables.
NODE_REFERENCE = "$(RANKFALL_PLAIN_NODE_RANK)"


def settle(options: Options, environ: MutableMapping[str, str]) -> None:
    """Sets ``RANKFALL_SLOT`` and ``RANKFALL_PLAIN_NODE_RANK``, also in the command.

    Does nothing without ``RANKFALL_INDEX``.
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
        # One word of a JSON list.
        environ["RANKFALL_TORCHRUN"] = environ["RANKFALL_TORCHRUN"].replace(
            '"' + NODE_REFERENCE + '"', '"' + node + '"'
        )


_LOOK_S = 0.05


class Startup:
    """Startup steps of one wrapper; serves ``ctl`` and the console meanwhile."""

    def __init__(self, options: Options, orders: Orders, loop: Loop, environ: Mapping[str, str]) -> None:
        self._options = options
        self._orders = orders
        self._loop = loop
        self._environ = environ

    def choose(self, words: list[str] | None) -> Choice:
        """Chooses the launcher; checks the job's Python for torch if needed."""
        options = self._options
        if options.launcher in ("exec", "plain"):
            return Choice(options.launcher, options.command)
        torch, why = (False, "") if words is None else self._torch(words)
        return chosen(options.launcher, options.command, words, torch=torch, why=why)

    def _torch(self, words: list[str]) -> tuple[bool, str]:
        """Returns True if the Python of ``words`` has torch, else False and the reason."""
        known = launch_known(words)
        if known is not None:
            return known, f"{words[0]} finds no torch"
        from rankfall_inside.wrapper import preflight

        argv = question(words, self._environ)
        if argv is None:
            return False, f"{words[0]} is not a Python that can be checked for torch"
        # With RANK the hook would take the child for a rank.
        child = preflight.ask(
            argv, {name: value for name, value in self._environ.items() if name != "RANKFALL_WRAPPER"}
        )
        due = time.monotonic() + TIMEOUT_S
        self._wait(child, lambda: child.status is not None or time.monotonic() >= due)
        if child.status is None:
            return False, f"{words[0]} did not answer within {TIMEOUT_S:.0f} s if it has torch"
        return child.status == 0, f"{words[0]} finds no torch"

    def wait_for_names(self, say: Callable[[str], None]) -> None:
        """Waits until all names resolve or a stop request."""
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
        """Handles signals for a moment; one of them may report the end of the child ``work``."""
        info = signal.sigtimedwait(signals.WATCHED, _LOOK_S)
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._orders.signal(info.si_signo, info.si_pid)
        elif info is not None:
            for pid, status in processes.ended():
                work.ended(pid, status)
