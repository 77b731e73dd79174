"""Small files of an attempt's pods: log folder owner, proved ranks, Rankfall's stop.

The stop mark precedes the stop request, so Rankfall's signals are recognizable.
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
        at_ns: Nanoseconds since the epoch by this machine.
        reason: Reason of the stop.
        after: Slots that ended before, which whole seconds cannot show.
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
