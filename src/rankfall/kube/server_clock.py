"""How far the API server's clock is ahead of this machine's, by the ``Date`` of its answers: it was between the question and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from rankfall.model.clocks import Bound

_NS: Final = 1_000_000_000


class ServerClock:
    """Put together from all answers so far.

    Attributes:
        ahead: nothing on both sides until an answer bore a date.
    """

    def __init__(self) -> None:
        self.ahead = Bound()

    def answered(self, headers: Mapping[str, str], *, asked: int, got: int) -> None:
        """Take one answer. A date that cannot be read tells nothing.

        Args:
            headers: of the answer; the date has whole seconds, cut.
            asked: before the question, nanoseconds since the epoch by this machine's clock.
            got: when the answer's head was there.
        """
        try:
            date = round(parsedate_to_datetime(headers.get("Date", "")).timestamp()) * _NS
        except (TypeError, ValueError, OverflowError):
            return
        # Of a clock that was set while the question was on its way nothing is told.
        if got >= asked:
            self.ahead = self.ahead.meet(Bound(date - got, date + _NS - asked))
