"""Moves bytes from pipes to streams inside the wrapper's loop, and accounts for what could not be stored.

While the console has enough to write no pipe is read: its slow reader then slows the job, as it would without us.
"""

from __future__ import annotations

import os
import time

from rankfall_inside import streams
from rankfall_inside.console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from rankfall_inside.loop import Loop
    from rankfall_inside.store import LogStore, StoreSink

# Between two records about gaps of a job that goes on, seconds.
_GAPS_EVERY_S = 5.0


class _Pipe:
    __slots__ = ("kind", "name", "sink")

    def __init__(self, name: str, kind: str, sink: streams.Sink | streams.Tee | StoreSink) -> None:
        self.name = name
        self.kind = kind
        self.sink = sink


class Pump:
    """All pipes of one slot.

    Args:
        loop: the wrapper's loop.
        stream_dir: where ``<name>.<out|err>.log`` and ``.idx`` go; "" when nothing is stored.
        console: copies whole lines with a prefix, or None.
        prefix: asked for the prefix of a stream's lines by the stream's name (an ordinal, or ``slot``).
        store: takes the streams of ranks, which then are on no console, or None.
        on_gap: told of the gaps of a stream when storing has gone on for a while, and at its end: ``on_gap(stream, gaps)``.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        stream_dir: str,
        console: Console | None,
        prefix: Callable[[str], bytes],
        store: LogStore | None = None,
        on_gap: Callable[[str, list[streams.Gap]], None],
    ) -> None:
        self._loop = loop
        self._stream_dir = stream_dir
        self._console = console
        self._prefix = prefix
        self._on_gap = on_gap
        self._store = store
        self._pipes: dict[int, _Pipe] = {}
        # When gaps were told last, on the monotonic clock.
        self._told = 0.0
        # A byte may become many with its prefix: less at once where all of it waits in memory.
        self._chunk = streams.CHUNK if stream_dir else streams.SMALL_CHUNK
        if console is not None:
            console.on_room = self._resume

    def add(self, fd: int, name: str, kind: str) -> None:
        """Take over the read side ``fd`` as stream ``name`` (an ordinal, or ``slot``), ``kind`` out or err."""
        streams.grow(fd)
        os.set_blocking(fd, False)
        stream = f"{name}.{kind}"
        if self._store is not None and name.isdigit():
            self._attach(fd, _Pipe(name, kind, self._store.sink(stream)))
            return
        tee = None if self._console is None else self._console.tee(stream, lambda: self._prefix(name))
        sink: streams.Sink | streams.Tee
        sink = streams.Sink(os.path.join(self._stream_dir, stream), tee=tee) if self._stream_dir else streams.Tee(tee)
        self._attach(fd, _Pipe(name, kind, sink))

    def _attach(self, fd: int, pipe: _Pipe) -> None:
        self._pipes[fd] = pipe
        self._loop.watch(fd, lambda: self._read(fd))
        if self._full:
            self._loop.pause(fd)

    @property
    def _full(self) -> bool:
        return self._console is not None and self._console.full

    def _resume(self) -> None:
        for fd in self._pipes:
            self._loop.resume(fd)

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, self._chunk)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(fd)
            return False
        self._pipes[fd].sink.write(data)
        if self._full:
            for one in self._pipes:
                self._loop.pause(one)
        return True

    def tell_gaps(self) -> None:
        """Tell the gaps that are over; seldom, so that a disk that is full again and again is not filled with them."""
        now = time.monotonic()
        if now - self._told < _GAPS_EVERY_S:
            return
        for pipe in self._pipes.values():
            gaps = pipe.sink.take_gaps()
            if gaps:
                self._told = now
                self._on_gap(f"{pipe.name}.{pipe.kind}", gaps)

    def _close(self, fd: int) -> None:
        pipe = self._pipes.pop(fd)
        self._loop.unwatch(fd)
        pipe.sink.close()
        stream = f"{pipe.name}.{pipe.kind}"
        if self._console is not None:
            self._console.finish(stream, self._prefix(pipe.name))
        if pipe.sink.gaps:
            self._on_gap(stream, pipe.sink.gaps)

    def drain(self) -> bool:
        """Read what is left; False when the console must write first. Called when nobody of the slot lives.

        A write side that is still open then belongs to a stranger.
        """
        for fd in list(self._pipes):
            while not self._full and self._read(fd):
                pass
            if self._full:
                return False
            if fd in self._pipes:
                self._close(fd)
        return True
