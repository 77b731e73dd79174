"""How many requests a client has sent: what tests and benches assert about the load we put on a server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Counted since the client was made.

    Attributes:
        requests: sent, repeats included.
        retries: of these, how many were repeats (after a pause, or with renewed credentials).
        failures: sent without an answer: no connection, cut, time-out.
        refreshes: times that credentials were renewed because of a 401.
        by_verb: requests by verb: ``get``, ``list``, ``create``, ``watch`` …
        by_status: answers by status of HTTP.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    refreshes: int = 0
    by_verb: Counter[str] = field(default_factory=Counter)
    by_status: Counter[int] = field(default_factory=Counter)
