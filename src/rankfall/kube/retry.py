"""When a request is sent again, and after how long: a table of what each kind of request may risk, jitter, and a cap.

A request that may already have been carried out is never repeated blindly: a second ``create`` would make a second object, a second
``delete`` by name could remove another one. Whoever sent it is told that it may be done, and asks the server.
"""

from __future__ import annotations

import enum
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from rankfall.model import numbers

TOO_MANY: Final = 429
_INTERNAL: Final = 500
# Of something that is overloaded, restarts, or cannot reach what is behind it. 501 and 505 do not get better.
_PASSING: Final = frozenset({502, 503, 504})
# A year: what a broken header may say at most, so that no sum overflows.
_LONGEST: Final = 365 * 86_400.0


class Risk(enum.Enum):
    """What a second sending may do."""

    READ = "read"
    """Nothing."""
    SAME = "same"
    """The same again: an apply, a delete of one UID."""
    TWICE = "twice"
    """Something else: never sent again once the server may have seen it."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long.

    Attributes:
        attempts: in all, the first one included.
        first_s: longest pause before the second one; doubled each time.
        cap_s: longest pause that we choose ourselves.
        total_s: no new attempt is begun after so long; a server that asks for more patience gets its error raised.
    """

    attempts: int = 6
    first_s: float = 0.2
    cap_s: float = 8.0
    total_s: float = 60.0

    def pause(self, attempt: int, *, retry_after: float | None, dice: random.Random) -> float:
        """Seconds to wait after the ``attempt``-th one (from 1): half of it certain, half by chance.

        What the server asked for is never undercut, and gets a little on top, so that a thousand clients do not come back at once.
        """
        ours = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        ours *= 0.5 + dice.random() / 2
        if retry_after is None:
            return ours
        return retry_after + min(ours, 0.1 * retry_after + self.first_s)


def repeats(risk: Risk, *, status: int, retry_after: float | None) -> bool:
    """Whether an answer with this status may be asked for again."""
    if status == TOO_MANY:
        return True  # refused before anything was done
    if risk is Risk.TWICE:
        return False
    if status == _INTERNAL:
        return risk is Risk.READ or retry_after is not None
    return status in _PASSING


def seconds(header: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for: a number or a date; None when it says nothing that can be read.

    Args:
        header: as it came.
        now: for dates; the clock of the server's date is taken for ours.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        found = numbers.real(text)
        return _LONGEST if found is None else min(found, _LONGEST)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(_LONGEST, max(0.0, (moment - (now or datetime.now(UTC))).total_seconds()))
