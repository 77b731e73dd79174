"""Files for people and their tools, made from the raw streams: ``rank-00000.log`` and ``log-allranks_0.out``.

They can be deleted and made again at any time. Each appears under its name only when it is whole; lines are never cut here.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from rankfall.model import StoreError
from rankfall.model.patterns import anchored
from rankfall.store.cursor import Forward
from rankfall.store.fs import append_to
from rankfall.store.merge import Feed, View, merge, open_view
from rankfall.store.select import LineQuery

if TYPE_CHECKING:
    from rankfall.store.rundir import RunDir

ALL_RANKS: Final = "log-allranks_0.out"
_RANK_LOG: Final = anchored(r"rank-[0-9]{5,9}\.log", limit=64)
_MEMORY: Final = 64 << 20
_OPEN_FILES: Final = 100


def write_derived(run_dir: RunDir) -> list[str]:
    """Write a file for each rank and one for all ranks, over earlier ones.

    The lines of a rank are those of all attempts, merged by stamp within each attempt. In the common file each attempt begins with the
    line ``[attempt A]``, and each line of it with ``[rank N] ``, or ``[slot S] `` where it is of no rank.

    Returns:
        What could not be read, in words.

    Raises:
        StoreError: the files cannot be written.
    """
    problems: list[str] = []
    views = open_view(run_dir, LineQuery(attempt="all"), problems)
    try:
        with _Outputs(run_dir.path) as outputs:
            for attempt in sorted({view.name.attempt for view in views}):
                outputs.begin(attempt)
                _one_attempt([view for view in views if view.name.attempt == attempt], outputs, problems)
            outputs.publish()
    except OSError as error:
        raise StoreError(
            f"cannot write the derived logs in {run_dir.path}: {error.strerror or error}",
            hint=f"free space, or read the raw streams in {run_dir.logs_dir}",
        ) from error
    return problems


def derived_files(run_dir: RunDir) -> list[Path]:
    """Those that are there, the one of all ranks last."""
    found = sorted(path for path in run_dir.path.glob("rank-*.log") if _RANK_LOG.fullmatch(path.name))
    return [*found, *(path for path in (run_dir.path / ALL_RANKS,) if path.exists())]


def rank_log(rank: int) -> str:
    """Name of a rank's derived file."""
    return f"rank-{rank:05d}.log"


def _one_attempt(views: list[View], outputs: _Outputs, problems: list[str]) -> None:
    block = _MEMORY // max(1, len(views))
    feeds = [
        Feed(number, view.name, Forward(view.name.path, block=block, whole=True)) for number, view in enumerate(views)
    ]
    for number, span in merge(feeds):
        view = views[number]
        for rank, data in view.ranges.pieces(span.offset, span.data):
            outputs.write(rank, view.name.slot, data, source=view.name.stream)
    problems.extend(feed.problem for feed in feeds if feed.problem)


def begin_mark(attempt: int) -> bytes:
    """The line of the file of all ranks after which those of this attempt follow."""
    return b"[attempt %d]\n" % attempt


def line_prefix(rank: int | None, slot: int) -> bytes:
    """What stands before each line in the file of all ranks."""
    return b"[slot %d] " % slot if rank is None else b"[rank %d] " % rank


class _Outputs:
    """Files under temporary names, few of them open at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._suffix = f".{os.getpid()}.{os.urandom(4).hex()}"
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()
        # Which source's line each file ends in the middle of; an unfinished last line gets its LF before another source's.
        self._inside: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._file(ALL_RANKS)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        for name in self._inside:
            with contextlib.suppress(OSError):
                self._temporary(name).unlink(missing_ok=True)

    def begin(self, attempt: int) -> None:
        """Say in the file of all ranks that the lines of this attempt follow."""
        self._append(ALL_RANKS, begin_mark(attempt), "", ends=True)

    def write(self, rank: int | None, slot: int, data: bytes, *, source: str) -> None:
        prefix = line_prefix(rank, slot)
        going_on = self._inside.get(ALL_RANKS) == source
        ends = data.endswith(b"\n")
        text = (data[:-1] if ends else data).replace(b"\n", b"\n" + prefix)
        self._append(ALL_RANKS, (b"" if going_on else prefix) + text + (b"\n" if ends else b""), source, ends=ends)
        if rank is not None:
            self._append(rank_log(rank), data, source, ends=ends)

    def publish(self) -> None:
        """Give each file its name."""
        for name, inside in self._inside.items():
            if inside is not None:
                self._file(name).write(b"\n")
        for file in self._open.values():
            file.close()
        self._open.clear()
        for name in list(self._inside):
            self._temporary(name).replace(self._folder / name)

    def _append(self, name: str, data: bytes, source: str, *, ends: bool) -> None:
        file = self._file(name)
        inside = self._inside[name]
        if inside is not None and inside != source:
            file.write(b"\n")
        file.write(data)
        self._inside[name] = None if ends else source

    def _file(self, name: str) -> BinaryIO:
        file = self._open.get(name)
        if file is not None:
            self._open.move_to_end(name)
            return file
        if len(self._open) >= _OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        file = append_to(self._temporary(name))
        self._open[name] = file
        self._inside.setdefault(name, None)
        return file

    def _temporary(self, name: str) -> Path:
        return self._folder / f".{name}{self._suffix}"
