"""Follows an attempt that another machine supervises, into this machine's copy of the run directory. It judges nothing and stops nothing.

So whoever waits to take over sees the lines meanwhile, and has them when it does.
"""

from __future__ import annotations

import time

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend
from rankfall.model.sizes import first_sizes, sized
from rankfall.observe.attempt import AttemptObserver
from rankfall.observe.cluster.open import Feed
from rankfall.store import RunDir
from rankfall.supervise.events import EventLog
from rankfall.supervise.keeping import Keeper
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.news import News
from rankfall.supervise.sheets import Sheets


class Following:
    """One attempt, followed from now on.

    Args:
        run_dir: the copy.
        plan: of the attempt.
        backend: that planned it.
        ledger: of the copy's lease.
        events: for viewers.
    """

    def __init__(self, run_dir: RunDir, *, plan: Plan, backend: Backend, ledger: Ledger, events: EventLog) -> None:
        spec = sized(run_dir.spec, first_sizes(run_dir.spec) | plan.sizes)
        self._attempt = plan.attempt
        self._events = events
        self._observer = AttemptObserver(run_dir, spec=spec, attempt=plan.attempt, launcher=None)
        sheets = Sheets(plan, backend=backend, observer=self._observer, ledger=ledger)
        self._sheets = sheets
        self._keeper = Keeper(ledger, attempt=plan.attempt, observer=self._observer, sheets=sheets)
        self._news = News(events, attempt=plan.attempt, launcher=plan.launcher)
        # Why something ends here is for its supervisor to say.
        self._news.calm = True
        self._feed = Feed(
            run_dir,
            attempt=plan.attempt,
            source=next((one.pods for one in backend.sources(plan) if one.pods is not None), None),
        )
        self._feed.start()

    def look(self) -> None:
        """Take in what came."""
        now = time.time_ns()
        for text in self._feed.troubles():
            self._events.say("gap", text, at=now, attempt=self._attempt)
        delta = self._observer.poll(now)
        self._keeper.saw(delta)
        self._news.tell(delta, self._sheets.slots(), self._observer.ranks(), now=now)
        self._keeper.store()

    def stop(self) -> None:
        """End it; everything that came is stored."""
        self._feed.stop()
        self.look()
        self._keeper.store(force=True)
