"""Small files of an attempt's pods: log folder owner, proved ranks, Rankfall's stop, commits of stored lines.

The stop mark precedes the stop request, so Rankfall's signals are recognizable. ``collect.pods.resume`` writes commits:
stored chunks, newest line.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding
from rankfall.rundir.cluster.log_routes import Routes
from rankfall.rundir.layout import pods_folder, replace_file, write_new
from rankfall.rundir.lease import make_folder
from rankfall.rundir.streams.content import open_regular

OWNER_NAME: Final = "instance.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of a log folder: pod UID and restart number."""

    uid: str
    number: int


def identity_of(folder: Path) -> Identity | None:
    """Owner of a log folder; None if it cannot be read."""
    try:
        return decoding.decode((folder / OWNER_NAME).read_bytes(), kind=Identity)
    except (OSError, msgspec.DecodeError):
        return None


NAME: Final = "ranks.json"
# Stream numbers of one round: no node has so many ranks.
ROUND: Final = 1000


class RankMapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Rank of one stream.

    Attributes:
        rank: Global rank.
        proof: Source of the rank, for users.
        since, until: Bytes, from (included) to (excluded); None = end.
    """

    rank: int
    proof: str
    since: int = 0
    until: int | None = None


class RankMap(msgspec.Struct, frozen=True, kw_only=True):
    """Proved ranks of one container instance.

    Attributes:
        base: Added to a local rank for its stream number.
        processes: Local rank -> (pid, start in clock ticks).
        confirmed: Bytes by stream, stored while these lived.
        ranks: Stream number -> its rank.
        roles: Role names in torchrun's prefixes, or None.
        settled: No further rank will be proved.
    """

    base: int = 0
    processes: dict[int, tuple[int, int]] = {}
    confirmed: dict[int, int] = {}
    ranks: dict[int, RankMapEntry] = {}
    roles: tuple[str, ...] | None = None
    settled: bool = False

    @property
    def locals(self) -> frozenset[int] | None:
        """Local ranks of the current round; None if unknown."""
        found = frozenset(number - self.base for number in self.ranks if 0 <= number - self.base < ROUND)
        return found or None

    def route(self, routes: Routes) -> None:
        """Configures the routes of a log by the proved facts."""
        routes.base = self.base
        routes.locals = self.locals
        if self.roles is not None or self.settled:
            routes.roles = self.roles or ()

    def of_no_rank(self, number: int) -> bool:
        """True if the rank of a stream will never become known."""
        return number not in self.ranks and (self.settled or bool(self.ranks))


def read_rank_map(folder: Path) -> RankMap:
    """Instance's rank map; empty if unreadable."""
    try:
        return decoding.decode((folder / NAME).read_bytes(), kind=RankMap)
    except (OSError, msgspec.MsgspecError):
        return RankMap()


def write_rank_map(folder: Path, rank_map: RankMap) -> None:
    """Stores the rank map.

    Raises:
        OSError: The file cannot be written.
    """
    replace_file(folder / NAME, msgspec.json.encode(rank_map))


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first stop request.

    Attributes:
        at_ns: Nanoseconds since the epoch by this machine; with ``after``, by the node of the first end.
        reason: Reason of the stop.
        after: Slots that ended before a stop by Kubernetes, which whole seconds cannot show; else empty.
    """

    at_ns: int
    reason: str
    after: tuple[int, ...] = ()


def stop_path(run: Path, attempt: int) -> Path:
    """Path of an attempt's stop mark."""
    return pods_folder(run, attempt) / "stop.json"


def read_stop(run: Path, attempt: int) -> Stop | None:
    """Stop mark; None if nothing was stopped."""
    return _read(stop_path(run, attempt))


def mark_stop(run: Path, attempt: int, stop: Stop) -> None:
    """Writes the stop mark, unless there is one already.

    Raises:
        OSError: The file cannot be written.
    """
    path = stop_path(run, attempt)
    make_folder(path.parent)
    write_new(path, msgspec.json.encode(stop))


def abandon(run: Path, attempt: int, slots: Collection[int]) -> None:
    """Records that Rankfall no longer waits for these slots.

    Raises:
        OSError: The file cannot be written.
    """
    held = abandoned(run, attempt)
    if not held >= set(slots):
        replace_file(_abandoned_path(run, attempt), msgspec.json.encode(sorted({*held, *slots})))


def abandoned(run: Path, attempt: int) -> frozenset[int]:
    """Slots for which Rankfall no longer waits."""
    try:
        return frozenset(decoding.decode(_abandoned_path(run, attempt).read_bytes(), kind=list[int]))
    except (OSError, msgspec.DecodeError):
        return frozenset()


def _abandoned_path(run: Path, attempt: int) -> Path:
    return pods_folder(run, attempt) / "abandoned.json"


class StopMark:
    """Reads the stop mark until it exists; it never changes."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path = stop_path(run, attempt)
        self._text = str(self._path)
        self._found: Stop | None = None

    def read(self) -> Stop | None:
        """Stop mark; None while nothing was stopped."""
        if self._found is None and os.path.exists(self._text):  # noqa: PTH110 - called at each poll
            self._found = _read(self._path)
        return self._found


def _read(path: Path) -> Stop | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Stop)
    except (OSError, msgspec.DecodeError):
        return None


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
