"""Which rank the lines of a launcher's local rank are of, where the pod's manifest or its processes prove it: ``ranks.json`` beside the streams.

Only of jobs that Rankfall did not start: no recorder runs in them. A line proves nothing by itself, because the job may print what looks like a prefix of
torchrun's: it is proved that torchrun marks each line of its ranks, and with which role's name. Proof by processes is of one round. When another one is found, the proof ends
at the last byte that was stored before the old processes were seen last, and lines go to streams of new numbers from then on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding
from rankfall.observe.cluster.routes import Routes
from rankfall.store.home import replace_file

NAME: Final = "ranks.json"
# Ordinals of one round: no node has as many ranks.
ROUND: Final = 1000


class ToldRank(msgspec.Struct, frozen=True, kw_only=True):
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


class Told(msgspec.Struct, frozen=True, kw_only=True):
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
    ranks: dict[int, ToldRank] = {}
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


def read_told(folder: Path) -> Told:
    """What is written down of an instance; nothing where that cannot be read."""
    try:
        return decoding.decode((folder / NAME).read_bytes(), kind=Told)
    except (OSError, msgspec.MsgspecError):
        return Told()


def write_told(folder: Path, told: Told) -> None:
    """Write it down.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(folder / NAME, msgspec.json.encode(told))
