"""Timestamps: RFC 3339 text, clock offsets as intervals, order across clocks. Pure; reads no clock.

One fact proves each bound of an offset: nothing arrives before it was written; a reply follows its request. "Before"
and "after" hold for every offset inside the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from rankfall.model.patterns import anchored

_NS = 1_000_000_000
_PRINTED: Final = anchored(
    r"(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d{1,12})?(Z|[+-]\d\d:?\d\d)?\s*\Z", limit=64
)


def rfc3339(at: int | None) -> str | None:
    """Formats ``2026-11-21T09:00:00.123456789Z``; None for None and outside the years 1-9999."""
    if at is None:
        return None
    seconds, ns = divmod(at, _NS)
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def nanoseconds(text: str) -> int | None:
    """Parses RFC 3339 to the microsecond; None if invalid or outside signed nanoseconds."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    found = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    return found if 0 <= found < 1 << 63 else None


def printed_second(stamp: str | None) -> tuple[int, bool] | None:
    """Second of a time with its date as a log prints it, since the epoch, and True if it names its zone.

    Without a zone it is by the log's own clock. None for other times.
    """
    found = _PRINTED.match(stamp) if stamp is not None else None
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1].replace("/", "-") + (found[2] or "+00:00"))
    except ValueError:
        return None
    return round(moment.timestamp()), found[2] is not None


Order = Literal["before", "after", "unknown"]


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """Offset of a clock ahead of the common one (negative: behind), in nanoseconds.

    Attributes:
        lo, hi: None = no bound.
    """

    lo: int | None = None
    hi: int | None = None

    def meet(self, other: Bound) -> Bound:
        """Combines two proofs; if they contradict, the clock was set between: returns their union."""
        lo, hi = _most(self.lo, other.lo), _least(self.hi, other.hi)
        if lo is None or hi is None or lo <= hi:
            return Bound(lo, hi)
        return self.join(other)

    def join(self, other: Bound) -> Bound:
        """Returns the union of both intervals."""
        lo = None if self.lo is None or other.lo is None else min(self.lo, other.lo)
        return Bound(lo, None if self.hi is None or other.hi is None else max(self.hi, other.hi))

    def plus(self, other: Bound) -> Bound:
        """Adds offsets: ``self`` ahead of a clock that is ``other`` ahead."""
        lo = None if self.lo is None or other.lo is None else self.lo + other.lo
        return Bound(lo, None if self.hi is None or other.hi is None else self.hi + other.hi)

    @property
    def middle(self) -> int | None:
        """Best single number, nanoseconds; None if unknown."""
        if self.lo is None or self.hi is None:
            return self.lo if self.hi is None else self.hi
        return (self.lo + self.hi) // 2


#: Offset of the common clock.
EXACT: Final = Bound(0, 0)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A stamp and its clock.

    Attributes:
        at: Nanoseconds since the epoch by that clock, ± ``uncertainty`` seconds; None = unknown.
        clock: Name; stamps of one clock need no offset.
        bound: Offset of that clock.
    """

    at: int | None
    uncertainty: float = 0.0
    clock: str = ""
    bound: Bound = EXACT

    @property
    def earliest(self) -> int | None:
        """Earliest possible common time; None = any."""
        if self.at is None or self.bound.hi is None:
            return None
        return self.at - self.bound.hi - round(self.uncertainty * _NS)

    @property
    def latest(self) -> int | None:
        """Latest possible common time; None = any."""
        if self.at is None or self.bound.lo is None:
            return None
        return self.at - self.bound.lo + round(self.uncertainty * _NS)

    @property
    def common(self) -> tuple[int | None, float]:
        """Common time and its uncertainty in seconds; uncorrected if a bound is missing."""
        if self.at is None:
            return None, self.uncertainty
        lo, hi = self.bound.lo, self.bound.hi
        if lo is None or hi is None:
            return self.at, self.uncertainty + abs(self.bound.middle or 0) / _NS
        return self.at - (lo + hi) // 2, self.uncertainty + (hi - lo) / 2 / _NS


def order(one: Moment, other: Moment) -> Order:
    """Orders two moments; ``unknown`` if a stamp is missing or clocks allow both."""
    if one.at is None or other.at is None:
        return "unknown"
    if one.clock and one.clock == other.clock:
        slack = round((one.uncertainty + other.uncertainty) * _NS)
        return "before" if one.at + slack < other.at else "after" if other.at + slack < one.at else "unknown"
    if one.latest is not None and other.earliest is not None and one.latest < other.earliest:
        return "before"
    if other.latest is not None and one.earliest is not None and other.latest < one.earliest:
        return "after"
    return "unknown"


def preceded(moments: Sequence[Moment]) -> list[bool]:
    """Returns for each moment if any other was before it, in linear time."""
    chosen: dict[str, Moment] = {}
    soonest: list[Moment] = []
    for moment in moments:
        if moment.at is None:
            continue
        if moment.clock and _ends(moment) < _ends(chosen.setdefault(moment.clock, moment)):
            chosen[moment.clock] = moment
        if moment.latest is not None:
            # Earliest end, plus the earliest of another clock: within a clock offsets do not count.
            soonest = sorted((*soonest, moment), key=lambda one: one.latest or 0)
            soonest = [soonest[0], *[one for one in soonest if not one.clock or one.clock != soonest[0].clock][:2]]
    found = []
    for moment in moments:
        own = chosen.get(moment.clock)
        rivals = soonest if own is None else (own, *soonest)
        found.append(any(order(rival, moment) == "before" for rival in rivals))
    return found


def first_of(moments: Sequence[Moment]) -> int | None:
    """Returns the index of the provably first moment, else None, in linear time."""
    if len(moments) == 1:
        return 0
    timed = [number for number, moment in enumerate(moments) if moment.at is not None]
    if len(timed) < len(moments):
        return None
    by_end = min(timed, key=lambda number: _ends(moments[number]), default=None)
    bounded = (number for number in timed if moments[number].latest is not None)
    by_latest = min(bounded, key=lambda number: moments[number].latest or 0, default=None)
    for number in (by_end, by_latest):
        if number is not None and all(
            order(moments[number], other) == "before" for each, other in enumerate(moments) if each != number
        ):
            return number
    return None


def _ends(moment: Moment) -> int:
    """Latest time by the moment's clock."""
    return (moment.at or 0) + round(moment.uncertainty * _NS)


def _most(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
