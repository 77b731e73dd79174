"""Whether a run is suspended, by whom and since when: a file of requests in the run directory that only grows.

Anybody may ask; the supervisor, or the next one, carries it out. From the same file the total deadline learns how long it stood still.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from rankfall.model import RankFacts, SlotFacts
from rankfall.store.who import who
from rankfall.store.wishes import append_wish, read_wishes

if TYPE_CHECKING:
    from rankfall.supervise.news import BadEnd

SUSPEND_NAME: Final = "suspend"


class HoldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked for the suspension or for its end, why, and when (nanoseconds since the epoch).

    ``outside``: it was seen in the cluster, where a queue or a person did it; no user of the run asked.
    """

    what: Literal["suspend", "resume"]
    at: int
    by: str = ""
    reason: str = ""
    outside: bool = False

    @property
    def text(self) -> str:
        """The request in one line."""
        words = f"{'suspended' if self.what == 'suspend' else 'resumed'} by {self.by or 'somebody'}"
        return f"{words}: {self.reason}" if self.reason else words


class Suspension(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of a run, oldest first.

    Attributes:
        initially: whether the run began suspended, by its spec.
    """

    initially: bool = False
    requests: tuple[HoldRequest, ...] = ()

    @property
    def suspended(self) -> bool:
        """Whether the run is to stand still now."""
        return self.requests[-1].what == "suspend" if self.requests else self.initially

    @property
    def outside(self) -> bool:
        """Whether the run stands still because of somebody in the cluster."""
        return self.suspended and bool(self.requests) and self.requests[-1].outside

    @property
    def text(self) -> str:
        """The newest request in one line."""
        return self.requests[-1].text if self.requests else "suspended by its job spec"

    def asked(self, since: int) -> int | None:
        """When the suspension was asked for that ends an attempt begun at ``since``; None when none does.

        What was resumed meanwhile counts too: its slots may have been told to stop.
        """
        later = [one.at for one in self.requests if one.what == "suspend" and one.at > since]
        return later[0] if later else since if self.suspended else None

    def stops(
        self, started: int, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd]
    ) -> bool:
        """Whether an attempt is to be stopped for a suspension: one was asked for before it was decided how the attempt ends.

        Args:
            started: when the attempt began, nanoseconds since the epoch.
            slots: all slots of the attempt.
            ranks: all its ranks.
            bad: the ends among them that count as failures.
        """
        asked = self.asked(started)
        return asked is not None and before_the_end(asked, slots, ranks, bad=bad)

    def paused(self, since: int, until: int) -> int:
        """Nanoseconds between two moments in which the run was suspended."""
        total, state, begun = 0, self.initially, since
        for one in self.requests:
            at = min(max(one.at, since), until)
            if state:
                total += max(0, at - begun)
            state, begun = one.what == "suspend", max(begun, at)
        return total + (max(0, until - begun) if state else 0)


def before_the_end(
    asked: int, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, bad: Collection[BadEnd]
) -> bool:
    """Whether something was asked for before it was decided how the attempt ends; arguments as of :meth:`Suspension.stops`."""
    slots = tuple(slots)
    ends = {("slot", s.slot, None): s.ended_at for s in slots} | {("rank", r.rank, r.pid): r.ended_at for r in ranks}
    if any((at := ends.get(end)) is not None and at < asked for end in bad):
        return False
    return not all(s.state == "ended" and s.ended_at is not None and s.ended_at < asked for s in slots)


def read_suspension(folder: Path, *, initially: bool) -> Suspension:
    """The requests of a run; those that cannot be read are left out."""
    return Suspension(initially=initially, requests=tuple(read_wishes(folder / SUSPEND_NAME, HoldRequest)))


def request_hold(folder: Path, what: Literal["suspend", "resume"], *, reason: str = "") -> HoldRequest:
    """Ask for a run to be suspended or to go on.

    Raises:
        StoreError: it cannot be written.
    """
    made = HoldRequest(what=what, at=time.time_ns(), by=who(), reason=reason[:1000])
    append_hold(folder, made)
    return made


def append_hold(folder: Path, made: HoldRequest) -> None:
    """Write a request down.

    Raises:
        StoreError: it cannot be written.
    """
    append_wish(folder / SUSPEND_NAME, made, verb=made.what)
