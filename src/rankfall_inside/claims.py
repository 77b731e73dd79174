"""Decides whether a process with RANK is a rank, and assigns its ordinal.

Other processes, as DataLoader workers, inherit RANK. ``O_EXCL`` makes each claim unique:

``claims/o<ordinal>``: names the stream files; see :func:`text_of`.
``claims/r<root pid>-<root ticks>.<n>``: one live rank per topmost process with this RANK.
"""

from __future__ import annotations

import os

from rankfall_inside import identity, private_files, procfs, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

# More rank processes mean a start loop.
MAX_ORDINALS = 100_000
IDENTITY = ("rank", "local_rank", "group_rank", "world_size", "local_world_size", "restart_count")
_RANK_AT = 4
_ADOPTED_AT = 4 + len(IDENTITY)
_MAX_DEPTH = 64
_MAX_GENERATIONS = 1000


def find_root(pid: int, environ: Mapping[str, str], stop: int) -> tuple[int, int]:
    """Returns ``(pid, start_ticks)`` of the topmost ancestor below process ``stop`` with the same identity."""
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
    """Returns the numbers of a claim file; None if missing or damaged."""
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
    """Claims the rank of ``root`` and an ordinal (default: lowest free) in ``folder``.

    Returns:
        The ordinal; None if a live process already is this rank.

    Raises:
        OSError: Folder missing or not writable.
    """
    pid = untrusted.whole(text.split(None, 1)[0])
    for generation in range(_MAX_GENERATIONS):
        path = os.path.join(folder, f"r{root[0]}-{root[1]}.{generation}")
        if _create(path, text):
            break
        held = read(path) or ()
        if len(held) > _ADOPTED_AT:
            # The wrapper adopted it as a rank without hook.
            ordinal = find_ordinal(folder, root)
            if pid == root[0]:
                return ordinal
        elif len(held) > 1 and procfs.start_ticks(held[0]) == held[1]:
            # Such a shell has one live rank.
            return None
    return next_ordinal(folder, text) if ordinal is None else ordinal


def find_ordinal(folder: str, holder: tuple[int, int]) -> int | None:
    """Returns the ordinal that ``holder`` (pid, start) claimed, or None."""
    for ordinal in range(MAX_ORDINALS):
        numbers = read(os.path.join(folder, f"o{ordinal}"))
        if numbers is None:
            return None
        if numbers[:2] == holder:
            return ordinal
    return None


def next_ordinal(folder: str, text: str) -> int | None:
    """Claims the lowest free ordinal with ``text`` and returns it; None if none can be claimed."""
    for ordinal in range(MAX_ORDINALS):
        if _create(os.path.join(folder, f"o{ordinal}"), text):
            return ordinal
    return None


def has_rank(folder: str, rank: int) -> bool:
    """Returns True if a process of this slot has claimed ``rank``."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name.startswith("o") and rank_in(read(os.path.join(folder, name))) == rank for name in names)


def rank_in(numbers: tuple[int, ...] | None) -> int | None:
    """Returns the rank in a claim's numbers, or None."""
    if numbers is None or len(numbers) <= _RANK_AT or numbers[_RANK_AT] < 0:
        return None
    return numbers[_RANK_AT]


def take(folder: str, ordinal: int, text: str) -> bool:
    """Claims one ordinal; False if the claim exists or cannot be written."""
    try:
        return _create(os.path.join(folder, f"o{ordinal}"), text)
    except OSError:
        return False


def text_of(*, pid: int, start: int, root: tuple[int, int], found: Mapping[str, Any], adopted: bool = False) -> str:
    """Returns a claim's text: pid, start, root, identity (-1 = unknown), one more number from the wrapper."""
    values = [-1 if found.get(name) is None else found[name] for name in IDENTITY]
    return " ".join([str(value) for value in (pid, start, root[0], root[1], *values)]) + (" 1\n" if adopted else "\n")
