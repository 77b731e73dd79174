"""The file of commits beside the streams of a container: what a collector wrote of each chunk, and the newest line of all.

Collectors write it (``collect.pods.resume``); readers ask for the newest stamp.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding
from rankfall.rundir.streams.content import open_regular

CURSOR_NAME: Final = "cursor.jsonl"
# Its last row lies within this, bytes: the rows of some hundred thousand lines would not.
_ROW_END: Final = 1 << 20


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of whole lines in one of the files.

    Attributes:
        segment, offset, size: where.
        lines: how many.
        high, low: newest and oldest whole second among their stamps.
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
        second: whole second of the newest line.
        forgotten: newest second of which not all lines are remembered.
        seconds: of the lines taken, as (second, how many in a row).
        sums: their checksums, 4 bytes each, base64.
        chunks: taken as they came, in place of lines; a row has lines or chunks.
        sizes: length of each stream that this row changed.
        last: stamp of the newest line, nanoseconds.
        closed: why nothing more will come.
        lines, repeated, gaps: totals so far.
        printed: (lines, bytes) of each stream by the wrapper's last word.
        settled: what is stored was compared with that.
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
    """Stamp of the newest line that is stored of the instance in this folder, nanoseconds; None where that is not known."""
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
