"""The settle window: from the first definite failure until all evidence of the fall is there, and not a moment longer.

Opened by a process that ended badly, never by a line alone: a job may print an error and live on. Closed when every slot has ended, when
nothing new came for the quiet time and the minimum is over, or at the hard limit; and without the quiet time where the cause is proven and
no further evidence could change what is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rankfall.model import Policies, RankFacts, SlotFacts, Verdict

# How long a proven cause waits for an earlier failure whose records and lines are still on their way, and for their gathering, seconds.
PROVEN_S: Final = 0.5
GATHERED_S: Final = 0.1


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

    def gathered(self, now: float) -> bool:
        """Whether what the processes that failed wrote themselves has had the time to arrive, and no more comes in."""
        if self.opened is None:
            return False
        least = min(self._most, max(PROVEN_S, self._least))
        return now - self.opened >= least and now - self._news >= GATHERED_S

    def news_at(self) -> float:
        """When something came last; changes with each piece of news."""
        return self._news

    def waits_for(self, verdict: Verdict) -> str:
        """What an open window still waits for, for people.

        Args:
            verdict: on what is known so far.
        """
        cause = verdict.cause
        so_far = "no cause is known so far" if cause.slug == "unknown" else f"so far {cause.slug} ({cause.confidence})"
        return f"the verdict waits for further evidence, until nothing comes for {self._quiet:g} s and at most {self._most:g} s: {so_far}"

    def close(self) -> None:
        """Forget the failure: the gang went on without the one that fell."""
        self.opened = None


def is_final(verdict: Verdict) -> bool:
    """Whether a cause is proven by its rank's own end, and no fault of a node that is reported later would change what is done about it."""
    return verdict.cause.confidence == "proven" and verdict.rank is not None and verdict.retry == "no"


def went_on(ranks: Iterable[RankFacts], slots: Iterable[SlotFacts], *, least: int) -> bool:
    """Whether an elastic gang lives on in a new round: every slot that still runs has a running rank that is younger than every bad end."""
    ranks = tuple(ranks)
    running = {s.slot for s in slots if s.state == "running"}
    ends = [r.ended_at for r in ranks if r.state == "ended" and (r.signal is not None or r.exit_code)]
    last = max((at for at in ends if at is not None), default=0)
    young = {r.slot for r in ranks if r.state == "running" and (r.started_at or 0) > last}
    return len(running) >= least and running <= young
