"""Turns what one look brought into events: ranks that started, processes that ended badly, failures as they become known."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from rankfall.backends.plan import Launcher
from rankfall.model import RankFacts, SlotFacts
from rankfall.observe.attempt import Delta
from rankfall.supervise.events import EventLog

BadEnd = tuple[str, int, int | None]


def bad_ends(slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], *, launcher: Launcher) -> frozenset[BadEnd]:
    """Processes that ended badly. A command of the user's own (``exec``) may restart its ranks itself: only its end counts."""
    found: set[BadEnd] = {
        ("slot", s.slot, None) for s in slots if s.state == "lost" or s.signal is not None or s.exit_code
    }
    if launcher != "exec":
        found |= {
            ("rank", r.rank, r.pid) for r in ranks if r.state == "ended" and (r.signal is not None or r.exit_code)
        }
    return frozenset(found)


class News:
    """Tells each thing once.

    Args:
        events: where to.
        attempt: of which attempt.
        launcher: decides whether a rank's bad end is a failure.
        stopper: who stops the rest of a gang when a part of it has failed.

    Attributes:
        calm: the job is done: how the rest ends is no failure.
    """

    def __init__(self, events: EventLog, *, attempt: int, launcher: Launcher, stopper: str = "Rankfall") -> None:
        self._events = events
        self._stopper = stopper
        self._attempt = attempt
        self._launcher: Launcher = launcher
        self.calm = False
        self._ranks: set[tuple[int, int | None]] = set()
        self._ends: frozenset[BadEnd] = frozenset()

    def tell(self, delta: Delta, slots: Iterable[SlotFacts], ranks: tuple[RankFacts, ...], *, now: int) -> None:
        """Events of one look."""
        slots = tuple(slots)
        for facts in ranks:
            key = (facts.rank, facts.pid)
            if key not in self._ranks:
                self._ranks.add(key)
                self._events.say(
                    "rank",
                    f"rank {facts.rank} started on {facts.node} (slot {facts.slot}, pid {facts.pid})",
                    at=facts.started_at or now,
                    attempt=self._attempt,
                    rank=facts.rank,
                    slot=facts.slot,
                    node=facts.node,
                    pid=facts.pid,
                    hook=facts.hook,
                )
        for record in delta.records:
            if record.kind == "error" and record.error is not None and record.error.types:
                kind = record.error.types[0].rpartition(".")[2]
                text = f"rank {record.rank}: {kind}: {record.error.message[:300]}"
                self._events.say(
                    "stopped" if self.calm else "failure",
                    text,
                    at=record.at_ns or now,
                    attempt=self._attempt,
                    rank=record.rank,
                    slot=record.slot,
                )
        ends = bad_ends(slots, ranks, launcher=self._launcher)
        if ends != self._ends:
            self._tell_ends(ends - self._ends, slots, ranks, now=now)
            self._ends = ends

    def _tell_ends(
        self, ends: frozenset[BadEnd], slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, now: int
    ) -> None:
        sheets: dict[BadEnd, RankFacts | SlotFacts] = {("slot", s.slot, None): s for s in slots}
        sheets |= {("rank", r.rank, r.pid): r for r in ranks}
        for key in sorted(ends, key=lambda end: (end[0], end[1], end[2] or 0)):
            facts = sheets[key]
            own = f", by {self._stopper}" if facts.killed_by == "wrapper" else ""
            self._events.say(
                "stopped" if own or self.calm else "failure",
                f"{key[0]} {key[1]}{f' on {facts.node}' if facts.node else ''} {_how(facts)}{own}",
                at=facts.ended_at or now,
                attempt=self._attempt,
                slot=facts.slot,
                rank=facts.rank if isinstance(facts, RankFacts) else None,
                exit_code=facts.exit_code,
                signal=facts.signal,
            )


def _how(facts: RankFacts | SlotFacts) -> str:
    if facts.state == "lost":
        return "is lost: its wrapper is gone without a word" if facts.started_at else "never came up"
    if facts.signal is not None:
        try:
            return f"ended by {signal.Signals(facts.signal).name}"
        except ValueError:
            return f"ended by signal {facts.signal}"
    return f"ended with code {facts.exit_code}"
