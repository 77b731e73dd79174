"""Copies trees to and from a volume through a copy pod, resumed after cuts.

The pod needs only ``sh`` and Python 3.8; the code is sent first.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from rankfall.backends.kubernetes.copy import copy_pod
from rankfall.backends.kubernetes.copy.copy_pod import CONTAINER, KEEP_ALIVE_FILE, SCRATCH, Say, Volume
from rankfall.backends.payload import build_zip
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError, ObjectNotFound, ServerError, Unreachable
from rankfall.kube.exec.protocol import ExecFailed, ExecLost
from rankfall.kube.exec.session import Exec, open_exec
from rankfall.kube.secret import excerpt
from rankfall.model import InfrastructureError
from rankfall_inside.transfer import frames
from rankfall_inside.transfer.frames import Channel, TransferError, TransferInterruptedError
from rankfall_inside.transfer.receive import Receiver
from rankfall_inside.transfer.send import Counts, send
from rankfall_inside.transfer.tree import Tree

_T = TypeVar("_T")
_PING_S: Final = 5.0
# Seconds: twelve lost pings, more than a slow volume's delay.
_SILENT_S: Final = 60.0
_MOST_WAITING: Final = 8 << 20
_STDERR: Final = 2000


class ExecChannel(Channel):
    """Channel between a working thread and a command in a pod.

    Attributes:
        moved: Transferred bytes of files.
        stderr: Last bytes of the command's stderr.
    """

    def __init__(self, session: Exec, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self._take, self._give, tick=self._look)
        self.moved = 0
        self.stderr = b""
        self._session, self._loop = session, loop
        self._buffer: deque[bytes] = deque()
        self._waiting = 0
        self._over = False
        self._changed = threading.Condition()
        self._room = asyncio.Event()
        self._send_lock = asyncio.Lock()
        self._heard = time.monotonic()

    def close(self) -> None:
        """Ends the channel in both directions."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def code(self) -> int | None:
        """Exit code of the command; None if unknown."""
        return self._session.code

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Writes one frame."""
        super().put(kind, body)
        self.moved += len(body) if kind == frames.DATA else 0

    def get(self) -> tuple[bytes, bytes]:
        """Next frame that is not a ping."""
        kind, body = super().get()
        self.moved += len(body) if kind == frames.DATA else 0
        return kind, body

    def send_raw(self, data: bytes) -> None:
        """Sends data that precedes all frames."""
        self._give(data)

    def _take(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            with self._changed:
                while not self._buffer and not self._over:
                    self._changed.wait()
                if not self._buffer:
                    break
                data = self._buffer.popleft()
                if len(data) > size:
                    self._buffer.appendleft(data[size:])
                    data = data[:size]
                self._waiting -= len(data)
            parts.append(data)
            size -= len(data)
            self._loop.call_soon_threadsafe(self._room.set)
        return b"".join(parts)

    def _give(self, data: bytes) -> None:
        self._look()
        try:
            asyncio.run_coroutine_threadsafe(self._send(data), self._loop).result()
        except KubeError as error:
            self.last_words()
            raise TransferInterruptedError(error.message) from None

    def _look(self) -> None:
        if self._over and not self._buffer:
            raise TransferInterruptedError("the connection ended before the copy was complete")

    def last_words(self) -> None:
        """Raises the other side's last error, if any.

        Raises:
            TransferError: The received error.
        """
        with contextlib.suppress(TransferInterruptedError):
            while True:
                self.get()

    async def serve(self) -> None:
        """Receives output until the command or its connection ends."""
        try:
            async for name, data in self._session.output():
                self._heard = time.monotonic()
                if name == "stderr":
                    self.stderr = (self.stderr + data)[-_STDERR:]
                    continue
                with self._changed:
                    self._buffer.append(data)
                    self._waiting += len(data)
                    self._changed.notify_all()
                while self._waiting > _MOST_WAITING:
                    self._room.clear()
                    await self._room.wait()
                    self._heard = time.monotonic()
        except KubeError:
            return
        finally:
            self.close()

    async def keep(self) -> None:
        """Sends pings; ends the channel if the pod sends nothing for too long."""
        while True:
            await asyncio.sleep(_PING_S)
            if time.monotonic() - self._heard > _SILENT_S and not self._waiting:
                self._session.abandon()
            if self._send_lock.locked():
                # A send may itself wait for a dead side.
                continue
            try:
                await self._send(frames.frame(frames.PING))
            except KubeError:
                return

    async def _send(self, data: bytes) -> None:
        async with self._send_lock:
            await self._session.write(data)


@contextlib.asynccontextmanager
async def channel(
    kube: Kube,
    pod: str,
    argv: Sequence[str],
    *,
    container: str,
    namespace: str,
) -> AsyncIterator[ExecChannel]:
    """Runs a command in a pod; yields its channel."""
    opened = open_exec(kube, pod, argv, container=container, namespace=namespace, stdin=True, timeout=None)
    async with opened as session:
        made = ExecChannel(session, loop=asyncio.get_running_loop())
        tasks = [asyncio.create_task(made.serve()), asyncio.create_task(made.keep())]
        try:
            yield made
        finally:
            session.abandon()
            made.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(work: Callable[[], _T], made: ExecChannel) -> _T:
    """Runs blocking work in a thread, which also ends with a canceled caller."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        made.close()
        raise


# Most consecutive cuts without progress.
_MOST_CUTS: Final = 5
_PAUSE_S: Final = 0.5
_NO_PYTHON: Final = 96
# The zip comes first on stdin.
_LOADER: Final = f"""\
import os, sys
data = sys.stdin.buffer.read(int(sys.argv[1]))
path = "{SCRATCH}/carry-%d.zip" % os.getpid()
with open(path, "wb") as file:
    file.write(data)
sys.path.insert(0, path)
from rankfall_inside.transfer import stdio
sys.exit(stdio.main(sys.argv[2:]))
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


class VolumeCopier:
    """Copies through one copy pod; starts a new pod if that one is lost."""

    def __init__(self, kube: Kube, volume: Volume, *, say: Say) -> None:
        self._kube, self._volume, self._say = kube, volume, say
        self._zip = build_zip()
        self._held = AsyncExitStack()
        self._pod: str | None = None

    async def put(self, tree: Tree, below: bytes) -> Counts:
        """Sends a tree below the volume's root, except existing files.

        Raises:
            InfrastructureError: The copy failed.
        """
        words = ("receive", owner_of(tree, below), os.fsencode(self._volume.path).hex(), below.hex(), KEEP_ALIVE_FILE)
        return await self._carried(words, lambda made: send(tree, made))

    async def get(self, below: bytes, dest: Path, *, exclude: Sequence[str] = ()) -> Counts:
        """Receives a file or folder from below the volume's root.

        Raises:
            InfrastructureError: The copy failed.
        """
        place = os.path.abspath(os.fsencode(dest))  # noqa: PTH100, ASYNC240 - reads only the cwd
        owner = hashlib.sha256(b"\0".join((b"get", os.fsencode(self._volume.claim), below, place))).hexdigest()[:12]
        patterns = [os.fsencode(pattern).hex() for pattern in exclude]
        words = ("send", owner, os.fsencode(self._volume.path).hex(), below.hex(), KEEP_ALIVE_FILE, *patterns)
        return await self._carried(words, lambda made: Receiver(made, place, owner=owner).run())

    async def close(self) -> None:
        """Ends the pod, if any."""
        self._pod = None
        await self._held.aclose()

    async def _carried(self, words: Sequence[str], work: Callable[[ExecChannel], _T]) -> _T:
        cuts = 0
        while True:
            if self._pod is None:
                self._pod = await self._held.enter_async_context(
                    copy_pod.running(self._kube, self._volume, say=self._say)
                )
            moved, why, found = await self._once(self._pod, words, work)
            if found is not None:
                return found
            cuts = 1 if moved else cuts + 1
            if cuts > _MOST_CUTS:
                raise InfrastructureError(
                    f"the copy was cut {cuts} times in a row: {why}", hint="run the same command again: it resumes"
                )
            self._say(f"the copy was cut and resumes: {why}")
            await asyncio.sleep(_PAUSE_S * 2**cuts)
            if not await self._alive(self._pod):
                await self.close()

    async def _once(
        self, pod: str, words: Sequence[str], work: Callable[[ExecChannel], _T]
    ) -> tuple[int, str, _T | None]:
        """Runs one session; returns transferred bytes, the reason of a broken session or "", and its result or None."""
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
        except TransferInterruptedError as error:
            self._complain(made)
            return (made.moved if made else 0), str(error), None
        except TransferError as error:
            raise InfrastructureError(
                str(error), hint="run the same command again: it resumes, and no incomplete file has a final name"
            ) from None
        except (ExecLost, ExecFailed, Unreachable, ServerError, ObjectNotFound) as error:
            return (made.moved if made else 0), error.message, None

    def _work(self, made: ExecChannel, work: Callable[[ExecChannel], _T]) -> _T:
        made.send_raw(self._zip)
        return work(made)

    def _complain(self, made: ExecChannel | None) -> None:
        """Raises the error of a command that sent no valid frame.

        Raises:
            InfrastructureError: Names the exit code or stderr.
        """
        if made is None or not made.code:
            return
        if made.code == _NO_PYTHON:
            raise InfrastructureError(
                f"image {self._volume.image} has no Python 3.8 or newer, which is needed to copy files",
                hint="name an image with one in kubernetes.workspace.image (cp: --image)",
            )
        if made.stderr:
            text = excerpt(made.stderr.decode("utf-8", "replace"))
            raise InfrastructureError(f"the copy ended with code {made.code}: {text}", hint="try another image")

    async def _alive(self, pod: str) -> bool:
        try:
            return await copy_pod.alive(self._kube, pod, namespace=self._volume.namespace)
        except (Unreachable, ServerError):
            return True


def owner_of(tree: Tree, below: bytes) -> str:
    """Returns a name for partial files, from machine, source and target."""
    parts = (os.fsencode(socket.gethostname()), *tree.places[:1], below)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@asynccontextmanager
async def copy_pod_of(kube: Kube, volume: Volume, *, say: Say) -> AsyncIterator[VolumeCopier]:
    """Yields a copier; always removes its pod."""
    made = VolumeCopier(kube, volume, say=say)
    try:
        yield made
    finally:
        await made.close()
