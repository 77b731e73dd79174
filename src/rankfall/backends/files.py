"""Files that trees go to and come from, by paths as the run's command sees them; a path that leads out of there is refused. Those of this machine.

A cluster's are behind ``cluster/workspace.py``; which a run has, ``places.py`` says.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from rankfall.model import InfrastructureError, UsageError
from rankfall_inside.carry import inside
from rankfall_inside.carry_frames import CarryError, Channel, shown
from rankfall_inside.carry_receive import Receiver
from rankfall_inside.carry_send import Counts, send
from rankfall_inside.carry_tree import Tree, scan


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
        shown: for people.
    """

    open: Callable[[], AbstractAsyncContextManager[Files]]
    root: bytes
    start: bytes
    shown: str

    def below(self, path: bytes) -> bytes:
        """A path as a user gives it, below the root.

        Raises:
            UsageError: it leads out.
        """
        if path.startswith(b"/"):
            root = self.root.rstrip(b"/") + b"/"
            if not (path.rstrip(b"/") + b"/").startswith(root):
                raise UsageError(
                    f"{shown(path)} does not lie on {self.shown}", hint=f"paths there begin with {shown(self.root)}"
                )
            parts = path[len(root) :].split(b"/")
        else:
            parts = [*self.start.split(b"/"), *path.split(b"/")]
        if b".." in parts or b"\0" in path:
            raise UsageError(f"{shown(path)}: '..' is not followed there", hint="give the path without it")
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
        except CarryError as error:
            raise _failed(error) from None

    def _get(self, below: bytes, dest: Path, exclude: Sequence[str]) -> Counts:
        try:
            return across(scan(inside(self._root, below), exclude=exclude), os.fsencode(dest))
        except CarryError as error:
            raise _failed(error) from None


def _failed(error: CarryError) -> InfrastructureError:
    return InfrastructureError(str(error), hint="nothing half-copied bears its name; cure that and copy again")


def across(tree: Tree, dest: bytes, *, alone: bool = False) -> Counts:
    """Copy a tree on this machine as it would be copied to another: checked, each file whole or not at all.

    Args:
        tree: what is copied.
        dest: where its root goes.
        alone: the copy is for this user alone.

    Raises:
        CarryError: it cannot be.
    """
    one, two = socket.socketpair()
    failures: list[BaseException] = []

    def sender() -> None:
        with one, one.makefile("rb") as file:
            try:
                send(tree, Channel(file.read, one.sendall))
            except (CarryError, OSError) as error:
                failures.append(error)

    thread = threading.Thread(target=sender, name="rankfall-copy", daemon=True)
    thread.start()
    try:
        with two, two.makefile("rb") as file:
            return Receiver(Channel(file.read, two.sendall), dest, owner=f"local{os.getpid()}", alone=alone).run()
    except (CarryError, ConnectionError):
        # Who sends knows better why it ended, unless it only noticed that we had.
        thread.join()
        first = failures[0] if failures else None
        if type(first) is CarryError:
            raise first from None
        raise
    finally:
        thread.join()
