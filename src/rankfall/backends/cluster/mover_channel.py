"""Frames of a transfer over an exec: a thread that reads and writes files on one side, one websocket on the other.

Never more than a few megabytes wait here. A side that is silent for long counts as gone, and the session as cut, which can be gone on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.exec import Exec, open_exec
from rankfall_inside import carry_frames as frames
from rankfall_inside.carry_frames import Channel, CutError

_T = TypeVar("_T")
_PING_S: Final = 5.0
# The other side answers a ping only while it is not writing to a slow volume; twelve of them are more than slowness.
_SILENT_S: Final = 60.0
_MOST_WAITING: Final = 8 << 20
_STDERR: Final = 2000


class ExecChannel(Channel):
    """The thread's end.

    Args:
        session: of the command.
        loop: in which it lives.

    Attributes:
        moved: bytes of files that travelled.
        stderr: the end of what the command said there.
    """

    def __init__(self, session: Exec, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self._take, self._give, tick=self._look)
        self.moved = 0
        self.stderr = b""
        self._session, self._loop = session, loop
        self._buffer: deque[bytes] = deque()
        self._waiting = 0
        self._over = False
        self._news = threading.Condition()
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._heard = time.monotonic()

    def close(self) -> None:
        """Nothing more comes, and nothing more is taken."""
        with self._news:
            self._over = True
            self._news.notify_all()

    @property
    def code(self) -> int | None:
        """What the command ended with; None while it has not, or when nobody knows."""
        return self._session.code

    # -- in the thread

    def put(self, kind: bytes, body: bytes = b"") -> None:
        """Write one frame."""
        super().put(kind, body)
        self.moved += len(body) if kind == frames.DATA else 0

    def get(self) -> tuple[bytes, bytes]:
        """The next frame that is no ping."""
        kind, body = super().get()
        self.moved += len(body) if kind == frames.DATA else 0
        return kind, body

    def send_raw(self, data: bytes) -> None:
        """What comes before all frames."""
        self._give(data)

    def _take(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            with self._news:
                while not self._buffer and not self._over:
                    self._news.wait()
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
            raise CutError(error.message) from None

    def _look(self) -> None:
        if self._over and not self._buffer:
            raise CutError("the connection ended before all was there")

    def last_words(self) -> None:
        """When the other side said why it ends, say that.

        Raises:
            CarryError: its words.
        """
        with contextlib.suppress(CutError):
            while True:
                self.get()

    # -- in the loop

    async def serve(self) -> None:
        """Take what comes until the command ends or its connection does."""
        try:
            async for name, data in self._session.output():
                self._heard = time.monotonic()
                if name == "stderr":
                    self.stderr = (self.stderr + data)[-_STDERR:]
                    continue
                with self._news:
                    self._buffer.append(data)
                    self._waiting += len(data)
                    self._news.notify_all()
                while self._waiting > _MOST_WAITING:
                    self._room.clear()
                    await self._room.wait()
                    self._heard = time.monotonic()
        except KubeError:
            return
        finally:
            self.close()

    async def keep(self) -> None:
        """Say now and then that this side lives, and give the other up when it does not."""
        while True:
            await asyncio.sleep(_PING_S)
            if time.monotonic() - self._heard > _SILENT_S and not self._waiting:
                self._session.abandon()
            if self._turn.locked():
                # What is being sent is sign enough, and may itself wait for a side that is gone.
                continue
            try:
                await self._send(frames.frame(frames.PING))
            except KubeError:
                return

    async def _send(self, data: bytes) -> None:
        async with self._turn:
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
    """A command in a pod and the channel to it; the connection ends with the block."""
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
    """Do blocking work over a channel; a caller that is cancelled leaves no thread behind that still waits."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        made.close()
        raise
