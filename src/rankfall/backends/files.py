"""The files of a run and copies to and from them: a folder of this machine or a workspace's volume.

Paths are meant as the run's command sees them; a path that leads out of the root is refused. The run
directory says where a run's files are, so every process and user finds the same; a run without a volume has
none.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from rankfall.backends.payload import CODE
from rankfall.model import InfrastructureError, NotFound, UsageError
from rankfall.rundir import RunDir
from rankfall_inside.transfer.frames import Channel, TransferError, printable
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import Counts, send
from rankfall_inside.transfer.stdio import inside
from rankfall_inside.transfer.tree import Tree, scan


class Files(Protocol):
    """Where a run's files are."""

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Send a tree to a path below the root."""
        ...

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Receive what is at a path below the root."""
        ...


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Files that can be opened, and how paths are meant there.

    Attributes:
        open: gives the files; what must be made for that is gone when the block ends.
        root: the path that people see of its root; absolute paths lie below it.
        start: below the root: where relative paths begin.
        label: for people.
    """

    open: Callable[[], AbstractAsyncContextManager[Files]]
    root: bytes
    start: bytes
    label: str

    def below(self, path: bytes) -> bytes:
        """A path as a user gives it, below the root.

        Raises:
            UsageError: it leads out.
        """
        if path.startswith(b"/"):
            root = self.root.rstrip(b"/") + b"/"
            if not (path.rstrip(b"/") + b"/").startswith(root):
                raise UsageError(
                    f"{printable(path)} does not lie on {self.label}",
                    hint=f"paths there begin with {printable(self.root)}",
                )
            parts = path[len(root) :].split(b"/")
        else:
            parts = [*self.start.split(b"/"), *path.split(b"/")]
        if b".." in parts or b"\0" in path:
            raise UsageError(f"{printable(path)}: '..' is not followed there", hint="give the path without it")
        return b"/".join(part for part in parts if part not in {b"", b"."})


class LocalFiles:
    """A folder of this machine.

    Args:
        root: that nothing leaves.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Copy a tree into the folder.

        Raises:
            InfrastructureError: it cannot be written.
        """
        return await asyncio.to_thread(self._put, tree, below)

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Copy something out of the folder.

        Raises:
            InfrastructureError: it is not there, or cannot be copied.
        """
        return await asyncio.to_thread(self._get, below, dest, exclude)

    def _put(self, tree: Tree, below: bytes) -> Counts:
        try:
            return across(tree, inside(self._root, below))
        except TransferError as error:
            raise _failed(error) from None

    def _get(self, below: bytes, dest: Path, exclude: Sequence[str]) -> Counts:
        try:
            return across(scan(inside(self._root, below), exclude=exclude), os.fsencode(dest))
        except TransferError as error:
            raise _failed(error) from None


def _failed(error: TransferError) -> InfrastructureError:
    return InfrastructureError(str(error), hint="nothing half-copied bears its name; cure that and copy again")


def across(tree: Tree, dest: bytes, *, alone: bool = False) -> Counts:
    """Copy a tree on this machine as it would be copied to another: checked, each file whole or not at all.

    Args:
        tree: what is copied.
        dest: where its root goes.
        alone: the copy is for this user alone.

    Raises:
        TransferError: it cannot be.
    """
    one, two = socket.socketpair()
    failures: list[BaseException] = []

    def sender() -> None:
        with one, one.makefile("rb") as file:
            try:
                send(tree, Channel(file.read, one.sendall))
            except (TransferError, OSError) as error:
                failures.append(error)

    thread = threading.Thread(target=sender, name="rankfall-copy", daemon=True)
    thread.start()
    try:
        with two, two.makefile("rb") as file:
            return Receiver(Channel(file.read, two.sendall), dest, owner=f"local{os.getpid()}", alone=alone).run()
    except (TransferError, ConnectionError):
        # Who sends knows better why it ended, unless it only noticed that we had.
        thread.join()
        first = failures[0] if failures else None
        if type(first) is TransferError:
            raise first from None
        raise
    finally:
        thread.join()


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
        except TransferError as error:
            raise UsageError(str(error), hint="nothing was sent; --exclude leaves it out") from None
        wanted = os.fsencode(remote) + (b"/" + tree.name if into else b"")
        found.append((tree, place.below(wanted)))
    return found


def _is_folder(path: str) -> bool:
    """Whether a path says by its end that it is a folder to put things into."""
    return path in {"", "."} or path.endswith(("/", "/."))


def place_of(run_dir: RunDir, *, say: Callable[[str], None], image: str | None = None) -> Place | None:
    """Where a run's files are; None: it has no volume.

    Args:
        run_dir: of the run.
        say: takes lines for people while something is copied.
        image: of the pod that copies in a cluster; None = the job's.
    """
    spec = run_dir.spec
    if spec.backend != "local":
        from rankfall.backends.kubernetes.copy.workspace import place_of_run  # noqa: PLC0415 - runs of this machine need no client of Kubernetes

        return place_of_run(spec, run_dir.id, say=say, image=image)
    root = run_dir.path / CODE if spec.code_folders else Path(spec.cwd or "/")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Files]:
        yield LocalFiles(root)

    return Place(open=opened, root=os.fsencode(root), start=b"", label=f"the folder of run {run_dir.id}")
