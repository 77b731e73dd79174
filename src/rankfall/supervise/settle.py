"""The settle window: from the first definite failure until all evidence of the fall is there, and not a moment longer.

Opened by a process that ended badly, never by a line alone: a job may print an error and live on. Closed when every slot has ended, when
nothing new came for the quiet time and the minimum is over, or at the hard limit.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankfall.model import Policies, RankFacts, SlotFacts


class SettleWindow:
    """Monotonic seconds everywhere.

    Args:
        policies: quiet time, minimum and hard limit.
    """

    def __init__(self, policies: Policies) -> None:
        self._quiet = policies.settle_quiet_s
        self._least = policies.settle_min_s
        self._most = policies.settle_max_s
        self.opened: float | None = None
        self._news = 0.0

    def see(self, now: float, *, failed: bool, news: bool) -> bool:
        """Take one look; True when this look opened the window."""
        opens = failed and self.opened is None
        if opens:
            self.opened = now
        if opens or news:
            self._news = now
        return opens

    def over(self, now: float) -> bool:
        """Whether the rest of the slots need not be waited for."""
        if self.opened is None:
            return False
        open_for = now - self.opened
        return open_for >= self._most or (open_for >= self._least and now - self._news >= self._quiet)

    def close(self) -> None:
        """Forget the failure: the gang went on without the one that fell."""
        self.opened = None


def went_on(ranks: Iterable[RankFacts], slots: Iterable[SlotFacts], *, least: int) -> bool:
    """Whether an elastic gang lives on in a new round: every slot that still runs has a running rank that is younger than every bad end."""
    ranks = tuple(ranks)
    running = {s.slot for s in slots if s.state == "running"}
    ends = [r.ended_at for r in ranks if r.state == "ended" and (r.signal is not None or r.exit_code)]
    last = max((at for at in ends if at is not None), default=0)
    young = {r.slot for r in ranks if r.state == "running" and (r.started_at or 0) > last}
    return len(running) >= least and running <= young
