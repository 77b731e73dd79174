"""Copies between this machine and where a run's files are: which path becomes which name, and what came of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rankfall.backends.files import Place
from rankfall.model import NotFound, UsageError
from rankfall_inside.carry_frames import CarryError
from rankfall_inside.carry_send import Counts
from rankfall_inside.carry_tree import Tree, scan


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy did.

    Attributes:
        files: in all.
        sent: bytes that travelled.
        same: files that were there already.
    """

    files: int = 0
    sent: int = 0
    same: int = 0

    def and_(self, counts: Counts) -> Copied:
        """Both together."""
        return Copied(files=self.files + counts.files, sent=self.sent + counts.sent, same=self.same + counts.same)


async def put(place: Place, sources: Sequence[Path], remote: str, *, exclude: Sequence[str] = ()) -> Copied:
    """Copy files and folders of this machine there.

    ``remote`` becomes the name of the one source; where it ends with a slash, and with several sources, they go into it by their own names. A
    single file also goes into a folder that is there; a folder is laid over one that is there.

    Raises:
        NotFound: a source does not exist.
        UsageError: a path leads out, or a source holds what cannot be copied; nothing was sent.
        InfrastructureError: it cannot be done.
    """
    trees = await asyncio.to_thread(_trees, place, sources, remote, exclude)
    found = Copied()
    async with place.open() as files:
        for tree, below in trees:
            found = found.and_(await files.put(tree, below))
    return found


async def get(place: Place, remote: str, local: Path, *, into: bool = False, exclude: Sequence[str] = ()) -> Copied:
    """Copy what is there to this machine.

    Args:
        place: where it is.
        remote: its path there.
        local: its name here; an existing folder takes a single file.
        into: put it into ``local`` by its own name.
        exclude: patterns of what is left out.

    Raises:
        UsageError: the path leads out.
        InfrastructureError: it is not there, or cannot be copied.
    """
    below = place.below(os.fsencode(remote))
    name = os.fsdecode(below.rpartition(b"/")[2])
    dest = local / name if into and name and not remote.endswith("/.") else local
    async with place.open() as files:
        return Copied().and_(await files.get(below, dest, exclude=exclude))


def _trees(place: Place, sources: Sequence[Path], remote: str, exclude: Sequence[str]) -> list[tuple[Tree, bytes]]:
    """What is to be sent, and where to; all of it is looked at before anything is sent."""
    into = len(sources) > 1 or _is_folder(remote)
    found = []
    for source in sources:
        if not os.path.lexists(source):
            raise NotFound(f"there is no {source}", hint="give a file or folder of this machine")
        try:
            tree = scan(os.fsencode(source), exclude=exclude)
        except CarryError as error:
            raise UsageError(str(error), hint="nothing was sent; --exclude leaves it out") from None
        wanted = os.fsencode(remote) + (b"/" + tree.name if into else b"")
        found.append((tree, place.below(wanted)))
    return found


def _is_folder(path: str) -> bool:
    """Whether a path says by its end that it is a folder to put things into."""
    return path in {"", "."} or path.endswith(("/", "/."))
