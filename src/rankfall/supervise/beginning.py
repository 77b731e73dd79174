"""An attempt until it runs: what keeps it from beginning is told with its age, and that it runs is written down once.

Whoever waits for nodes or for a queue waits without end; so nothing here gives up, and nothing is told of the first moments of any job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from rankfall.backends.plan import Plan
from rankfall.model import RankFacts, SlotFacts
from rankfall.supervise.events import EventLog
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.outside import OutsideHold

_WAIT_FIRST_NS: Final = 5_000_000_000
_WAIT_LOOK_NS: Final = 2_000_000_000
_WAIT_AGAIN_NS: Final = 60_000_000_000


class Beginning:
    """The beginning of one attempt.

    Args:
        plan: of the attempt.
        waits: why it does not begin, as its own pods tell; None = they do not.
        outside: tells whether a queue holds the job back.
        ledger: takes the run's state.
        events: for viewers.
        started: when the attempt began, nanoseconds since the epoch.

    Attributes:
        running: whether the attempt runs.
        over: it is being stopped: it does not begin any more.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        waits: Callable[[], str | None],
        outside: OutsideHold,
        ledger: Ledger,
        events: EventLog,
        started: int,
    ) -> None:
        self.running = False
        self.over = False
        self._attempt = plan.attempt
        self._launcher = plan.launcher
        self._waits = waits
        self._outside = outside
        self._ledger = ledger
        self._events = events
        self._started = started
        self._queued = False
        self._said: str | None = None
        # The first pods of any job wait for a moment; that is no news.
        self._due = started + _WAIT_FIRST_NS
        self._again = 0

    def tell(self, now: int) -> None:
        """Why the attempt does not begin, with how long it has waited: the first time, when the reason changes, and every minute."""
        if self.running or self.over or now < self._due:
            return
        text = self._waits()
        if text is None:
            text = self._outside.waits()
            self._queued = text is not None
        age = (now - self._started) / 1e9
        if text is not None and (text != self._said or now >= self._again):
            self._said, self._again = text, now + _WAIT_AGAIN_NS
            self._events.say("waiting", f"{text} (for {age:.0f} s)", at=now, attempt=self._attempt)
            self._ledger.set_run("queued" if self._queued else "starting", reason=text, at=now)
        self._due = now + _WAIT_LOOK_NS

    def see(self, slots: Collection[SlotFacts], ranks: Collection[RankFacts], *, now: int) -> None:
        """Take one look at whether it runs by now; nanoseconds since the epoch."""
        # What a command of the user's own starts need not be ranks.
        begun = ranks or (self._launcher == "exec" and all(s.state == "running" for s in slots))
        if not self.running and begun and not self.over:
            self.running = True
            self._ledger.set_run("running", reason=None, at=now)
