"""Moves bytes from pipes to stored streams in the wrapper's loop, and runs the slot's log store.

While the console has enough to write no pipe is read: a slow reader slows the job, as it would without the
wrapper. Bytes that could not be stored are counted. Lines in a slow log are better than none, so a log store
that can take nothing is dropped.
"""

from __future__ import annotations

import os
import time

from rankfall_inside.delivery import stream_files
from rankfall_inside.delivery.console import Console
from rankfall_inside.delivery.log_store import LogStore, folder_name
from rankfall_inside.wrapper.options import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from rankfall_inside.delivery.log_store import StoreSink
    from rankfall_inside.delivery.stream_files import Gap
    from rankfall_inside.event_loop import Loop
    from rankfall_inside.wrapper.slot_files import SlotFiles

# Between two records about gaps of a job that goes on, seconds.
_GAPS_EVERY_S = 5.0


class _Pipe:
    __slots__ = ("kind", "name", "sink")

    def __init__(self, name: str, kind: str, sink: stream_files.Sink | stream_files.Tee | StoreSink) -> None:
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
        on_gap: Callable[[str, list[stream_files.Gap]], None],
    ) -> None:
        self._loop = loop
        self._stream_dir = stream_dir
        self._console = console
        self._prefix = prefix
        self._on_gap = on_gap
        self._store = store
        self._pipes: dict[int, _Pipe] = {}
        # When gaps were told last, on the monotonic clock.
        self._reported_at = 0.0
        # A byte may become many with its prefix: less at once where all of it waits in memory.
        self._chunk = stream_files.CHUNK if stream_dir else stream_files.SMALL_CHUNK
        if console is not None:
            console.on_room = self._resume

    def add(self, fd: int, name: str, kind: str) -> None:
        """Take over the read side ``fd`` as stream ``name`` (an ordinal, or ``slot``), ``kind`` out or err."""
        stream_files.grow(fd)
        os.set_blocking(fd, False)
        stream = f"{name}.{kind}"
        if self._store is not None and name.isdigit():
            self._attach(fd, _Pipe(name, kind, self._store.sink(stream)))
            return
        tee = None if self._console is None else self._console.tee(stream, lambda: self._prefix(name))
        sink: stream_files.Sink | stream_files.Tee
        sink = (
            stream_files.Sink(os.path.join(self._stream_dir, stream), tee=tee)
            if self._stream_dir
            else stream_files.Tee(tee)
        )
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
        if now - self._reported_at < _GAPS_EVERY_S:
            return
        for pipe in self._pipes.values():
            gaps = pipe.sink.take_gaps()
            if gaps:
                self._reported_at = now
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


# How long the end waits for a store that takes nothing any more.
_MOST_S = 60.0
_STEP_S = 0.25


def opened(root: str, environ: Mapping[str, str], notes: list[str]) -> LogStore | None:
    """The log store below ``root``; None where there is none, or it can take nothing: that is said and noted."""
    if not root:
        return None
    store = LogStore(root, folder_name(environ), environ)
    refusal = store.refusal()
    if refusal:
        notes.append(f"lines of ranks stay on stdout: nothing can be stored in {root}: {refusal}")
        say(notes[-1])
        return None
    return store


class LogStoreSession:
    """One slot's log store.

    Args:
        store: None where there is none.
        files: of the slot; takes what is lost.
    """

    def __init__(self, store: LogStore | None, files: SlotFiles) -> None:
        self._store = store
        self._files = files
        self._reported_trouble = self._reported_lost = False

    def begin(self) -> dict[str, str]:
        """Say where lines go; fields of the slot's start record."""
        if self._store is None:
            return {}
        say(f"lines of ranks go to the log store: {self._store.path}")
        return {"log_store": self._store.name}

    def watch(self) -> None:
        """Say once, where people look, that lines are lost, or that they wait."""
        store = self._store
        if store is None:
            return
        if store.trouble and not self._reported_trouble:
            self._reported_trouble = True
            say(f"the log store {store.path} takes nothing: {store.trouble}; it is tried again")
        if store.lost and not self._reported_lost:
            self._reported_lost = True
            text = f"the log store {store.path} is too slow: lines of ranks are lost"
            say(text)
            self._files.write("gap", {"notes": [text]}, False)

    def finish(self, loop: Loop, hopeless: Callable[[], bool]) -> list[tuple[str, Gap]]:
        """Let the store write what it has.

        Args:
            loop: of the wrapper; serves others meanwhile.
            hopeless: whether somebody wants the end, and the time for it is over.

        Returns:
            Stream and size of each gap.
        """
        store = self._store
        if store is None:
            return []
        began = time.monotonic()
        while True:
            gaps = store.finish(_STEP_S)
            if store.done or hopeless() or time.monotonic() - began > _MOST_S:
                break
            loop.run_once(0.0)
        if not store.done:
            store.give_up()
            gaps = store.finish(0.0)
        self.watch()
        return gaps
