"""Format of the commit file beside a container's streams: written chunks, newest line.

Written by ``collect.pods.resume``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding
from rankfall.rundir.streams.content import open_regular

CURSOR_NAME: Final = "cursor.jsonl"
# Bytes that contain the last row, unless of some hundred thousand lines.
_ROW_END: Final = 1 << 20


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of whole lines in one of the files.

    Attributes:
        segment, offset, size: Position and size.
        lines: Number of lines.
        high, low: Newest and oldest second of its timestamps.
    """

    segment: int
    offset: int
    size: int
    lines: int
    high: int
    low: int = 0


class CursorRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit.

    Attributes:
        second: Whole second of the newest line.
        forgotten: Newest second with forgotten lines.
        seconds: (second, lines in sequence) of stored lines.
        sums: Checksums of these lines, 4 bytes each, base64.
        chunks: Chunks stored unchanged; their lines are not in ``seconds``.
        sizes: Length of each changed stream in bytes.
        last: Newest line's timestamp, nanoseconds.
        closed: Reason why no more lines will come.
        lines, repeated, gaps: Totals so far.
        printed: (lines, bytes) of each stream, by the wrapper.
        settled: True if stored lines were compared with ``printed``.
    """

    second: int | None = None
    forgotten: int | None = None
    seconds: tuple[tuple[int, int], ...] = ()
    sums: str = ""
    chunks: tuple[Chunk, ...] = ()
    sizes: dict[str, int] = {}
    last: int | None = None
    closed: str | None = None
    lines: int = 0
    repeated: int = 0
    gaps: int = 0
    printed: dict[str, tuple[int, int]] | None = None
    settled: bool = False


def newest_of_log(folder: Path) -> int | None:
    """Timestamp of the newest stored line of this instance folder in nanoseconds; None if unknown."""
    try:
        fd = open_regular(folder / CURSOR_NAME)
        try:
            data = os.pread(fd, _ROW_END, max(0, os.fstat(fd).st_size - _ROW_END))
        finally:
            os.close(fd)
        end = data.rfind(b"\n")
        return decoding.decode(data[data.rfind(b"\n", 0, max(0, end)) + 1 : end + 1], kind=CursorRow).last
    except (OSError, ValueError):
        return None
