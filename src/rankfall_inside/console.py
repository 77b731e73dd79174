"""Whole lines of all streams on one output, each with the rank it came from: ``[rank N] text``.

torchrun's ``--tee`` glues partial lines of different ranks together; here a line is written when it is whole. A line longer than 1 MiB
is cut into parts with a marker, so memory stays bounded. A console that goes away ends the copy, never the job.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

MAX_LINE = 1 << 20
CUT_MARK = b" [rankfall: line cut]\n"


class Console:
    """Assembles lines per stream and writes them to ``fd``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial: dict[str, bytes] = {}

    def tee(self, stream: str, prefix: Callable[[], bytes]) -> Callable[[bytes], None]:
        """A function that takes the bytes of ``stream``; ``prefix`` is asked for each chunk, because a rank is known late."""

        def take(data: bytes) -> None:
            self._take(stream, prefix(), data)

        return take

    def _take(self, stream: str, prefix: bytes, data: bytes) -> None:
        if self._fd < 0:
            return
        lines = (self._partial.pop(stream, b"") + data).split(b"\n")
        rest = lines.pop()
        out = [prefix + line + b"\n" for line in lines]
        while len(rest) > MAX_LINE:
            out.append(prefix + rest[:MAX_LINE] + CUT_MARK)
            rest = rest[MAX_LINE:]
        if rest:
            self._partial[stream] = rest
        self._write(b"".join(out))

    def finish(self, stream: str, prefix: bytes) -> None:
        """The stream is at its end: a last line without newline gets one."""
        rest = self._partial.pop(stream, b"")
        if rest:
            self._write(prefix + rest + b"\n")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._fd = -1
