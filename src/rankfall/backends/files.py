"""A run's files and copies of them: a local folder or a workspace's volume.

A path outside the root is refused. A run without a volume has no files.
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
    """Access to a run's files."""

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Sends a tree to a path below the root."""
        ...

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Receives the file or folder at a path below the root."""
        ...


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Location of files, and the meaning of paths there.

    Attributes:
        open: Opens the files; finally removes temporary objects.
        root: Prefix of absolute paths, as users see it.
        start: Base of relative paths below the root.
        label: Name for users.
    """

    open: Callable[[], AbstractAsyncContextManager[Files]]
    root: bytes
    start: bytes
    label: str

    def below(self, path: bytes) -> bytes:
        """Converts a user's path to one below the root.

        Raises:
            UsageError: The path is outside.
        """
        if path.startswith(b"/"):
            root = self.root.rstrip(b"/") + b"/"
            if not (path.rstrip(b"/") + b"/").startswith(root):
                raise UsageError(
                    f"{printable(path)} is not on {self.label}",
                    hint=f"use a path that begins with {printable(self.root)}",
                )
            parts = path[len(root) :].split(b"/")
        else:
            parts = [*self.start.split(b"/"), *path.split(b"/")]
        if b".." in parts or b"\0" in path:
            raise UsageError(f"{printable(path)}: '..' is not followed there", hint="give the path without it")
        return b"/".join(part for part in parts if part not in {b"", b"."})


class LocalFiles:
    """Files in a local folder; paths outside it are refused."""

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root)

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Copies a tree into the folder.

        Raises:
            InfrastructureError: The folder is not writable.
        """
        return await asyncio.to_thread(self._put, tree, below)

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Copies a file or folder out of the folder.

        Raises:
            InfrastructureError: Source missing or not copyable.
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
    return InfrastructureError(str(error), hint="repair that and copy again; no incomplete file has a final name")


def across(tree: Tree, dest: bytes, *, alone: bool = False) -> Counts:
    """Copies a tree locally like a remote copy; ``alone`` = accessible to this user only.

    Raises:
        TransferError: The copy failed.
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
        # The sender knows the reason better.
        thread.join()
        first = failures[0] if failures else None
        if type(first) is TransferError:
            raise first from None
        raise
    finally:
        thread.join()


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a copy.

    Attributes:
        files: Number of files.
        sent: Transferred bytes.
        same: Number of files that the target already had.
    """

    files: int = 0
    sent: int = 0
    same: int = 0

    def and_(self, counts: Counts) -> Copied:
        """Sum of two results."""
        return Copied(files=self.files + counts.files, sent=self.sent + counts.sent, same=self.same + counts.same)


async def put(place: Place, sources: Sequence[Path], remote: str, *, exclude: Sequence[str] = ()) -> Copied:
    """Copies local files and folders to a place; merges folders.

    ``remote`` is a single source's new name. It is a folder if it exists or ends with a slash, or for several sources.

    Raises:
        NotFound: A source does not exist.
        UsageError: Path outside or uncopyable; nothing was sent.
        InfrastructureError: The copy failed.
    """
    trees = await asyncio.to_thread(_trees, place, sources, remote, exclude)
    found = Copied()
    async with place.open() as files:
        for tree, below in trees:
            found = found.and_(await files.put(tree, below))
    return found


async def get(place: Place, remote: str, local: Path, *, into: bool = False, exclude: Sequence[str] = ()) -> Copied:
    """Copies remote files to this machine; ``into`` keeps the file's name, inside ``local``.

    Raises:
        UsageError: The path is outside the root.
        InfrastructureError: Source missing or not copyable.
    """
    below = place.below(os.fsencode(remote))
    name = os.fsdecode(below.rpartition(b"/")[2])
    dest = local / name if into and name and not remote.endswith("/.") else local
    async with place.open() as files:
        return Copied().and_(await files.get(below, dest, exclude=exclude))


def _trees(place: Place, sources: Sequence[Path], remote: str, exclude: Sequence[str]) -> list[tuple[Tree, bytes]]:
    """Returns trees and targets; scans all before anything is sent."""
    into = len(sources) > 1 or _is_folder(remote)
    found = []
    for source in sources:
        if not os.path.lexists(source):
            raise NotFound(f"there is no {source}", hint="give a file or folder of this machine")
        try:
            tree = scan(os.fsencode(source), exclude=exclude)
        except TransferError as error:
            raise UsageError(str(error), hint="skip it with --exclude; nothing was sent") from None
        wanted = os.fsencode(remote) + (b"/" + tree.name if into else b"")
        found.append((tree, place.below(wanted)))
    return found


def _is_folder(path: str) -> bool:
    return path in {"", "."} or path.endswith(("/", "/."))


def place_of(run_dir: RunDir, *, say: Callable[[str], None], image: str | None = None) -> Place | None:
    """Place of a run's files; None without a volume. ``image`` None = the job's."""
    spec = run_dir.spec
    if not spec.writes_run_dir:
        from rankfall.backends.kubernetes.copy.workspace import place_of_run  # noqa: PLC0415

        return place_of_run(spec, run_dir.id, say=say, image=image)
    root = run_dir.path / CODE if spec.code_folders else Path(spec.cwd or "/")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Files]:
        yield LocalFiles(root)

    return Place(open=opened, root=os.fsencode(root), start=b"", label=f"the folder of run {run_dir.id}")
