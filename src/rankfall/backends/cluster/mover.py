"""Copies trees to and from a volume in a cluster: through a pod of its own, over exec, going on where a cut left it.

The pod needs no tool but ``sh`` and a Python 3.8: what copies travels with the first bytes. A connection that is cut, or a pod that is lost, costs
time and nothing else; what is wrong with the files or the volume is said in the words of the side that saw it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from rankfall.backends.bundle import build_zip
from rankfall.backends.cluster import mover_pod
from rankfall.backends.cluster.mover_channel import ExecChannel, channel, in_thread
from rankfall.backends.cluster.mover_pod import BEAT, CONTAINER, SCRATCH, Say, Volume
from rankfall.kube.client import Kube
from rankfall.kube.errors import ObjectNotFound, ServerError, Unreachable
from rankfall.kube.exec_errors import ExecFailed, ExecLost
from rankfall.kube.secret import excerpt
from rankfall.model import InfrastructureError
from rankfall_inside.carry_frames import CarryError, CutError
from rankfall_inside.carry_receive import Receiver
from rankfall_inside.carry_send import Counts, send
from rankfall_inside.carry_tree import Tree

_T = TypeVar("_T")
# Cuts in a row without a byte between them.
_MOST_CUTS: Final = 5
_PAUSE_S: Final = 0.5
_NO_PYTHON: Final = 96
# The zip comes first on stdin; $0 is what reads it. A Python without zlib could not open it.
_LOADER: Final = f"""\
import os, sys
data = sys.stdin.buffer.read(int(sys.argv[1]))
path = "{SCRATCH}/carry-%d.zip" % os.getpid()
with open(path, "wb") as file:
    file.write(data)
sys.path.insert(0, path)
from rankfall_inside import carry
sys.exit(carry.main(sys.argv[2:]))
"""
_FIND: Final = f"""\
for python in "$1" python3 python; do
  [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
  "$python" -I -S -c 'import sys, zlib; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 || continue
  shift
  exec "$python" -I -S -c "$0" "$@"
done
exit {_NO_PYTHON}
"""


class Mover:
    """Copies through one pod, and through another one when that is lost.

    Args:
        kube: an open client.
        volume: that is copied to and from.
        say: takes lines for people.
    """

    def __init__(self, kube: Kube, volume: Volume, *, say: Say) -> None:
        self._kube, self._volume, self._say = kube, volume, say
        self._zip = build_zip()
        self._held = AsyncExitStack()
        self._pod: str | None = None

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Send a tree to a path below the volume's root; what is there already is not sent again.

        Raises:
            InfrastructureError: it cannot be done; in the words of whoever saw why.
        """
        words = ("receive", owner_of(tree, below), os.fsencode(self._volume.path).hex(), below.hex(), BEAT)
        return await self._carried(words, lambda made: send(tree, made))

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Receive what is at a path below the volume's root.

        Raises:
            InfrastructureError: it cannot be done.
        """
        place = os.path.abspath(os.fsencode(dest))  # noqa: PTH100, ASYNC240 - any bytes; looks at nothing but the current folder
        owner = hashlib.sha256(b"\0".join((b"get", os.fsencode(self._volume.claim), below, place))).hexdigest()[:12]
        patterns = [os.fsencode(pattern).hex() for pattern in exclude]
        words = ("send", owner, os.fsencode(self._volume.path).hex(), below.hex(), BEAT, *patterns)
        return await self._carried(words, lambda made: Receiver(made, place, owner=owner).run())

    async def close(self) -> None:
        """End the pod, if there is one."""
        self._pod = None
        await self._held.aclose()

    async def _carried(self, words: Sequence[str], work: Callable[[ExecChannel], _T]) -> _T:
        cuts = 0
        while True:
            if self._pod is None:
                self._pod = await self._held.enter_async_context(
                    mover_pod.running(self._kube, self._volume, say=self._say)
                )
            moved, why, found = await self._once(self._pod, words, work)
            if found is not None:
                return found
            cuts = 1 if moved else cuts + 1
            if cuts > _MOST_CUTS:
                raise InfrastructureError(
                    f"the copy was cut {cuts} times in a row: {why}", hint="the same again goes on where it stopped"
                )
            self._say(f"the copy was cut and goes on: {why}")
            await asyncio.sleep(_PAUSE_S * 2**cuts)
            if not await self._alive(self._pod):
                await self.close()

    async def _once(
        self, pod: str, words: Sequence[str], work: Callable[[ExecChannel], _T]
    ) -> tuple[int, str, _T | None]:
        """One session: bytes that travelled, why it was cut, and what came of it when it was not."""
        argv = ["sh", "-c", _FIND, _LOADER, self._volume.python or "", str(len(self._zip)), *words]
        made: ExecChannel | None = None
        try:
            opened = channel(
                self._kube,
                pod,
                argv,
                container=CONTAINER,
                namespace=self._volume.namespace,
            )
            async with opened as made:
                return made.moved, "", await in_thread(lambda: self._work(made, work), made)
        except CutError as error:
            self._complain(made)
            return (made.moved if made else 0), str(error), None
        except CarryError as error:
            raise InfrastructureError(
                str(error), hint="nothing half-copied bears its name; the same again goes on"
            ) from None
        except (ExecLost, ExecFailed, Unreachable, ServerError, ObjectNotFound) as error:
            return (made.moved if made else 0), error.message, None

    def _work(self, made: ExecChannel, work: Callable[[ExecChannel], _T]) -> _T:
        made.send_raw(self._zip)
        return work(made)

    def _complain(self, made: ExecChannel | None) -> None:
        """A command that ended by itself and did not come to speak our language.

        Raises:
            InfrastructureError: its words.
        """
        if made is None or not made.code:
            return
        if made.code == _NO_PYTHON:
            raise InfrastructureError(
                f"image {self._volume.image} has no Python 3.8 or newer, which copies files",
                hint="name an image that has one in kubernetes.workspace.image (cp: --image)",
            )
        if made.stderr:
            said = excerpt(made.stderr.decode("utf-8", "replace"))
            raise InfrastructureError(f"the copy ended with code {made.code}: {said}", hint="try another image")

    async def _alive(self, pod: str) -> bool:
        try:
            return await mover_pod.alive(self._kube, pod, namespace=self._volume.namespace)
        except (Unreachable, ServerError):
            return True


def owner_of(tree: Tree, below: bytes) -> str:
    """Whose halves of files a transfer goes on with: the same machine's, of the same source, for the same place."""
    parts = (os.fsencode(socket.gethostname()), *tree.places[:1], below)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@asynccontextmanager
async def mover(kube: Kube, volume: Volume, *, say: Say) -> AsyncIterator[Mover]:
    """A mover whose pod is gone when the block ends, however it ends."""
    made = Mover(kube, volume, say=say)
    try:
        yield made
    finally:
        await made.close()
