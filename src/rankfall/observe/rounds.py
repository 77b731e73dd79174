"""Which round of a gang of MIN:MAX nodes a rank's process belongs to. torch tells its workers no number of the round, so it is found out.

In one round a slot starts each of its local ranks once, a global rank is held once, and all are told the same size of the world: a start
that contradicts one of these begins the next round. A slot that joins late so gets the round of those that it joined.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What the start of a rank's process tells. ``at`` is by one common clock, nanoseconds since the epoch; None = unknown, taken as late."""

    slot: int | None
    local_rank: int | None
    rank: int
    world_size: int | None
    at: int | None


def rounds_of(seats: Mapping[K, Seat]) -> dict[K, int]:
    """The round of each process, counted from 0, in order of their starts."""
    found: dict[K, int] = {}
    number, held = 0, _Round()
    for key, seat in sorted(seats.items(), key=lambda item: (item[1].at is None, item[1].at or 0, item[1].rank)):
        if not held.takes(seat):
            number, held = number + 1, _Round()
        held.add(seat)
        found[key] = number
    return found


class _Round:
    def __init__(self) -> None:
        self._places: set[tuple[int | None, int | None]] = set()
        self._ranks: set[int] = set()
        self._world: int | None = None

    def takes(self, seat: Seat) -> bool:
        place, world = (seat.slot, seat.local_rank), seat.world_size
        other_world = self._world is not None and world is not None and world != self._world
        return not (place in self._places or seat.rank in self._ranks or other_world)

    def add(self, seat: Seat) -> None:
        self._places.add((seat.slot, seat.local_rank))
        self._ranks.add(seat.rank)
        self._world = self._world if seat.world_size is None else seat.world_size
