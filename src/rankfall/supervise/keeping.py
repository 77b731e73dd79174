"""What an attempt's watch has seen and the store does not know yet: evidence at once, facts when something happened, at most so often."""

from __future__ import annotations

import time
from typing import Final

from rankfall.model import Evidence
from rankfall.observe.attempt import AttemptObserver, Delta
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.sheets import Sheets

# Between two writings of facts: when something happened, and when there was only output.
_STORE_S: Final = 0.5
_STORE_QUIET_S: Final = 3.0


class Keeper:
    """Writes what one attempt's observer finds.

    Args:
        ledger: where to.
        attempt: of which attempt.
        observer: of its ranks and streams.
        sheets: of its slots.
    """

    def __init__(self, ledger: Ledger, *, attempt: int, observer: AttemptObserver, sheets: Sheets) -> None:
        self._ledger = ledger
        self._attempt = attempt
        self._observer = observer
        self._sheets = sheets
        self._unstored: dict[str, Evidence] = {}
        self._stored_at = 0.0
        self._changed = True
        self._printed = False
        self._owners = False

    def saw(self, delta: Delta) -> None:
        """Take in one look."""
        for piece in delta.evidence:
            self._unstored[piece.id] = piece
        self._changed = self._changed or delta.changed
        # A viewer shows a stream's first lines when it is told whose they are: that is not kept waiting.
        self._owners = self._owners or bool(delta.new_streams) or any(r.kind == "start" for r in delta.records)
        self._printed = self._printed or bool(delta.bytes)

    def add(self, piece: Evidence) -> None:
        """Take in a piece of the supervisor's own."""
        self._unstored[piece.id] = piece

    def store(self, *, force: bool = False) -> None:
        """Write what is due; ``force`` writes everything."""
        if self._unstored:
            self._ledger.add_evidence(self._attempt, self._unstored.values())
            self._unstored.clear()
        clock = time.monotonic()
        age = clock - self._stored_at
        if force or self._owners or (self._changed and age >= _STORE_S) or (self._printed and age >= _STORE_QUIET_S):
            self._stored_at, self._changed, self._printed, self._owners = clock, False, False, False
            self._ledger.put_facts(
                self._attempt,
                slots=self._sheets.everyone(),
                ranks=self._observer.ranks(),
                streams=self._observer.streams(),
            )
