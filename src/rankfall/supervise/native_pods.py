"""The pods of one start of a gang: which there are, and whether their logs are stored to the end.

The journal knows those that a feed has seen. Where nobody followed the start only the API can tell, and it names those of earlier starts of the
same objects too: they are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rankfall.backends.plan import Plan
from rankfall.kube.errors import KubeError
from rankfall.observe.cluster.journal import JournalReader, journal_path
from rankfall.observe.cluster.podfacts import PodFact
from rankfall.store import RunDir
from rankfall.supervise.ledger import Ledger

if TYPE_CHECKING:
    # It brings the client along.
    from rankfall.backends.cluster.workload import Workload

#: Between two looks at the API, seconds.
LOOK_S: Final = 2.0
# How long after a start's end the logs of its pods may take, beside their grace time, once the API answers.
_STORE_S: Final = 60.0
_SHOWN: Final = 8


class StartPods:
    """Pods of one start.

    Args:
        run_dir: the run.
        plan: of this start.
        workload: that made them.
        ledger: takes what could not be had.

    Attributes:
        gang: UID of the JobSet of a TrainJob whose pods alone count; empty = all do.
    """

    def __init__(self, run_dir: RunDir, plan: Plan, *, workload: Workload, ledger: Ledger) -> None:
        self.gang = plan.cluster.gang if plan.cluster else ""
        self._plan = plan
        self._workload = workload
        self._ledger = ledger
        self._grace_s = run_dir.spec.policies.grace_s
        self._journal = JournalReader(journal_path(run_dir.path, plan.attempt))
        self._apart = {
            uid
            for number in (plan.cluster.apart if plan.cluster else ())
            for uid in JournalReader.read(journal_path(run_dir.path, number))
        }
        # When they are listed next after the end, and until when their logs may take then, by the monotonic clock.
        self._listed = 0.0
        self._there: set[str] | None = None
        self._until: float | None = None

    @property
    def seen(self) -> Mapping[str, PodFact]:
        """Those in the journal, by UID, as of the last :meth:`poll`."""
        return self._journal.pods

    def poll(self) -> None:
        """Take in what the journal has got since."""
        self._journal.poll()

    def now(self) -> dict[str, str]:
        """Phases by UID of those that are there now, and of those that were.

        Raises:
            KubeError: nobody followed them, and the API cannot be asked.
        """
        self.poll()
        place = self._plan.cluster
        if place is None or self.seen:
            return {uid: fact.phase for uid, fact in self.seen.items()}
        found = self._workload.pods(place.selector, gang=self.gang)
        return {uid: phase for uid, phase in found.items() if uid not in self._apart}

    def stored(self) -> bool:
        """Whether the logs of all that can still be had are stored, or have had their time: asked when the start is over."""
        clock = time.monotonic()
        if clock >= self._listed:
            self._list(clock)
        self.poll()
        if self._there is None or self._until is None:
            return False
        left = sorted(fact.name for fact in self.seen.values() if not fact.over or fact.log == "open")
        unseen = self._there - self.seen.keys()
        if not left and not unseen:
            return True
        if clock < self._until:
            return False
        words = ", ".join([*left[:_SHOWN], *([f"{len(unseen)} that nobody saw"] if unseen else [])])
        self._ledger.note(f"attempt {self._plan.attempt}: the logs of some pods could not be had to their end: {words}")
        return True

    def _list(self, clock: float) -> None:
        self._listed = clock + LOOK_S
        place = self._plan.cluster
        try:
            self._there = set()
            if place is not None:
                self._there = self._workload.pods(place.selector, gang=self.gang).keys() - self._apart
        except KubeError:
            # Nothing is lost by waiting for an API that does not answer.
            self._there, self._until = None, None
        else:
            self._until = self._until or clock + self._grace_s + _STORE_S
