"""Which rank the lines of a launcher's local rank are of, where the pod's manifest or its processes prove it: ``ranks.json`` beside the streams.

Only of jobs that Rankfall did not start: no recorder runs in them. Proof by processes is of one round. When another one is found, the proof ends
at the last byte that was stored before the old processes were seen last, and lines go to streams of new numbers from then on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import decoding
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
    """

    base: int = 0
    processes: dict[int, tuple[int, int]] = {}
    confirmed: dict[int, int] = {}
    ranks: dict[int, ToldRank] = {}


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
