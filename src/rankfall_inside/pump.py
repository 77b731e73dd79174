"""Moves bytes from pipes to streams inside the wrapper's loop, and accounts for what could not be stored."""

from __future__ import annotations

import os

from rankfall_inside import streams
from rankfall_inside.console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from rankfall_inside.loop import Loop


class _Pipe:
    __slots__ = ("kind", "name", "sink")

    def __init__(self, name: str, kind: str, sink: streams.Sink) -> None:
        self.name = name
        self.kind = kind
        self.sink = sink


class Pump:
    """All pipes of one slot.

    Args:
        loop: the wrapper's loop.
        stream_dir: where ``<name>.<out|err>.log`` and ``.idx`` go.
        console: copies whole lines with a prefix, or None.
        prefix: asked for the prefix of a stream's lines by the stream's name (an ordinal, or ``slot``).
        on_gap: told of each gap when its stream ends: ``on_gap(name, text)``.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        stream_dir: str,
        console: Console | None,
        prefix: Callable[[str], bytes],
        on_gap: Callable[[str, str], None],
    ) -> None:
        self._loop = loop
        self._stream_dir = stream_dir
        self._console = console
        self._prefix = prefix
        self._on_gap = on_gap
        self._pipes: dict[int, _Pipe] = {}

    def add(self, fd: int, name: str, kind: str) -> None:
        """Take over the read side ``fd`` as stream ``name`` (an ordinal, or ``slot``), ``kind`` out or err."""
        streams.grow(fd)
        os.set_blocking(fd, False)
        stream = f"{name}.{kind}"
        tee = None if self._console is None else self._console.tee(stream, lambda: self._prefix(name))
        self._pipes[fd] = _Pipe(name, kind, streams.Sink(os.path.join(self._stream_dir, stream), tee=tee))
        self._loop.watch(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, streams.CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(fd)
            return False
        self._pipes[fd].sink.write(data)
        return True

    def _close(self, fd: int) -> None:
        pipe = self._pipes.pop(fd)
        self._loop.unwatch(fd)
        pipe.sink.close()
        stream = f"{pipe.name}.{pipe.kind}"
        if self._console is not None:
            self._console.finish(stream, self._prefix(pipe.name))
        for gap in pipe.sink.gaps:
            self._on_gap(pipe.name, f"{stream}: {gap.lost} bytes after offset {gap.offset} not stored ({gap.reason})")

    def drain(self) -> None:
        """Read what is left. Called when nobody of the slot lives: a write side that is still open belongs to a stranger."""
        for fd in list(self._pipes):
            while self._read(fd):
                pass
            if fd in self._pipes:
                self._close(fd)
