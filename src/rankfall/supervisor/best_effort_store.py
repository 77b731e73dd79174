"""Writes a run's tables; keeps failed writes, as on a full disk, and retries them.

The supervisor decides from facts in memory, so failed writes change no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rankfall.model import Decision, Diagnosis, Evidence, RankFacts, RunState, SlotFacts, StoreError
from rankfall.rundir import DecisionRow, SlotFailureRow, StreamRow, Writer

T = TypeVar("T")


class BestEffortStore:
    """The writer of a run; ``on_gap`` gets each new kind of loss."""

    def __init__(self, writer: Writer, *, on_gap: Callable[[str], None]) -> None:
        self.writer = writer
        self._on_gap = on_gap
        self._said: set[str] = set()
        self._backlog: dict[tuple[str, int], Callable[[], object]] = {}
        # Unwritten evidence by attempt and id.
        self._evidence: dict[int, dict[str, Evidence]] = {}

    def set_run(self, state: RunState, *, reason: str | None, at: int) -> None:
        """Stores the run's state; a later state replaces an unwritten one."""
        self._keep(("run", 0), lambda: self.writer.set_run(state, reason=reason, at=at), "the run's state")

    def begin_attempt(self, attempt: int, *, at: int, plan: dict[str, Any]) -> None:
        """Stores the start of an attempt."""
        self._keep(
            ("begin", attempt),
            lambda: self.writer.begin_attempt(attempt, at=at, plan=plan),
            f"the start of attempt {attempt}",
        )

    def end_attempt(self, attempt: int, *, at: int, state: str) -> None:
        """Stores the end of an attempt."""
        self._keep(
            ("end", attempt),
            lambda: self.writer.end_attempt(attempt, at=at, state=state),
            f"the end of attempt {attempt}",
        )

    def put_facts(
        self, attempt: int, *, slots: Iterable[SlotFacts], ranks: Iterable[RankFacts], streams: Iterable[StreamRow]
    ) -> None:
        """Stores all facts of an attempt; they replace unwritten ones."""
        kept = (tuple(slots), tuple(ranks), tuple(streams))

        def write() -> None:
            self.writer.put_slots(attempt, kept[0])
            self.writer.put_ranks(attempt, kept[1])
            self.writer.put_streams(kept[2])

        self._keep(("facts", attempt), write, f"facts of attempt {attempt}")

    def add_evidence(self, attempt: int, evidence: Iterable[Evidence]) -> None:
        """Stores evidence with all unwritten evidence of the attempt; ids identify known pieces."""
        unwritten = self._evidence.setdefault(attempt, {})
        unwritten.update((piece.id, piece) for piece in evidence)

        def write() -> None:
            self.writer.add_evidence(attempt, tuple(unwritten.values()))
            unwritten.clear()

        if unwritten:
            self._keep(("evidence", attempt), write, f"evidence of attempt {attempt}")

    def add_verdict(self, attempt: int, diagnosis: Diagnosis) -> int:
        """Stores a verdict; returns its version (1 if unwritten)."""
        version = self._keep(
            ("verdict", attempt),
            lambda: self.writer.add_verdict(attempt, diagnosis),
            f"the verdict of attempt {attempt}",
        )
        return version or 1

    def add_decision(self, attempt: int, decision: Decision) -> int | None:
        """Stores a decision as intent; returns its number, None if unwritten."""
        return self._try(lambda: self.writer.add_decision(attempt, decision), f"the decision about attempt {attempt}")

    def decision_done(self, row: DecisionRow | SlotFailureRow, *, at: int) -> None:
        """Stores that a decision was carried out."""
        if row.id > 0:
            self._keep(
                ("done", row.id),
                lambda: self.writer.decision_done(row.id, at=at),
                f"that the decision about attempt {row.attempt} was carried out",
            )

    def note(self, text: str) -> None:
        """Marks the record as incomplete."""
        self.writer.note_incomplete(text)
        self._tell(text)

    def flush(self) -> None:
        """Retries failed writes."""
        for key, action in list(self._backlog.items()):
            try:
                action()
            except StoreError:
                return
            self._backlog.pop(key, None)

    def _keep(self, key: tuple[str, int], action: Callable[[], T], what: str) -> T | None:
        """Runs ``action`` after earlier failed writes; returns None if it failed.

        Drops a failed write with the same ``key``. ``what`` names the data in messages.
        """
        self._backlog.pop(key, None)
        if self._backlog:
            self.flush()
        try:
            return action()
        except StoreError as error:
            self._backlog[key] = action
            self._lost(what, error)
            return None

    def _try(self, action: Callable[[], T], what: str) -> T | None:
        try:
            return action()
        except StoreError as error:
            self._lost(what, error)
            return None

    def _lost(self, what: str, error: StoreError) -> None:
        if what not in self._said:
            self._said.add(what)
            self.note(f"{what} could not be stored at its time: {error.message}"[:500])

    def _tell(self, text: str) -> None:
        self._on_gap(text)
