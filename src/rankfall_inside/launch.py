"""Chooses what starts the ranks of a slot: the torchrun that the spec asked for, where the job's Python has torch, else N plain ranks.

Only that Python can tell, and it is asked in a child that can be ended: nothing of the job is imported here.
"""

from __future__ import annotations

import os
import re
import sys

from rankfall_inside import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

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
        words = foreign.loads(text)
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


def known(words: Sequence[str]) -> bool | None:
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
