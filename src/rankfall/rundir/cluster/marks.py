"""Small files of an attempt's pods: owner of a log folder, proved ranks, time of our own stop.

instance.json names the pod and restart of a folder of streams; ranks.json says which rank a launcher's
local rank is, for jobs that Rankfall did not start; the stop mark is written before the request to stop is
sent, so no reader takes our own signals for somebody else's. Cheap to import: every run reads them.
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
    """Whose log a folder holds: UID of the pod and number of the container's restart."""

    uid: str
    number: int


def identity_of(folder: Path) -> Identity | None:
    """Whose log a folder holds; None where that cannot be read."""
    try:
        return decoding.decode((folder / OWNER_NAME).read_bytes(), kind=Identity)
    except (OSError, msgspec.DecodeError):
        return None


NAME: Final = "ranks.json"
# Ordinals of one round: no node has as many ranks.
ROUND: Final = 1000


class RankMapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One stream's rank.

    Attributes:
        rank: global.
        proof: where that is known from, for people.
        since, until: bytes of the stream that it holds for, from (included) to (excluded); None = to its end.
    """

    rank: int
    proof: str
    since: int = 0
    until: int | None = None


class RankMap(msgspec.Struct, frozen=True, kw_only=True):
    """What is proved of one container instance.

    Attributes:
        base: added to a local rank gives the number of its stream, in the round that goes on.
        processes: of that round: local rank -> (pid, start in clock ticks); empty = nobody looked.
        confirmed: bytes of each stream, by its number, that were stored before these processes were seen last.
        ranks: stream number -> its rank.
        roles: names in the prefixes that torchrun puts before each line of its ranks; None = nothing proves that it does.
        settled: no further rank will be proved.
    """

    base: int = 0
    processes: dict[int, tuple[int, int]] = {}
    confirmed: dict[int, int] = {}
    ranks: dict[int, RankMapEntry] = {}
    roles: tuple[str, ...] | None = None
    settled: bool = False

    @property
    def locals(self) -> frozenset[int] | None:
        """Local ranks of the round that goes on; None = they are not known."""
        found = frozenset(number - self.base for number in self.ranks if 0 <= number - self.base < ROUND)
        return found or None

    def route(self, routes: Routes) -> None:
        """Let a log's lines go to streams by what is proved."""
        routes.base = self.base
        routes.locals = self.locals
        if self.roles is not None or self.settled:
            routes.roles = self.roles or ()

    def of_no_rank(self, number: int) -> bool:
        """Whether the rank of a stream will never be known."""
        return number not in self.ranks and (self.settled or bool(self.ranks))


def read_rank_map(folder: Path) -> RankMap:
    """What is written down of an instance; nothing where that cannot be read."""
    try:
        return decoding.decode((folder / NAME).read_bytes(), kind=RankMap)
    except (OSError, msgspec.MsgspecError):
        return RankMap()


def write_rank_map(folder: Path, rank_map: RankMap) -> None:
    """Write it down.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(folder / NAME, msgspec.json.encode(rank_map))


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The first request to stop.

    Attributes:
        at_ns: when, nanoseconds since the epoch by this machine's clock.
        reason: why.
        after: slots whose ends it followed, where that is known: stamps of whole seconds alone cannot tell them from those that it ended.
    """

    at_ns: int
    reason: str
    after: tuple[int, ...] = ()


def stop_path(run: Path, attempt: int) -> Path:
    """Where an attempt's mark lies."""
    return pods_folder(run, attempt) / "stop.json"


def read_stop(run: Path, attempt: int) -> Stop | None:
    """The mark; None where nothing was stopped."""
    return _read(stop_path(run, attempt))


def mark_stop(run: Path, attempt: int, stop: Stop) -> None:
    """Set the mark; the first one stands.

    Raises:
        OSError: it cannot be written.
    """
    path = stop_path(run, attempt)
    make_folder(path.parent)
    write_new(path, msgspec.json.encode(stop))


def abandon(run: Path, attempt: int, slots: Collection[int]) -> None:
    """Write down that these slots are not waited for any more.

    Raises:
        OSError: it cannot be written.
    """
    held = abandoned(run, attempt)
    if not held >= set(slots):
        replace_file(_abandoned_path(run, attempt), msgspec.json.encode(sorted({*held, *slots})))


def abandoned(run: Path, attempt: int) -> frozenset[int]:
    """Slots that are not waited for any more."""
    try:
        return frozenset(decoding.decode(_abandoned_path(run, attempt).read_bytes(), kind=list[int]))
    except (OSError, msgspec.DecodeError):
        return frozenset()


def _abandoned_path(run: Path, attempt: int) -> Path:
    return pods_folder(run, attempt) / "abandoned.json"


class StopMark:
    """Reads the mark as often as asked, and no more once it is there: it never changes."""

    def __init__(self, run: Path, attempt: int) -> None:
        self._path = stop_path(run, attempt)
        self._text = str(self._path)
        self._found: Stop | None = None

    def read(self) -> Stop | None:
        """The mark; None while nothing was stopped."""
        if self._found is None and os.path.exists(self._text):  # noqa: PTH110 - asked at each look
            self._found = _read(self._path)
        return self._found


def _read(path: Path) -> Stop | None:
    try:
        return decoding.decode(path.read_bytes(), kind=Stop)
    except (OSError, msgspec.DecodeError):
        return None
