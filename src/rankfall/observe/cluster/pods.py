"""The pods of one attempt as its readers need them: facts of slots, and evidence of the platform. Reads the journal only.

A slot has ended when its container has and its log is stored to the end; until then a reader would miss the last words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import Evidence, SlotFacts
from rankfall.observe.cluster.journal import JournalReader, journal_path
from rankfall.observe.cluster.podfacts import ContainerFact, PodFact, stamp_ns
from rankfall.observe.cluster.reasons import ending_evidence, waiting_evidence

# Exit codes from here on are 128 + signal, as runtimes report a signal that ended process 1.
_SIGNAL_BASE: Final = 128
_HIGHEST_SIGNAL: Final = 64


class PodView:
    """What the journal says, taken in incrementally.

    Args:
        run: the run's directory.
        attempt: counted from 1.
    """

    def __init__(self, run: Path, *, attempt: int) -> None:
        self._journal = JournalReader(journal_path(run, attempt))
        self._attempt = attempt
        self._where = f"kube/attempt-{attempt}/pods.jsonl"

    @property
    def problems(self) -> list[str]:
        """Lines that could not be used, in words."""
        return self._journal.problems

    def poll(self) -> tuple[bool, list[Evidence]]:
        """Whether anything new came, and the evidence of ends in it."""
        found: list[Evidence] = []
        facts = self._journal.poll()
        for fact in facts:
            found += ending_evidence(fact, attempt=self._attempt)
        return bool(facts), found

    def waiting(self) -> list[Evidence]:
        """Why slots do not start, as it is now."""
        return [
            piece
            for fact in self._journal.by_slot().values()
            for piece in waiting_evidence(fact, attempt=self._attempt)
        ]

    def pods(self) -> dict[int, PodFact]:
        """The newest pod of each slot."""
        return self._journal.by_slot()

    def merged(self, held: SlotFacts) -> SlotFacts:
        """Facts of a slot with what its pod tells. An end that the wrapper recorded itself is kept."""
        fact = self._journal.by_slot().get(held.slot)
        if fact is None:
            return held
        held = msgspec.structs.replace(
            held, node=fact.node or held.node, pod=fact.name, started_at=held.started_at or _started(fact)
        )
        if held.state == "ended" or fact.log == "open":
            return msgspec.structs.replace(held, state="running") if _begun(fact) and held.state == "expected" else held
        end = fact.main if fact.main is not None and fact.main.state == "terminated" else None
        if end is not None:
            return _ended(held, end, where=self._where)
        if fact.gone or fact.phase == "Failed":
            # Deleted or refused without a word of its container.
            return msgspec.structs.replace(held, state="lost", where=self._where)
        return msgspec.structs.replace(held, state="running") if _begun(fact) and held.state == "expected" else held


def _begun(fact: PodFact) -> bool:
    return fact.main is not None and fact.main.state in {"running", "terminated"}


def _started(fact: PodFact) -> int | None:
    return stamp_ns(fact.main.started) if fact.main else None


def _ended(held: SlotFacts, end: ContainerFact, *, where: str) -> SlotFacts:
    """The container's end, where the wrapper could not record one: it was killed, or there was none."""
    code, signal = end.exit_code, end.signal
    if signal is None and code is not None and _SIGNAL_BASE < code <= _SIGNAL_BASE + _HIGHEST_SIGNAL:
        signal = code - _SIGNAL_BASE
    return msgspec.structs.replace(
        held,
        state="ended",
        exit_code=None if signal is not None else code,
        signal=signal,
        killed_by="foreign" if signal is not None else None,
        ended_at=stamp_ns(end.finished),
        where=where,
    )
