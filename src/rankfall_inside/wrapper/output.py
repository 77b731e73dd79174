"""Moves bytes from pipes to streams, and runs the slot's log store.

While the console is full no pipe is read. An unusable log store is dropped.
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

# Seconds between gap records.
_GAPS_EVERY_S = 5.0


class _Pipe:
    __slots__ = ("kind", "name", "sink")

    def __init__(self, name: str, kind: str, sink: stream_files.Sink | stream_files.Tee | StoreSink) -> None:
        self.name = name
        self.kind = kind
        self.sink = sink


class Pump:
    """Reads all pipes of one slot; ``stream_dir`` "" = no stream files.

    ``prefix`` returns a stream's line prefix; ``store`` replaces the console for ranks.
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
        self._reported_at = 0.0
        # Prefixes multiply bytes that wait in memory.
        self._chunk = stream_files.CHUNK if stream_dir else stream_files.SMALL_CHUNK
        if console is not None:
            console.on_room = self._resume

    def add(self, fd: int, name: str, kind: str) -> None:
        """Reads ``fd`` as stream ``name`` (an ordinal or ``slot``), ``kind`` out or err."""
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
        """Reports finished gaps; rarely, so that reports do not refill a full disk."""
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
        """Reads the remaining data after all processes ended; False if the console must write first.

        A write side still open belongs to a foreign process.
        """
        for fd in list(self._pipes):
            while not self._full and self._read(fd):
                pass
            if self._full:
                return False
            if fd in self._pipes:
                self._close(fd)
        return True


# Seconds to wait for a stuck store.
_MOST_S = 60.0
_STEP_S = 0.25


def opened(root: str, environ: Mapping[str, str], notes: list[str]) -> LogStore | None:
    """Opens the log store below ``root``; None without one, or with a message if unusable."""
    if not root:
        return None
    store = LogStore(root, folder_name(environ), environ)
    refusal = store.refusal()
    if refusal:
        notes.append(f"lines of ranks remain on stdout: cannot write to {root}: {refusal}")
        say(notes[-1])
        return None
    return store


class LogStoreSession:
    """Log store of one slot, if any."""

    def __init__(self, store: LogStore | None, files: SlotFiles) -> None:
        self._store = store
        self._files = files
        self._reported_trouble = self._reported_lost = False

    def begin(self) -> dict[str, str]:
        """Logs the lines' destination; returns fields of the slot's start record."""
        if self._store is None:
            return {}
        say(f"lines of ranks go to the log store: {self._store.path}")
        return {"log_store": self._store.name}

    def watch(self) -> None:
        """Logs once that lines are lost, and once that they wait."""
        store = self._store
        if store is None:
            return
        if store.trouble and not self._reported_trouble:
            self._reported_trouble = True
            say(f"the log store {store.path} cannot be written: {store.trouble}; trying again")
        if store.lost and not self._reported_lost:
            self._reported_lost = True
            text = f"the log store {store.path} is too slow: lines of ranks are lost"
            say(text)
            self._files.write("gap", {"notes": [text]}, False)

    def finish(self, loop: Loop, hopeless: Callable[[], bool]) -> list[tuple[str, Gap]]:
        """Lets the store write its queue; returns stream and gap of each loss.

        ``hopeless`` returns True when the grace time is over.
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
