"""The journal of an attempt's pods: each change of each of them, as the feed saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankfall.observe.cluster.looks import LookReader, LookWriter
from rankfall.observe.cluster.places import pods_folder
from rankfall.observe.cluster.podfacts import PodFact

NAME: Final = "pods.jsonl"


def journal_path(run: Path, attempt: int) -> Path:
    """Where the journal of an attempt lies in its run directory."""
    return pods_folder(run, attempt) / NAME


class JournalWriter(LookWriter[PodFact]):
    """Appends looks at pods.

    Args:
        path: as :func:`journal_path` has it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """The newest look at each pod by its UID, those of earlier writers too."""
        return self.newest


class JournalReader(LookReader[PodFact]):
    """Reads a journal incrementally."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, PodFact)

    @property
    def pods(self) -> dict[str, PodFact]:
        """The newest look at each pod by its UID, in order of first appearance."""
        return self.newest

    @classmethod
    def read(cls, path: Path) -> dict[str, PodFact]:
        """The newest look at each pod of a journal, read once."""
        reader = cls(path)
        reader.poll()
        return reader.pods

    def by_slot(self) -> dict[int, PodFact]:
        """The newest pod of each slot: a pod that is there before one that is gone, then the one that was made later, then seen later."""
        found: dict[int, PodFact] = {}
        for fact in self.pods.values():
            if fact.slot is None:
                continue
            held = found.get(fact.slot)
            if held is None or _newness(fact) >= _newness(held):
                found[fact.slot] = fact
        return found


def _newness(fact: PodFact) -> tuple[bool, str]:
    # The API's own stamps, all of one form: they are compared as texts.
    return not fact.gone, fact.created or ""
