"""Decides whether a process that has RANK is a rank, and gives it an ordinal.

A rank is a process that has RANK while no ancestor below the launcher has the same: DataLoader workers, spawn
children, compile workers and the resource tracker inherit RANK and are none. Claims are files made with
``O_EXCL``, so two processes never hold the same:

``claims/o<ordinal>``: names the stream files; text as of :func:`text_of`.
``claims/r<root pid>-<root ticks>.<n>``: one live rank process for each topmost process with
this RANK (a shell may stand between).
"""

from __future__ import annotations

import os

from rankfall_inside import identity, private_files, procfs, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

# A slot never has more processes than this that became a rank; past it something starts them in a loop.
MAX_ORDINALS = 100_000
# Fields of a record that a claim's text ends with, in this order.
IDENTITY = ("rank", "local_rank", "group_rank", "world_size", "local_world_size", "restart_count")
_RANK_AT = 4
_ADOPTED_AT = 4 + len(IDENTITY)
_MAX_DEPTH = 64
_MAX_GENERATIONS = 1000


def find_root(pid: int, environ: Mapping[str, str], stop: int) -> tuple[int, int]:
    """Topmost ancestor of ``pid`` below ``stop`` (the wrapper) with the same identity: ``(pid, start_ticks)``."""
    mine = identity.key(environ)
    root = pid
    here = procfs.stat(pid)
    start = here.start if here else 0
    parent = here.ppid if here else 0
    for _ in range(_MAX_DEPTH):
        if parent in (0, 1, stop):
            break
        above = procfs.stat(parent)
        theirs = procfs.environ(parent)
        if above is None or theirs is None:
            break
        if identity.key(theirs) == mine and not identity.is_launcher(procfs.cmdline(parent)):
            root, start = parent, above.start
        parent = above.ppid
    return root, start


def _create(path: str, text: str) -> bool:
    """Make a file that nobody else has made; False when it is there already.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    try:
        fd = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)
    return True


def read(path: str) -> tuple[int, ...] | None:
    """The numbers of a claim file, or None when it is missing or damaged."""
    try:
        fd = procfs.at_once(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = [untrusted.signed(word) for word in os.read(fd, 256).split()]
        return None if None in found else tuple(each for each in found if each is not None)
    except OSError:
        return None
    finally:
        os.close(fd)


def claim(folder: str, *, text: str, root: tuple[int, int], ordinal: int | None = None) -> int | None:
    """Become the rank of ``root`` and take an ordinal in ``folder``.

    Args:
        folder: ``claims/`` of the slot directory.
        text: begins with pid and start time (clock ticks since boot) of the process that becomes the rank.
        root: of :func:`find_root`.
        ordinal: the one that the plain launcher gave; else the lowest free one is taken.

    Returns:
        The ordinal, or None when a living process already is the rank of this root.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    pid = untrusted.whole(text.split(None, 1)[0])
    for generation in range(_MAX_GENERATIONS):
        path = os.path.join(folder, f"r{root[0]}-{root[1]}.{generation}")
        if _create(path, text):
            break
        held = read(path) or ()
        if len(held) > _ADOPTED_AT:
            # The wrapper took it for a rank without hook (the hook came late, or a shell stands between): go on with its ordinal.
            ordinal = find_ordinal(folder, root)
            if pid == root[0]:
                return ordinal
        elif len(held) > 1 and procfs.start_ticks(held[0]) == held[1]:
            # A shell that runs one program after the other has one live rank at a time.
            return None
    return next_ordinal(folder, text) if ordinal is None else ordinal


def find_ordinal(folder: str, holder: tuple[int, int]) -> int | None:
    """The ordinal that process ``holder`` (pid, start) has claimed, or None."""
    for ordinal in range(MAX_ORDINALS):
        numbers = read(os.path.join(folder, f"o{ordinal}"))
        if numbers is None:
            return None
        if numbers[:2] == holder:
            return ordinal
    return None


def next_ordinal(folder: str, text: str) -> int | None:
    """Take the lowest free ordinal, writing ``text`` into its claim."""
    for ordinal in range(MAX_ORDINALS):
        if _create(os.path.join(folder, f"o{ordinal}"), text):
            return ordinal
    return None


def has_rank(folder: str, rank: int) -> bool:
    """Whether any process of this slot has claimed ``rank``."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name.startswith("o") and rank_in(read(os.path.join(folder, name))) == rank for name in names)


def rank_in(numbers: tuple[int, ...] | None) -> int | None:
    """The rank that the numbers of a claim name, or None."""
    if numbers is None or len(numbers) <= _RANK_AT or numbers[_RANK_AT] < 0:
        return None
    return numbers[_RANK_AT]


def take(folder: str, ordinal: int, text: str) -> bool:
    """Take one ordinal; False when it is taken already or cannot be."""
    try:
        return _create(os.path.join(folder, f"o{ordinal}"), text)
    except OSError:
        return False


def text_of(*, pid: int, start: int, root: tuple[int, int], found: Mapping[str, Any], adopted: bool = False) -> str:
    """Text of a claim: pid, start, root, then identity, -1 where nobody said; one more number when the wrapper made it."""
    values = [-1 if found.get(name) is None else found[name] for name in IDENTITY]
    return " ".join([str(value) for value in (pid, start, root[0], root[1], *values)]) + (" 1\n" if adopted else "\n")
